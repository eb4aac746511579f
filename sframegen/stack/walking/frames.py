"""Frames and stacks: the result of a walk, and how each frame was found."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from sframegen.stack.walking.ends import End

ADDRESS_MASK = 0xFFFFFFFFFFFFFFFF


class How(Enum):
    """How the CFA of a frame, and so its caller, was found."""

    SFRAME = "sframe"
    CONVERTED = "converted"  # a section made from the object's call frame information
    PROVEN = "proven"  # from the instructions of code that nothing describes
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
        return self.pc if self.exact or self.signal else self.pc - 1


class WalkedStack(NamedTuple):
    """The frames of a thread, the innermost first."""

    frames: list[Frame]
    end: End


class Thread(NamedTuple):
    """One thread's stack, the innermost frame first. `detail`: more about the end, or empty. `idle`: it waited."""

    tid: int
    name: str
    frames: list[Frame]
    end: End
    detail: str = ""
    idle: bool = False
