"""Where arguments are, by machine: offsets in the registers that a kernel program gets, which are the kernel's struct pt_regs."""

from __future__ import annotations

import re
from typing import NamedTuple

WORD = 8

# R15 R14 R13 R12 RBP RBX R11 R10 R9 R8 RAX RCX RDX RSI RDI, then orig_rax RIP CS flags RSP
_X86_WORDS = {
    "r15": 0, "r14": 1, "r13": 2, "r12": 3, "rbp": 4, "rbx": 5, "r11": 6, "r10": 7, "r9": 8, "r8": 9, "rax": 10, "rcx": 11,
    "rdx": 12, "rsi": 13, "rdi": 14, "rsp": 19,
}  # fmt: skip
_X86_NUMBER = re.compile(r"\$(-?\w+)")
_X86_MEMORY = re.compile(r"(-?\w*)\(%(\w+)\)")
_ARM_MEMORY = re.compile(r"\[(\w+)(?:, *#?(-?\w+))?\]")


class ProbeOperand(NamedTuple):
    """A number; a register at `offset`; or memory `number` bytes after the address in that register."""

    offset: int | None
    number: int = 0
    memory: bool = False


def _x86_register(name: str) -> int | None:
    """Return the offset of %rax, %eax, %ax, %al or %r8d: of the whole register, which begins with its lower parts."""
    legacy = re.fullmatch(r"[er]?([a-d])x|([a-d])l", name)
    if legacy:
        name = f"r{legacy[1] or legacy[2]}x"
    elif match := re.fullmatch(r"[er]?(si|di|bp|sp)l?", name):
        name = f"r{match[1]}"
    elif match := re.fullmatch(r"(r\d+)[dwb]?", name):
        name = match[1]
    word = _X86_WORDS.get(name)
    return None if word is None else word * WORD


def _x86_operand(text: str) -> ProbeOperand | None:
    if match := _X86_NUMBER.fullmatch(text):
        return _number(match[1])
    if text.startswith("%"):
        offset = _x86_register(text[1:])
        return None if offset is None else ProbeOperand(offset)
    if match := _X86_MEMORY.fullmatch(text):
        offset, number = _x86_register(match[2]), _number(match[1] or "0")
        return None if offset is None or number is None else ProbeOperand(offset, number.number, memory=True)
    return None


def _arm_register(name: str) -> int | None:
    if name == "sp":
        return 31 * WORD
    match = re.fullmatch(r"[xw](\d+)", name)
    return int(match[1]) * WORD if match and int(match[1]) < 31 else None


def _arm_operand(text: str) -> ProbeOperand | None:
    if match := _ARM_MEMORY.fullmatch(text):
        offset, number = _arm_register(match[1]), _number(match[2] or "0")
        return None if offset is None or number is None else ProbeOperand(offset, number.number, memory=True)
    offset = _arm_register(text)
    return _number(text) if offset is None else ProbeOperand(offset)


def _number(text: str) -> ProbeOperand | None:
    try:
        return ProbeOperand(None, int(text, 0))
    except ValueError:
        return None


PARSERS = {"x86_64": _x86_operand, "aarch64": _arm_operand}
# The registers of a function's first arguments, for functions of programs and of the kernel.
ARGUMENTS = {
    "x86_64": tuple(_X86_WORDS[name] * WORD for name in ("rdi", "rsi", "rdx", "rcx", "r8", "r9")),
    "aarch64": tuple(number * WORD for number in range(8)),
}
