"""The result of a walk: frames, how each was found, and why the walk ended."""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import NamedTuple, Self


class End(IntEnum):
    """The reason why a walk ended, as a number, which compiled code and the BPF program share, and in `words` for users."""

    words: str

    def __new__(cls, number: int, words: str = "") -> Self:
        member = int.__new__(cls, number)
        member._value_ = number
        member.words = words
        return member

    OUTERMOST = 0, "the outermost frame"
    NO_RETURN = 1, "the return address is 0"
    NO_PROCESS = 2, "the mappings of the process were not known"
    NO_MAPPING = 3, "the PC is in no known mapping"
    NO_TABLE = 4, "the table of the code was not ready"
    NO_RULE = 5, "no rule describes this code, and no frame pointer leads on"
    GUESS_FAILED = 6, "no rule describes this code, and frame pointers lead nowhere"
    UNREADABLE = 7, "memory that the rule reads cannot be read"
    NOT_ASCENDING = 8, "the caller's frame would not be nearer to the base of the stack"
    UNKNOWN_REGISTER = 9, "a register that the rule needs is not known in this frame"
    TOO_DEEP = 10, "there are more frames than are walked"
    DAMAGED_TABLE = 11, "the table of the file is damaged"
    KERNEL_THREAD = 12, "a thread of the kernel has no user stack"
    COPY_TOO_SHORT = 13, "the copy of the stack ends before the stack"
    STACK_GONE = 14, "the stack is gone: the process was ending, or executing another program"
    OTHER_STACK = 15, "the caller is on another stack, which was not walked"
    # Only the command `stack` has the following reasons, because it looks at the sections and the memory of one process.
    NOT_CODE = 16, "the PC is not in executable memory"
    BAD_RETURN = 17, "the return address is not in executable memory"
    NO_SECTION = 18, "there is no SFrame section for this code"
    NO_FRAME_POINTER = 19, "there is no SFrame section for this code, and frame pointers lead nowhere"
    NOT_COVERED = 20, "the SFrame section does not cover this code"
    DAMAGED_SECTION = 21, "the SFrame section is damaged"
    NOT_READ = 22, "the tables of this code were not read"
    PENDING = 23, "the section for this code is still to be made"
    NO_STACK = 24, "SP is not in writable memory"
    OFF_THE_STACK = 25, "the caller's frame would be outside of the stack"
    LOOP = 26, "the frames repeat"


BY_NUMBER = {int(end): end for end in End}  # a look-up here is quicker than End(number)
COMPLETE = frozenset({End.OUTERMOST, End.NO_RETURN, End.KERNEL_THREAD})  # the ends of walks that saw the whole stack
ADDRESS_MASK = 0xFFFFFFFFFFFFFFFF


class RuleSource(Enum):
    """How the CFA of a frame was found, and so its caller."""

    SFRAME = "sframe"
    CONVERTED = "converted"  # by a section made from the object's call frame information
    PROVEN = "proven"  # from the instructions of code that nothing describes
    REGISTERED = "registered"  # by a table that the process registered for code without an ELF file
    SIGNAL = "signal context"  # from the registers that the kernel saved
    FRAME_POINTER = "frame pointer"


class Frame(NamedTuple):
    """A frame of a stack. `exact`: `pc` is the next instruction; if False, a call ends there. `how`, `cfa`: None if unknown.

    `guessed`: a frame pointer led here. Code may use that register for anything else, so this frame and its callers may be wrong.
    """

    pc: int
    sp: int | None
    cfa: int | None
    how: RuleSource | None
    exact: bool
    signal: bool = False
    guessed: bool = False

    @property
    def lookup_address(self) -> int:
        """Return an address within the frame's current instruction, at which its rule and name are looked up."""
        return self.pc if self.exact or self.signal else self.pc - 1


class WalkedStack(NamedTuple):
    """The frames of a thread, the innermost first, and why there are no more."""

    frames: list[Frame]
    end: End


class Thread(NamedTuple):
    """One thread's stack, the innermost frame first. `detail`: more about `end`, or empty. `idle`: the thread waited."""

    tid: int
    name: str
    frames: list[Frame]
    end: End
    detail: str = ""
    idle: bool = False
