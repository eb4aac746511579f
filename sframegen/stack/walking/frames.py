"""Frames and stacks: the result of a walk, how each frame was found, and why the walk ended."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

ADDRESS_MASK = 0xFFFFFFFFFFFFFFFF
GUESS_REACH = 1 << 16  # bytes: a frame pointer to a frame farther up may lead to another stack


class End(Enum):
    """Why a walk ended, in the words that users see."""

    OUTERMOST = "the outermost frame"
    NO_RETURN = "the return address is 0"
    NOT_CODE = "the PC is not in executable memory"
    NO_SECTION = "there is no SFrame section for this code"
    NO_FRAME_POINTER = "there is no SFrame section for this code, and frame pointers lead nowhere"
    NOT_COVERED = "the SFrame section does not cover this code"
    DAMAGED = "the SFrame section is damaged"
    NOT_READ = "the tables of this code were not read"
    PENDING = "the section for this code is still to be made"
    NO_STACK = "SP is not in writable memory"
    UNKNOWN_REGISTER = "a register that the rule needs is not known in this frame"
    UNREADABLE = "memory that the rule reads cannot be read"
    NOT_ASCENDING = "the caller's frame would not be nearer to the base of the stack"
    OFF_THE_STACK = "the caller's frame would be outside of the stack"
    BAD_RETURN = "the return address is not in executable memory"
    LOOP = "the frames repeat"
    TOO_DEEP = "there are more frames than are walked"


class How(Enum):
    """How the CFA of a frame, and so its caller, was found."""

    SFRAME = "sframe"
    CONVERTED = "converted"  # a section made from the object's call frame information
    REGISTERED = "registered"  # the process registered code without an ELF file
    SIGNAL = "signal context"  # the registers that the kernel saved
    FRAME_POINTER = "frame pointer"


class Frame(NamedTuple):
    """`exact`: the next instruction is at `pc`; else a call ends there. `how`, `cfa`: None if unknown.

    `guessed`: a frame pointer led here. Code may use that register for anything else, so this frame and its callers may be wrong.
    """

    pc: int
    sp: int | None
    cfa: int | None
    how: How | None
    exact: bool
    signal: bool = False
    guessed: bool = False

    @property
    def code(self) -> int:
        """An address within the current instruction of the frame."""
        return self.pc if self.exact else self.pc - 1


class Walk(NamedTuple):
    """The frames of a thread, the innermost first."""

    frames: list[Frame]
    end: End


class Thread(NamedTuple):
    """One thread's stack, the innermost frame first. `detail`: more about the end, or empty. `idle`: it waited; None: unknown."""

    tid: int
    name: str
    frames: list[Frame]
    end: End
    detail: str = ""
    idle: bool | None = None
