"""How a frame is packed into 64 bits, and why walks end. The kernel program has the same numbers (bpf/walker.h)."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

GUESSED = 1 << 63  # a frame pointer led to this frame, without a rule
FILE_SHIFT = 48
FILE_MASK = 0x7FFF
ADDRESS_MASK = (1 << FILE_SHIFT) - 1
NO_FILE = 0  # the address is a run-time address
KERNEL_FILE = FILE_MASK  # the address is the kernel's
MAX_FILES = FILE_MASK - 1
MAX_DEPTH = 1024  # frames of one stack


class End(IntEnum):
    """Why a walk ended."""

    OUTERMOST = 0
    NO_RETURN = 1
    NO_PROCESS = 2
    NO_MAPPING = 3
    NO_TABLE = 4
    NO_RULE = 5
    GUESS_FAILED = 6
    UNREADABLE = 7
    NOT_ASCENDING = 8
    UNKNOWN_REGISTER = 9
    TOO_DEEP = 10
    DAMAGED_TABLE = 11
    KERNEL_THREAD = 12
    COPY_TOO_SHORT = 13
    NO_STACK = 14


IN_WORDS = {
    End.OUTERMOST: "the outermost frame",
    End.NO_RETURN: "the return address is 0",
    End.NO_PROCESS: "the mappings of the process were not known",
    End.NO_MAPPING: "the PC is in no known mapping",
    End.NO_TABLE: "the table of the code was not ready",
    End.NO_RULE: "no rule describes this code, and no frame pointer leads on",
    End.GUESS_FAILED: "no rule describes this code, and frame pointers lead nowhere",
    End.UNREADABLE: "memory that the rule reads cannot be read",
    End.NOT_ASCENDING: "the caller's frame would not be nearer to the base of the stack",
    End.UNKNOWN_REGISTER: "a register that the rule needs is not known in this frame",
    End.TOO_DEEP: "there are more frames than are walked",
    End.DAMAGED_TABLE: "the table of the file is damaged",
    End.KERNEL_THREAD: "a thread of the kernel has no user stack",
    End.COPY_TOO_SHORT: "the copy of the stack ends before the stack",
    End.NO_STACK: "the stack is gone: the process was ending, or executing another program",
}
COMPLETE = frozenset({End.OUTERMOST, End.NO_RETURN, End.KERNEL_THREAD})
UNFINISHED = frozenset({End.NO_PROCESS, End.NO_MAPPING, End.NO_TABLE})  # walked to the end later, from a copy of the stack


class Frame(NamedTuple):
    """`address`: link-time in the file, of the instruction that runs or calls; run-time for NO_FILE and KERNEL_FILE."""

    file: int
    address: int
    guessed: bool = False

    def packed(self) -> int:
        return self.guessed << 63 | self.file << FILE_SHIFT | self.address & ADDRESS_MASK


def unpacked(frame: int) -> Frame:
    return Frame(frame >> FILE_SHIFT & FILE_MASK, frame & ADDRESS_MASK, bool(frame & GUESSED))


def files_of(frames: Iterable[int]) -> set[int]:
    """Return the numbers of all files of packed frames."""
    return {frame >> FILE_SHIFT & FILE_MASK for frame in frames}
