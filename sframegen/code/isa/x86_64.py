"""x86-64: the effects of an instruction, by its text."""

from __future__ import annotations

import re
from functools import lru_cache

from sframegen.code.isa.effects import Add, Effects, Flow, Load, Lose, Point, Register, Store, Take

SP, FP, OTHER = Register.SP, Register.FP, Register.OTHER

FOLLOWED = {
    **dict.fromkeys(("rsp", "esp", "sp", "spl"), SP),
    **dict.fromkeys(("rbp", "ebp", "bp", "bpl"), FP),
}
WIDE = {"rsp": SP, "rbp": FP}
SIZES = {"byte": 1, "word": 2, "dword": 4, "qword": 8, "fword": 6, "xword": 10, "xmmword": 16, "ymmword": 32, "zmmword": 64}
MAX_SIZE = 1024  # bytes that an instruction of no stated size may write on the stack: `fxsave` 512, `xsave` more, over locals
MEMORY = re.compile(r"(?:(\w+) ptr )?(?:ss:)?\[(rsp|rbp)(?: ([+-]) (0x[0-9a-f]+|\d+))?\]$")
RIP = re.compile(r"\[rip ([+-]) (0x[0-9a-f]+|\d+)\]$")
NUMBER = re.compile(r"-?(?:0x[0-9a-f]+|\d+)$")

STOPS = {
    "hlt", "ud0", "ud1", "ud2", "int3", "int1", "iretq", "iretd", "iret", "uiret", "sysretq", "sysret", "sysexit", "sysexitq",
    "retf", "retfq", "ljmp", "lcall", "rsm",
}  # fmt: skip
BRANCHES = {"loop", "loope", "loopne", "xbegin"}  # and what begins with j
# Those that only read their first operand. What is not listed is taken to write it.
READS = {
    "cmp", "test", "bt", "mul", "div", "idiv", "nop", "comisd", "comiss", "ucomisd", "ucomiss", "vcomisd", "vcomiss", "vucomisd",
    "vucomiss", "fld", "fild", "fldcw", "ldmxcsr", "vldmxcsr", "ptest", "vptest", "prefetcht0", "prefetcht1", "prefetcht2",
    "prefetchnta", "prefetchw", "cmpsb", "cmpsq", "endbr64",
}  # fmt: skip
WRITES_ALL = {
    "xchg",
    "xadd",
    "mulx",
    "cmpxchg",
    "enter",
    "push2",
    "pop2",
    "push2p",
    "pop2p",
    "pushp",
    "popp",
}  # operands, and unread ones
PUSHES, POPS = ("push", "pushfq"), ("pop", "popfq")
WITHOUT_OPERANDS = {
    "leave": (Add(SP, FP, 0), Load(FP, SP, 0), Add(SP, SP, 8)),
    "pushfq": (Add(SP, SP, -8), Store(OTHER, SP, 0, 8)),
    "popfq": (Add(SP, SP, 8),),
}
LOST: Effects = (Lose(SP), Lose(FP))
OPERAND_SIZE = 0x66  # the prefix that makes a push or pop two bytes wide
CONTROL = {"jmp", "call", "ret", *STOPS, *BRANCHES}
PADS = {"nop", "int3", "xchg"}
IMPLIED = {"push", "pop", "leave", "pushfq", "popfq", "enter", "pushf", "popf", "leavew", "pushal", "popal", "pushaw", "popaw"}

NEEDLES = ("sp", "bp")  # in operands that name what is followed
TAKES = {"lea": Take.RELATIVE, "mov": Take.CONSTANT}


def matters(mnemonic: str) -> bool:
    """Whether such an instruction may touch what is followed without naming it, or pads."""
    name = _name(mnemonic)
    return name[0] == "j" or name in CONTROL or name in IMPLIED or name in WRITES_ALL or name in PADS


def pads(mnemonic: str, operands: str) -> bool:
    """Whether the instruction fills the space between functions."""
    return mnemonic in ("nop", "int3") or (mnemonic == "xchg" and operands == "ax, ax")


def _name(mnemonic: str) -> str:
    """Without prefixes."""
    return mnemonic if " " not in mnemonic else mnemonic.rpartition(" ")[2]


def point(address: int, end: int, mnemonic: str, operands: str, first_byte: int) -> Point | None:
    """The instruction, if it touches what is followed. Where it has a target or a slot, the rest is the same for its mnemonic."""
    name = _name(mnemonic)
    if name[0] == "j" or name in CONTROL:
        return _control(address, end, name, operands)
    if name in IMPLIED:
        return Point(address, end, LOST if first_byte == OPERAND_SIZE else effects(name, operands))
    if "sp" in operands or "bp" in operands:
        found = effects(name, operands)
        return Point(address, end, found) if found else None
    if name in WRITES_ALL and name not in ("xchg", "xadd", "mulx", "cmpxchg"):
        return Point(address, end, LOST)
    return None


def _control(address: int, end: int, name: str, operands: str) -> Point:
    if name in STOPS:
        return Point(address, end, (), Flow.STOP)
    if name == "ret":
        return Point(address, end, LOST if operands else (), Flow.RETURN)
    flow = Flow.JUMP if name == "jmp" else Flow.CALL if name == "call" else Flow.BRANCH
    if operands[:1].isdigit():
        return Point(address, end, (), flow, int(operands, 0))
    match = RIP.search(operands)
    slot = end + int(match[1] + match[2], 0) if match else None
    return Point(address, end, (), Flow.CALL if flow is Flow.CALL else Flow.INDIRECT, None, slot)


@lru_cache(1 << 12)
def effects(name: str, operands: str) -> Effects:
    """Of an instruction that names rsp or rbp, in part or whole, or implies them."""
    if name in WITHOUT_OPERANDS:
        return WITHOUT_OPERANDS[name]
    parts = operands.split(", ")
    first = parts[0]
    if name == "push":
        return _push(first)
    if name == "pop":
        return _pop(first)
    if name in ("pushf", "popf") or (name in IMPLIED) or (name in WRITES_ALL and name not in ("xchg", "xadd", "cmpxchg", "mulx")):
        return LOST
    if name in READS or (name == "imul" and len(parts) == 1):
        return ()
    if name in WRITES_ALL:
        lost = tuple(Lose(FOLLOWED[part]) for part in parts if part in FOLLOWED)
        return lost + _store(first, OTHER)
    target = FOLLOWED.get(first)
    if target is None:
        source = parts[1] if len(parts) > 1 else ""
        return _store(first, WIDE.get(source, OTHER) if name == "mov" else OTHER)
    return _write(name, target, first, parts)


def _push(what: str) -> Effects:
    if what in FOLLOWED and what not in WIDE:
        return LOST
    if (
        what.startswith("word ")
        or (len(what) == 2 and what not in ("fs", "gs", "r8", "r9") and not NUMBER.match(what))
        or what[-1:] == "w"
    ):
        return LOST
    return (Add(SP, SP, -8), Store(WIDE.get(what, OTHER), SP, 0, 8))


def _pop(what: str) -> Effects:
    if what in WIDE:
        return (Lose(SP),) if what == "rsp" else (Load(FP, SP, 0), Add(SP, SP, 8))
    if (
        what in FOLLOWED
        or what.startswith("word ")
        or what[-1:] == "w"
        or (len(what) == 2 and what not in ("fs", "gs", "r8", "r9"))
    ):
        return LOST
    return (Add(SP, SP, 8), *_store(what, OTHER))


def _store(place: str, what: Register) -> Effects:
    match = MEMORY.match(place)
    if match is None:
        return ()
    size = SIZES.get(match[1] or "", MAX_SIZE)
    return (Store(what if size == 8 else OTHER, WIDE[match[2]], _offset(match), size),)


def _offset(match: re.Match[str]) -> int:
    return int(match[3] + match[4], 0) if match[3] else 0


def _write(name: str, target: Register, first: str, parts: list[str]) -> Effects:
    """`name target, ...`, where target is rsp or rbp or a part of them."""
    source = parts[1] if len(parts) == 2 else ""
    if first not in WIDE:
        return (Lose(target),)
    if name == "mov" and source in WIDE:
        return (Add(target, WIDE[source], 0),)
    match = MEMORY.match(source)
    if name == "lea" and match:
        return (Add(target, WIDE[match[2]], _offset(match)),)
    if name == "mov" and match and target is FP:
        return (Load(FP, WIDE[match[2]], _offset(match)),)
    if name in ("add", "sub") and NUMBER.match(source):
        number = _signed(int(source, 0))
        return (Add(target, target, number if name == "add" else -number),)
    return (Lose(target),)


def _signed(number: int) -> int:
    return number - (1 << 64) if number >= 1 << 63 else number
