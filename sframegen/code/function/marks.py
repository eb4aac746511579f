"""The bits of results about functions, calls and points; marks.pxd has the numbers for compiled loops."""

from __future__ import annotations

from enum import IntEnum


class FunctionMark(IntEnum):
    """A result about a function. A jump to anywhere is an indirect jump whose targets are not known."""

    COMES_BACK = 1  #: it has an instruction that returns, or a jump to anywhere
    RETURNS = 2  #: an instruction that returns is reached
    JUMPS = 4  #: a jump to anywhere is reached
    KEEPS_FRAME = 8  #: all returns and jumps find the frame of the entry
    SHOWS_ITSELF = 16  #: its own code has all marks of a function: it returns, and each way out has the frame of the entry
    RETURNS_AS_ENTERED = 32  #: a return, or a jump through memory at a fixed address, finds the frame of the entry
    CONTRADICTS = 64  #: it returns with another frame than the entry's, or the walk took too many steps: there are no rows
    OVERRUNS = 256  #: a function start is inside an instruction of it
    OVERRUN_IS_REACHED = 512  #: and that instruction is reached


class CallKind(IntEnum):
    """A result about all calls of one callee."""

    GOES_ON = 1  #: code after such a call counts as reached
    ENDS = 2  #: such a call ends the code
    BY_NAME = 4  #: the callee is the number of a name, not an address


class PointNote(IntEnum):
    """A note of the walk about a point."""

    MAY_RETURN = 1  #: a call
    NEVER_RETURNS = 2  #: a call
    IS_CALLED = 4  #: a call that is reached
    IS_LAST = 8  #: a call that is reached, may return, and ends the code of its piece
    UNRESOLVED = 16  #: an indirect jump that is reached


COMES_BACK, RETURNS, JUMPS, KEEPS_FRAME, SHOWS_ITSELF, RETURNS_AS_ENTERED, CONTRADICTS, OVERRUNS, OVERRUN_IS_REACHED = FunctionMark
GOES_ON, ENDS, BY_NAME = CallKind
MAY_RETURN, NEVER_RETURNS, IS_CALLED, IS_LAST, UNRESOLVED = PointNote
