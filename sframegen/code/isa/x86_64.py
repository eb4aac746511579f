"""x86-64: decodes the effects of an instruction from its text, finds jump tables, and describes PLT entries."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from sframegen.code.isa.effects import Add, Effects, Flow, FrameState, Load, Lose, Point, Register, Store, Take
from sframegen.code.isa.instruction_set import CodeBefore, CopyForms, Copying, Isa, JumpTable, JumpTables, Stubs, SystemCall, stub

if TYPE_CHECKING:
    from sframegen.code.isa.disassembly import Instruction

IRELATIVE = 37  # R_X86_64_IRELATIVE

SP, FP, OTHER = Register.SP, Register.FP, Register.OTHER

FOLLOWED = {**dict.fromkeys(("rsp", "esp", "sp", "spl"), SP), **dict.fromkeys(("rbp", "ebp", "bp", "bpl"), FP)}
WIDE = {"rsp": SP, "rbp": FP}  # FOLLOWED also has their parts
SIZES = {"byte": 1, "word": 2, "dword": 4, "qword": 8, "fword": 6, "xword": 10, "xmmword": 16, "ymmword": 32, "zmmword": 64}
MAX_SIZE = 1024  # bytes that an instruction of no stated size may write on the stack: `fxsave` 512, `xsave` more, over locals
MEMORY = re.compile(r"(?:(\w+) ptr )?(?:ss:)?\[(rsp|rbp)(?: ([+-]) (0x[0-9a-f]+|\d+))?\]$")  # `qword ptr [rsp + 8]`
RIP_MEMORY = re.compile(r"\[rip ([+-]) (0x[0-9a-f]+|\d+)\]$")  # `qword ptr [rip + 0x2fe2]`
NUMBER = re.compile(r"-?(?:0x[0-9a-f]+|\d+)$")

STOPS = {
    "hlt", "ud0", "ud1", "ud2", "int3", "int1", "iretq", "iretd", "iret", "uiret", "sysretq", "sysret", "sysexit", "sysexitq",
    "retf", "retfq", "ljmp", "lcall", "rsm",
}  # fmt: skip
BRANCHES = {"loop", "loope", "loopne", "xbegin"}  # and mnemonics that begin with j
# Instructions that only read their first operand. All others count as writing it.
ONLY_READ_FIRST = {
    "cmp", "test", "bt", "mul", "div", "idiv", "nop", "comisd", "comiss", "ucomisd", "ucomiss", "vcomisd", "vcomiss", "vucomisd",
    "vucomiss", "fld", "fild", "fldcw", "ldmxcsr", "vldmxcsr", "ptest", "vptest", "prefetcht0", "prefetcht1", "prefetcht2",
    "prefetchnta", "prefetchw", "cmpsb", "cmpsq", "endbr64",
}  # fmt: skip
WRITES_ALL = {"xchg", "xadd", "mulx", "cmpxchg"}  # operands
NOT_DECODED = {"push2", "pop2", "push2p", "pop2p", "pushp", "popp"}  # these lose SP and FP
WITHOUT_OPERANDS = {
    "leave": (Add(SP, FP, 0), Load(FP, SP, 0), Add(SP, SP, 8)),
    "pushfq": (Add(SP, SP, -8), Store(OTHER, SP, 0, 8)),
    "popfq": (Add(SP, SP, 8),),
}
SP_AND_FP_LOST: Effects = (Lose(SP), Lose(FP))
OPERAND_SIZE = 0x66  # the prefix that makes a push or pop two bytes wide
CONTROL = {"jmp", "call", "ret", *STOPS, *BRANCHES}
PADDING_MNEMONICS = {"nop", "int3", "xchg"}
IMPLIED = {"push", "pop", "leave", "pushfq", "popfq", "enter", "pushf", "popf", "leavew", "pushal", "popal", "pushaw", "popaw"}
ALWAYS_MATTER = {*CONTROL, *IMPLIED, *WRITES_ALL, *NOT_DECODED, *PADDING_MNEMONICS}  # and mnemonics that begin with j

NEEDLES = ("sp", "bp")  # in operands that name a followed register
TAKES = {"lea": Take.RELATIVE, "mov": Take.CONSTANT}


def always_matters(mnemonic: str) -> bool:
    """Return True if such an instruction may change a followed register without naming it, or pads."""
    name = _without_prefixes(mnemonic)
    return name[0] == "j" or name in ALWAYS_MATTER


def is_padding(mnemonic: str, operands: str) -> bool:
    return mnemonic in ("nop", "int3") or (mnemonic == "xchg" and operands == "ax, ax")


def _without_prefixes(mnemonic: str) -> str:
    return mnemonic if " " not in mnemonic else mnemonic.rpartition(" ")[2]


def decode_point(address: int, end: int, mnemonic: str, operands: str, first_byte: int) -> Point | None:
    """Return the instruction if it touches the stack or the flow. With a target or slot, the rest depends on the mnemonic only."""
    name = _without_prefixes(mnemonic)
    if name[0] == "j" or name in CONTROL:
        return _decode_control_flow(address, end, name, operands)
    if name in IMPLIED:
        return Point(address, end, SP_AND_FP_LOST if first_byte == OPERAND_SIZE else decode_effects(name, operands))
    if "sp" in operands or "bp" in operands:
        found = decode_effects(name, operands)
        return Point(address, end, found) if found else None
    if name in NOT_DECODED:
        return Point(address, end, SP_AND_FP_LOST)
    return None


def _decode_control_flow(address: int, end: int, name: str, operands: str) -> Point:
    if name in STOPS:
        return Point(address, end, (), Flow.STOP)
    if name == "ret":
        return Point(address, end, SP_AND_FP_LOST if operands else (), Flow.RETURN)
    flow = Flow.JUMP if name == "jmp" else Flow.CALL if name == "call" else Flow.BRANCH
    if operands[:1].isdigit():
        return Point(address, end, (), flow, int(operands, 0))
    match = RIP_MEMORY.search(operands)
    slot = (end + int(match[1] + match[2], 0)) % (1 << 64) if match else None
    return Point(address, end, (), Flow.CALL if flow is Flow.CALL else Flow.INDIRECT, None, slot)


@lru_cache(1 << 12)
def decode_effects(name: str, operands: str) -> Effects:
    """Return the effects of an instruction that names rsp, rbp or a part of them, or uses one without naming it."""
    if name in WITHOUT_OPERANDS:
        return WITHOUT_OPERANDS[name]
    parts = operands.split(", ")
    first_operand = parts[0]
    if name == "push":
        return SP_AND_FP_LOST if _is_narrow(first_operand) else (Add(SP, SP, -8), Store(WIDE.get(first_operand, OTHER), SP, 0, 8))
    if name == "pop":
        return _pop_effects(first_operand)
    if name in IMPLIED or name in NOT_DECODED:
        return SP_AND_FP_LOST
    if name in ONLY_READ_FIRST or (name == "imul" and len(parts) == 1):
        return ()
    if name in WRITES_ALL:
        lost = tuple(Lose(FOLLOWED[part]) for part in parts if part in FOLLOWED)
        return lost + _store_effects(first_operand, OTHER)
    target = FOLLOWED.get(first_operand)
    if target is None:
        source = parts[1] if len(parts) > 1 else ""
        return _store_effects(first_operand, WIDE.get(source, OTHER) if name == "mov" else OTHER)
    return _write_effects(name, target, first_operand, parts)


def _pop_effects(operand: str) -> Effects:
    if operand in WIDE:
        return (Lose(SP),) if operand == "rsp" else (Load(FP, SP, 0), Add(SP, SP, 8))
    return SP_AND_FP_LOST if _is_narrow(operand) else (Add(SP, SP, 8), *_store_effects(operand, OTHER))


def _is_narrow(operand: str) -> bool:
    """Return True if a push or pop of the operand does not move eight bytes."""
    if operand in FOLLOWED:
        return operand not in WIDE
    is_pair = len(operand) == 2 and operand not in ("fs", "gs", "r8", "r9") and not NUMBER.match(operand)
    return is_pair or operand.startswith("word ") or operand[-1:] == "w"


def _store_effects(destination: str, operand: Register) -> Effects:
    match = MEMORY.match(destination)
    if match is None:
        return ()
    size = SIZES.get(match[1] or "", MAX_SIZE)
    return (Store(operand if size == 8 else OTHER, WIDE[match[2]], _memory_offset(match), size),)


def _memory_offset(match: re.Match[str]) -> int:
    return int(match[3] + match[4], 0) if match[3] else 0


def _write_effects(name: str, target: Register, first_operand: str, parts: list[str]) -> Effects:
    """Return the effects of `name target, ...`, where target is rsp or rbp or a part of them."""
    source = parts[1] if len(parts) == 2 else ""
    if first_operand not in WIDE:
        return (Lose(target),)
    if name == "mov" and source in WIDE:
        return (Add(target, WIDE[source], 0),)
    match = MEMORY.match(source)
    if name == "lea" and match:
        return (Add(target, WIDE[match[2]], _memory_offset(match)),)
    if name == "mov" and match and target is FP:
        return (Load(FP, WIDE[match[2]], _memory_offset(match)),)
    if name in ("add", "sub") and NUMBER.match(source):
        number = int(source, 0)
        if number >= 1 << 63:  # a negative number, which is printed as 64 unsigned bits
            number -= 1 << 64
        return (Add(target, target, number if name == "add" else -number),)
    return (Lose(target),)


# -- jump tables

TABLE_OPERAND = re.compile(r"qword ptr \[(\w+)\*8 \+ (0x[0-9a-f]+)\]$")  # `qword ptr [rax*8 + 0x402010]`
ENTRY_OPERAND = re.compile(r"dword ptr \[(\w+) \+ (\w+)\*4\]$")  # `dword ptr [rdx + rax*4]`
NARROW_ENTRY = re.compile(r"word ptr \[(\w+) \+ (\w+)\*2 ([+-]) (0x[0-9a-f]+|\d+)\]$")  # `word ptr [rdx + rax*2 + 0x10]`
UNSCALED_ENTRY = re.compile(r"dword ptr \[\w+ \+ \w+\]$")  # `dword ptr [rdx + rax]`
SUM_OPERAND = re.compile(r"\[(\w+) \+ (\w+)\]$")  # `[rdx + rax]`
RIP_LEA = re.compile(r"\w+, \[rip(?: ([+-]) (0x[0-9a-f]+|\d+))?\]$")  # `rdx, [rip + 0xea5]`

_LETTERS = {"a": "ax", "b": "bx", "c": "cx", "d": "dx"}
WHOLE = {
    **{name: f"r{pair}" for letter, pair in _LETTERS.items() for name in (f"r{pair}", f"e{pair}", pair, f"{letter}l")},
    **{name: f"r{pair}" for pair in ("si", "di", "bp") for name in (f"r{pair}", f"e{pair}", pair, f"{pair}l")},
    **{f"r{n}{suffix}": f"r{n}" for n in range(8, 16) for suffix in ("", "d", "w", "b")},
}


def _whole_register(register: str) -> str:
    """Return the whole register of a part; for a place in memory, its text without its size."""
    return WHOLE.get(register) or register.rpartition(" ptr ")[2]


def find_jump_table(code: CodeBefore, number: int, operands: str) -> JumpTable | None:
    """Find the jump table of `jmp [table + index*8]` or `movsxd r, [table + index*4]; add r, base; jmp r`.

    The sum may be in either order. Assembly also has `movzx r, [base + index*2 + n]; add r, base; jmp r`.
    """
    if "[" in operands:
        return _find_memory_table(number, operands)
    sum_of: tuple[str, ...] = ()  # the two registers whose sum is jumped to
    added = number  # of the instruction that adds them
    for earlier, (_, _, mnemonic, earlier_operands) in code.walk_back(number):
        parts = earlier_operands.split(", ")
        if not sum_of:
            if mnemonic == "add" and parts[0] == operands:
                sum_of, added = (operands, parts[1]), earlier
            elif mnemonic == "lea" and parts[0] == operands and (match := SUM_OPERAND.match(parts[1])):
                sum_of, added = (match[1], match[2]), earlier
            elif mnemonic == "mov" and parts[0] == operands:
                return _find_memory_table(earlier, parts[1])
        elif mnemonic == "movsxd" and parts[0] in sum_of:
            match = ENTRY_OPERAND.match(parts[1])
            other = sum_of[1] if parts[0] == sum_of[0] else sum_of[0]
            if match is None:
                return None
            address = _find_loaded_address(code, earlier, match[1])
            base = _find_loaded_address(code, added, other)
            if address is None or base is None:
                return None
            return JumpTable(address, width=4, signed=True, base=base, shift=0, counter=match[2], load=earlier)
        elif mnemonic in ("movzx", "movsx") and _whole_register(parts[0]) == sum_of[0] and (match := NARROW_ENTRY.match(parts[1])):
            return _find_narrow_table(code, earlier, sum_of[1], match, signed=mnemonic == "movsx")
        elif mnemonic == "mov" and _whole_register(parts[0]) == sum_of[0] and UNSCALED_ENTRY.match(parts[1]):  # at -O0, and `cdqe`
            base = _find_loaded_address(code, added, sum_of[1])
            return None if base is None else JumpTable(base, width=4, signed=True, base=base, shift=0, counter="", load=earlier)
    return None


def _find_narrow_table(code: CodeBefore, number: int, base: str, entry: re.Match[str], *, signed: bool) -> JumpTable | None:
    """Return the table of 2-byte entries that an instruction reads, if the last instruction that writes `base` loads an address."""
    if entry[1] != base:
        return None
    for _, instruction in code.walk_back(number):
        if _whole_register(instruction[3].partition(", ")[0]) == base:
            address = find_label(instruction)
            if address is None:
                return None
            first = address + int(entry[3] + entry[4], 0)
            return JumpTable(first, 2, signed, base=address, shift=0, counter=entry[2], load=number, certain=True)
    return None


def _find_memory_table(number: int, operands: str) -> JumpTable | None:
    match = TABLE_OPERAND.match(operands)
    return JumpTable(int(match[2], 0), 8, signed=False, base=0, shift=0, counter=match[1], load=number) if match else None


def find_label(instruction: Instruction) -> int | None:
    """Return the address that `lea r, [rip + n]` puts into the register; None for other instructions."""
    address, size, mnemonic, operands = instruction
    match = RIP_LEA.match(operands) if mnemonic == "lea" else None
    return address + size + int((match[1] or "") + (match[2] or "0"), 0) if match else None


def _find_loaded_address(code: CodeBefore, number: int, register: str) -> int | None:
    """Return the address that the last `lea` before an instruction puts into a register."""
    labels = (find_label(earlier) for earlier in code.scan_back(number) if earlier[3].startswith(f"{register}, "))
    return next(filter(None, labels), None)


# -- PLT entries

# Entries jump to the first one after they have pushed their number. The bytes after its jump are never executed.
FIRST = stub("ff 35 .. .. .. .. ff 25 .. .. .. .. .. .. .. ..", (0, 16), (6, 24), repeats=False)
FIRST_BND = stub("ff 35 .. .. .. .. f2 ff 25 .. .. .. .. 0f 1f 00", (0, 16), (6, 24), repeats=False)
LAZY = stub("ff 25 .. .. .. .. 68 .. .. .. .. e9 .. .. .. ..", (0, 8), (11, 16))
LAZY_BND = stub("68 .. .. .. .. f2 e9 .. .. .. .. 0f 1f 44 00 00", (0, 8), (5, 16))
LAZY_IBT = stub("f3 0f 1e fa 68 .. .. .. .. e9 .. .. .. .. 66 90", (0, 8), (9, 16))
LAZY_IBT_BND = stub("f3 0f 1e fa 68 .. .. .. .. f2 e9 .. .. .. .. 90", (0, 8), (9, 16))
TLS_DESCRIPTOR = stub("f3 0f 1e fa ff 35 .. .. .. .. ff 25 .. .. .. ..", (0, 8), (10, 16), repeats=False)
TLS_DESCRIPTOR_PLAIN = stub("ff 35 .. .. .. .. ff 25 .. .. .. .. 0f 1f 40 00", (0, 8), (6, 16), repeats=False)
DIRECT = stub("ff 25 .. .. .. .. 66 90", (0, 8))
DIRECT_BND = stub("f2 ff 25 .. .. .. .. 90", (0, 8))
DIRECT_IBT = stub("f3 0f 1e fa ff 25 .. .. .. .. 66 0f 1f 44 00 00", (0, 8))
DIRECT_IBT_BND = stub("f3 0f 1e fa f2 ff 25 .. .. .. .. 0f 1f 44 00 00", (0, 8))
# mold's entries put their number into r11, which its first entry pushes.
FIRST_MOLD = stub(f"f3 0f 1e fa 41 53 ff 35 .. .. .. .. ff 25 .. .. .. .. {'cc ' * 14}", (0, 8), (6, 16), (12, 24), repeats=False)
LAZY_MOLD = stub("f3 0f 1e fa 41 bb .. .. .. .. ff 25 .. .. .. ..", (0, 8))
DIRECT_MOLD = stub("f3 0f 1e fa ff 25 .. .. .. .. cc cc cc cc cc cc", (0, 8))
LAZY_MOLD_PLAIN = stub("41 bb .. .. .. .. ff 25 .. .. .. .. cc cc cc cc", (0, 8))
DIRECT_MOLD_PLAIN = stub("ff 25 .. .. .. .. cc cc", (0, 8))
# lld's entries with -z retpolineplt. All call a function that replaces its return address by the target, and returns to it. If the
# first entry calls it as the others do, their stacks differ at that return, so that only a walker of instructions can follow it.
LOAD_R11, TRAP, TO_R11 = "4c 8b 1d .. .. .. ..", "f3 90 0f ae e8 eb f9", f"4c 89 1c 24 c3 {'cc ' * 11}"
FIRST_RETPOLINE = stub(f"ff 35 .. .. .. .. {LOAD_R11} e8 0e 00 00 00 {TRAP} {'cc ' * 7}", (0, 16), (6, 24), repeats=False)
FIRST_RETPOLINE_NOW = stub(f"e8 0b 00 00 00 {TRAP} {'cc ' * 4} {TO_R11}", (0, 8), (20, 16), repeats=False)
RETPOLINE = stub(TO_R11, repeats=False)
LAZY_RETPOLINE = stub(f"{LOAD_R11} e8 .. .. .. .. e9 .. .. .. .. 68 .. .. .. .. e9 .. .. .. .. {'cc ' * 5}", (0, 8), (22, 16))
DIRECT_RETPOLINE = stub(f"{LOAD_R11} e9 .. .. .. .. {'cc ' * 4}", (0, 8))
PLT = Stubs(
    (FIRST, FIRST_BND, FIRST_MOLD, FIRST_RETPOLINE, FIRST_RETPOLINE_NOW),
    (
        LAZY, LAZY_IBT, DIRECT, DIRECT_IBT, TLS_DESCRIPTOR, TLS_DESCRIPTOR_PLAIN,
        LAZY_MOLD, DIRECT_MOLD, LAZY_BND, LAZY_IBT_BND, DIRECT_BND, DIRECT_IBT_BND,
        LAZY_MOLD_PLAIN, DIRECT_MOLD_PLAIN, LAZY_RETPOLINE, DIRECT_RETPOLINE, RETPOLINE,
    ),
)  # fmt: skip

ISA = Isa(
    capstone=("CS_ARCH_X86", "CS_MODE_64"),
    decode_point=decode_point,
    entry=FrameState(sp=-8, ra=None, ra_at=-8),
    longest=15,
    is_padding=is_padding,
    always_matters=always_matters,
    needles=NEEDLES,
    takes=TAKES,
    program_entry=re.compile(rb"(\xf3\x0f\x1e\xfa)?(\x48)?[\x31\x33]\xed"),  # xor ebp, ebp
    system_call=SystemCall(b"\x0f\x05", re.compile(r"(?:mov|movabs) [er]ax, 0x(?:38|1b3)$")),
    copying=Copying(
        fp=CopyForms(
            re.compile(r"\b[re]?bp\b"),
            re.compile(r"(?:mov|movq|xchg|cmov\w+) rbp, (?:r(?![sb]p\b)\w+$|xmm|qword ptr (?:\w+:)?\[(?!r[sbi]p\b))"),
        ),
        ra=None,
        followed_copies=re.compile(r"push rbp|mov qword ptr \[r[sb]p[^]*]*\], rbp"),
        only_write_first=frozenset({"mov", "movabs", "movzx", "lea", "pop"}),
    ),
    jump_tables=JumpTables(
        find_jump_table,
        flow_ends=frozenset({"jmp", "ret", "ud2", "hlt"}),
        limit_branches={"ja": 1, "jbe": 1, "jae": 0, "jb": 0},
        compares=frozenset({"cmp"}),
        copies=frozenset({"mov", "movzx", "movsx", "movsxd"}),
        whole_register=_whole_register,
        selects=("cmov",),
        label=find_label,
        label_registers=frozenset(f"r{number}" for number in range(8, 16)),
        write_second=("xchg", "xadd", "mulx"),
        keep_first=frozenset({"push", "pop", "cmp", "test", "bt", "jmp", "call"}),
    ),
    prefix=OPERAND_SIZE,
    # lea r, [rip + n]; call n
    references=re.compile(rb"(?=((?:[\x48\x4c]\x8d[\x05\x0d\x15\x1d\x25\x2d\x35\x3d]|\xe8)....))", re.DOTALL),
)
