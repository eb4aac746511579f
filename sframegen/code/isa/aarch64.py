"""AArch64: decodes the effects of an instruction from its text, finds jump tables, and describes PLT entries."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from sframegen.code.isa.effects import Add, Effects, Flow, FrameState, Load, Lose, Point, Register, Sign, Store, Take
from sframegen.code.isa.instruction_set import CodeBefore, CopyForms, Copying, Isa, JumpTable, JumpTables, Stubs, SystemCall, stub

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sframegen.code.isa.disassembly import Instruction

IRELATIVE = 1032  # R_AARCH64_IRELATIVE

SP, FP, RA, OTHER = Register.SP, Register.FP, Register.RA, Register.OTHER

WIDE = {"sp": SP, "x29": FP, "x30": RA, "fp": FP, "lr": RA}  # FOLLOWED also has their lower halves
FOLLOWED = {**WIDE, "w29": FP, "w30": RA, "wsp": SP}
NUMBER = re.compile(r"#(-?(?:0x[0-9a-f]+|\d+))$")
SHIFTED = re.compile(r"#(-?(?:0x[0-9a-f]+|\d+))(?:, lsl #(\d+))?$")  # `#1, lsl #12`
# `[sp, #16]`, `[sp, #-32]!`, which updates SP before, or `[sp], #32`, which updates it after the access.
MEMORY = re.compile(r"\[(\w+)(?:, #(-?(?:0x[0-9a-f]+|\d+)))?\](!?)(?:, #(-?(?:0x[0-9a-f]+|\d+)))?$")
FOLLOWED_NAMES = re.compile(r"\b(?:sp|wsp|[xw]29|[xw]30|fp|lr)\b")

BRANCHES = ("cbz", "cbnz", "tbz", "tbnz")
JUMPS = {"br", "braa", "brab", "braaz", "brabz"}
CALLS = {"bl", "blr", "blraa", "blrab", "blraaz", "blrabz"}
RETURNS = {"ret": (), "retaa": (Sign(False, False),), "retab": (Sign(False, True),)}
STOPS = {"udf", "brk", "hlt", "eret", "eretaa", "eretab", "drps", ".byte"}
SIGNS = {
    "paciasp": (Sign(True, False),),
    "pacibsp": (Sign(True, True),),
    "autiasp": (Sign(False, False),),
    "autibsp": (Sign(False, True),),
}
# Other instructions that sign or strip the return address's register without naming it.
SIGNS_OTHERWISE = {"paciaz", "pacibz", "autiaz", "autibz", "xpaclri", "paciasppc", "pacibsppc", "autiasppc", "autibsppc", "pacm"}
PADDING_MNEMONICS = {"nop", "udf"}
WITHOUT_NAMING = {"b", *BRANCHES, *JUMPS, *CALLS, *RETURNS, *STOPS, *SIGNS, *SIGNS_OTHERWISE, *PADDING_MNEMONICS}
# Loads and stores of one or two general registers -> bytes of each.
LOADS = {"ldr": 8, "ldur": 8, "ldp": 8, "ldnp": 8}
STORES = {"str": 8, "stur": 8, "stp": 8, "stnp": 8}
SIZES = {"x": 8, "w": 4, "b": 1, "h": 2, "s": 4, "d": 8, "q": 16}
ONLY_READ_FIRST = {"cmp", "cmn", "tst", "ccmp", "ccmn"}  # their first operand
BY_REGISTER = re.compile(r"sp, (sp|x29), (x\d+)$")  # `sp, sp, x12`
CONSTANT = re.compile(r"(x\d+), #(-?(?:0x[0-9a-f]+|\d+))(?:, lsl #(\d+))?$")  # `x12, #1, lsl #16`
LOOK_BACK = 8  # instructions that are examined before an addition of a register to SP
MAX_SIZE = 64  # bytes that a store of several vector registers writes

NEEDLES = ("sp", "29", "30")  # in operands that may name a followed register
TAKES = {"adr": Take.PAGE, "adrp": Take.PAGE, "add": Take.IN_PAGE}


def always_matters(mnemonic: str) -> bool:
    """Return True if such an instruction may change a followed register without naming it, or pads."""
    return mnemonic in WITHOUT_NAMING or mnemonic.startswith(("b.", "bc."))


def is_padding(mnemonic: str, _operands: str) -> bool:
    return mnemonic in PADDING_MNEMONICS


def decode_point(address: int, end: int, mnemonic: str, operands: str, _first_byte: int) -> Point | None:
    """Return the instruction if it touches the stack or the flow. If it has a target, the rest follows from the mnemonic."""
    if mnemonic in CALLS:
        return Point(address, end, (Lose(RA),), Flow.CALL, _branch_target(operands))
    if mnemonic == "b":
        return Point(address, end, (), Flow.JUMP, _branch_target(operands))
    if mnemonic in BRANCHES or mnemonic.startswith(("b.", "bc.")):
        return Point(address, end, (), Flow.BRANCH, _branch_target(operands))
    if mnemonic in JUMPS:
        return Point(address, end, (), Flow.INDIRECT)
    if mnemonic in RETURNS:
        known = not operands or operands in ("x30", "lr")
        return Point(address, end, RETURNS[mnemonic] if known else (Lose(RA),), Flow.RETURN)
    if mnemonic in STOPS:
        return Point(address, end, (), Flow.STOP)
    if mnemonic in SIGNS:
        return Point(address, end, SIGNS[mnemonic])
    if mnemonic in SIGNS_OTHERWISE:
        return Point(address, end, (Lose(RA),))
    if any(needle in operands for needle in NEEDLES):
        found = decode_effects(mnemonic, operands)
        return Point(address, end, found) if found else None
    return None


def resolve_register_add(instructions: Sequence[Instruction], number: int) -> Effects | None:
    """Return the effects of `sub sp, sp, x12` or `add`, if the instructions just before put a constant into the register."""
    _, _, mnemonic, operands = instructions[number]
    match = BY_REGISTER.match(operands)
    if match is None or mnemonic not in ("add", "sub"):
        return None
    inserted: list[tuple[int, int]] = []  # (bits, shift) of `movk`
    for _, _, before, earlier_operands in reversed(instructions[max(0, number - LOOK_BACK) : number]):
        constant = CONSTANT.match(earlier_operands)
        if constant and constant[1] == match[2] and before == "movk":
            inserted.append((int(constant[2], 0), int(constant[3] or 0)))
        elif constant and constant[1] == match[2] and before in ("mov", "movz"):
            value = int(constant[2], 0) << int(constant[3] or 0)
            for bits, shift in reversed(inserted):
                value = value & ~(0xFFFF << shift) | bits << shift
            return (Add(SP, WIDE[match[1]], value if mnemonic == "add" else -value),)
        elif match[2] in earlier_operands.partition(", ")[0] or before in CALLS or before in JUMPS or before[0] in "bct":
            return None  # it writes the register, or control may come from elsewhere
    return None


def _branch_target(operands: str) -> int | None:
    match = NUMBER.search(operands)
    return int(match[1], 0) if match else None


@lru_cache(1 << 12)
def decode_effects(mnemonic: str, operands: str) -> Effects:
    """Return the effects of an instruction that may name sp, x29 or x30, in part or whole."""
    if not FOLLOWED_NAMES.search(operands):
        return ()
    registers, bracket, _ = operands.partition("[")
    registers_named = [part for part in registers.replace("{", " ").replace("}", " ").replace(",", " ").split() if part]
    if bracket:
        status = _lose(registers_named[:1]) if mnemonic.startswith(("stx", "stlx")) else ()  # of exclusive stores
        return (*_memory_effects(mnemonic, registers_named, operands[len(registers) :]), *status)
    if mnemonic in ONLY_READ_FIRST or not registers_named:
        return ()
    target = FOLLOWED.get(registers_named[0])
    written = _lose(registers_named if mnemonic.startswith(("swp", "cas", "ld")) else registers_named[:1])
    if target is None or registers_named[0] not in WIDE:
        return written
    parts = operands.split(", ", 2)
    source = WIDE.get(parts[1]) if len(parts) > 1 else None
    if source is None or target is RA:
        return written
    if mnemonic == "mov" and len(parts) == 2:
        return (Add(target, source, 0),)
    match = SHIFTED.match(parts[2]) if len(parts) == 3 else None
    if mnemonic in ("add", "sub") and match:
        number = int(match[1], 0) << int(match[2] or 0)
        return (Add(target, source, number if mnemonic == "add" else -number),)
    return written


def _memory_effects(mnemonic: str, registers_named: list[str], memory: str) -> Effects:
    match = MEMORY.match(memory)
    base = WIDE.get(match[1]) if match else None
    if match is None or base is None:  # an index, or an address in another register
        update: Effects = ()
        if memory.endswith("!") or "], " in memory:
            update = tuple(Lose(FOLLOWED[name]) for name in FOLLOWED_NAMES.findall(memory))
        return (*update, *(() if mnemonic.startswith(("st", "prf")) else _lose(registers_named)))
    offset = int(match[2] or "0", 0)
    before: Effects = (Add(base, base, offset),) if match[3] else ()
    after: Effects = (Add(base, base, int(match[4], 0)),) if match[4] else ()
    if match[3]:
        offset = 0
    if base is RA:
        if match[3] or match[4]:
            return _lose([*registers_named, "x30"])
        return () if mnemonic.startswith("st") else _lose(registers_named)
    if mnemonic in STORES:
        size = SIZES.get(registers_named[0][:1], MAX_SIZE) if registers_named else MAX_SIZE
        stores = tuple(
            Store(WIDE.get(name, OTHER) if size == 8 and name != "sp" else OTHER, base, offset + number * size, size)
            for number, name in enumerate(registers_named)
        )
        return before + stores + after
    if mnemonic in LOADS:
        loads: list[Load | Lose] = []
        for number, name in enumerate(registers_named):
            if name in ("x29", "x30", "fp", "lr"):
                loads.append(Load(WIDE[name], base, offset + number * 8))
            elif name in FOLLOWED:
                loads.append(Lose(FOLLOWED[name]))
        loads.sort(key=lambda load: load.target is base)  # the base is read before it is written
        return (*before, *loads, *after)
    if mnemonic.startswith(("st", "prf")):
        return (*before, Store(OTHER, base, offset, MAX_SIZE if mnemonic.startswith("st1") else 8), *after)
    return (*before, *_lose(registers_named), *after)


def _lose(registers_named: list[str]) -> Effects:
    return tuple(Lose(FOLLOWED[name]) for name in registers_named if name in FOLLOWED)


# -- jump tables

ADDED = re.compile(r"(x\d+), (x\d+), ([xw]\d+)(?:, (\w+)(?: #(\d+))?)?$")  # `x1, x2, w3, sxtb #2`
ENTRY = re.compile(r"([xw]\d+), \[(x\d+), ([xw]\d+)(?:, \w+(?: #\d+)?)?\]$")  # `w3, [x0, w1, uxtw #1]`
ADDRESS = re.compile(r"(x\d+), #(0x[0-9a-f]+|\d+)$")  # `x0, #0x1000`
PAGE_OFFSET = re.compile(r"(x\d+), (x\d+), #(0x[0-9a-f]+|\d+)$")  # `x0, x0, #0x20`
# Loads of an entry -> (bytes, whether the load extends the sign).
WIDTHS = {"ldrb": (1, False), "ldrh": (2, False), "ldrsb": (1, True), "ldrsh": (2, True), "ldrsw": (4, True), "ldr": (4, False)}
WHOLE = {f"{letter}{n}": f"x{n}" for n in range(31) for letter in "xw"}


def find_jump_table(code: CodeBefore, number: int, operands: str) -> JumpTable | None:
    """Find the jump table of `ldrb w, [table, index]; adr r, base; add r, r, w, sxtb #2; br r`."""
    base, entry, extension, shift = None, "", "", 0  # of `add operands, base, entry, extension #shift`
    for earlier, (_, _, mnemonic, earlier_operands) in code.walk_back(number):
        if not base:
            match = ADDED.match(earlier_operands) if mnemonic == "add" else None
            if match and match[1] == operands:
                base, entry, extension, shift = match[2], match[3][1:], match[4] or "", int(match[5] or 0)
        elif mnemonic in WIDTHS:
            match = ENTRY.match(earlier_operands)
            if match and match[1][1:] == entry:
                width, signed = WIDTHS[mnemonic]
                address = _find_page_address(code, earlier, match[2])
                start = _find_loaded_address(code, number, base)
                start = address if start is None and base == match[2] else start
                if address is None or start is None:
                    return None
                signed |= extension.startswith("sx")
                return JumpTable(address, width, signed, base=start, shift=shift, counter=match[3], load=earlier)
    return None


def _find_loaded_address(code: CodeBefore, number: int, register: str) -> int | None:
    """Return the address that the last `adr` before an instruction puts into a register."""
    for _, _, mnemonic, operands in code.scan_back(number):
        if mnemonic == "adr" and (match := ADDRESS.match(operands)) and match[1] == register:
            return int(match[2], 0)
    return None


def _find_page_address(code: CodeBefore, number: int, register: str) -> int | None:
    """Return the address that `adrp` and `add`, or `adr`, put into a register."""
    offset = None
    for _, _, mnemonic, operands in code.scan_back(number):
        if mnemonic == "add" and offset is None and (match := PAGE_OFFSET.match(operands)):
            if match[1] == register:
                offset, register = int(match[3], 0), match[2]
        elif mnemonic in ("adrp", "adr") and (match := ADDRESS.match(operands)) and match[1] == register:
            return int(match[2], 0) + (offset or 0)
    return None


# -- PLT entries, little-endian in either byte order: RA stays in x30

ADRP, LOAD, ADD = "10&1f .. .. 90&9f", "11 02&03 40&c0 f9", "10 02&03 00&c0 91"  # x16; x17 by it; x16
BR, NO_OP, BTI, AUTHENTICATE, PUSH = "20 02 1f d6", "1f 20 03 d5", "5f 24 03 d5", "9f 21 03 d5", "f0 7b bf a9"
BEGINS = ("", BTI)  # with and without a landing pad
ADDS = (ADD, NO_OP)  # GNU ld 2.47: a no-op for an addition of nothing
FIRST = tuple(
    stub(f"{begin} {PUSH} {ADRP} {LOAD} {add} {BR}", (0, 0), (len(begin.split()) + 4, 16), repeats=False)
    for begin in BEGINS
    for add in ADDS
)
OTHERS = (
    *(
        stub(f"{begin} {ADRP} {LOAD} {middle} {BR}", (0, 0))
        for begin in BEGINS
        for middle in ("", *ADDS, *(f"{add} {AUTHENTICATE}" for add in ADDS))
    ),
    stub(NO_OP, (0, 0)),
    stub("00 7d 20 d4", (0, 0)),  # a trap: mold's padding
    *(
        stub(
            f"{begin} e2 0f bf a9 02&1f .. .. 90&9f 03&1f .. .. 90&9f 42 00&03 40&c0 f9 {add} 40 00 1f d6",
            (0, 0), (len(begin.split()) + 4, 16), repeats=False,
        )
        for begin in BEGINS
        for add in ("63 00&03 00&c0 91", NO_OP)
    ),
)  # fmt: skip
PLT = Stubs(FIRST, OTHERS)
SLOT_LOAD = re.compile(r"(x\d+), \[(x\d+)(?:, #(0x[0-9a-f]+|\d+))?\]$")


def find_plt_slot(instructions: Iterable[Instruction], jump: int) -> int | None:
    """Return the address that the jump's register was loaded from: `adrp x16, page; ldr x17, [x16, #offset]; br x17`."""
    pages: dict[str, int] = {}
    slots: dict[str, int] = {}
    for address, _, mnemonic, operands in instructions:
        if mnemonic == "adrp" and (match := ADDRESS.match(operands)):
            pages[match[1]] = int(match[2], 0)
        elif mnemonic == "ldr" and (match := SLOT_LOAD.match(operands)) and match[2] in pages:
            slots[match[1]] = pages[match[2]] + int(match[3] or "0", 0)
        elif address == jump:
            return slots.get(operands)
    return None


ISA = Isa(
    capstone=("CS_ARCH_ARM64", "CS_MODE_ARM"),
    decode_point=decode_point,
    entry=FrameState(sp=0),
    longest=4,
    is_padding=is_padding,
    always_matters=always_matters,
    needles=NEEDLES,
    takes=TAKES,
    program_entry=re.compile(rb"(\x5f\x24\x03\xd5)?\x1d\x00\x80\xd2\x1e\x00\x80\xd2"),  # mov x29, #0; mov x30, #0
    system_call=SystemCall(b"\x01\0\0\xd4", re.compile(r"(?:mov|movz) [xw]8, #0x(?:dc|1b3)$")),
    copying=Copying(
        fp=CopyForms(
            re.compile(r"\b(?:[xw]29|fp)\b"), re.compile(r"(?:mov x29, x|ld\w+ (?:x\d+, )?x29, (?:x\d+, )?\[(?!sp\b|x29\b))")
        ),
        ra=CopyForms(
            re.compile(r"\b(?:[xw]30|lr)\b"), re.compile(r"(?:mov x30, x|ld\w+ (?:x\d+, )?x30, (?:x\d+, )?\[(?!sp\b|x29\b))")
        ),
        followed_copies=re.compile(r"st\w+ [^[]*\[(?:sp|x29|fp)[],]"),
        only_write_first=frozenset({"mov", "movz", "movn", "adr", "adrp"}),
        loads=("ld",),
    ),
    jump_tables=JumpTables(
        find_jump_table,
        flow_ends=frozenset({"ret", "hlt", "b", "br", "brk", "udf"}),
        limit_branches={"b.hi": 1, "b.ls": 1, "b.hs": 0, "b.lo": 0},
        compares=frozenset({"cmp", "subs"}),
        copies=frozenset({"mov", "uxtb", "uxth", "sxtw"}),
        whole_register=lambda register: WHOLE.get(register, register),
        selects=("cs",),
    ),
    resolve_register_add=resolve_register_add,
    find_plt_slot=find_plt_slot,
)
