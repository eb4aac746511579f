"""One thread's stack as two tracers saw it at the same moment: how far they agree, and why no further."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sframegen.stack.walking.frames import End

if TYPE_CHECKING:
    from .code import Code


class Stack(NamedTuple):
    """(PC, CFA) of each frame, the innermost first; a CFA is None where nothing was said of it. `complete`: to the stack's base.

    `guessed`: numbers of the frames that nothing describes, and whose caller is known by frame pointers, if it is.
    """

    frames: list[tuple[int, int | None]]
    end: str
    complete: bool
    guessed: frozenset[int] = frozenset()


class Compared(NamedTuple):
    """`equal`: this many frames from the innermost on; `reason`: why not all, or empty; `differs`: nothing excuses it."""

    equal: int
    reason: str = ""
    differs: bool = False


def compare(ours: Stack, gdb: Stack, code: Code) -> Compared:
    at = _first_difference(ours, gdb)
    if at < min(len(ours.frames), len(gdb.frames)):
        pc, cfa = ours.frames[at]
        # A PC comes from the frame before, a CFA from this one.
        guilty = at if pc == gdb.frames[at][0] else at - 1
        if guilty in ours.guessed:
            return Compared(at, f"we guess by the frame pointer: nothing describes {code.place(_code(ours, guilty))}")
        if guilty >= 0 and (why := code.without_cfi(_code(gdb, guilty))):
            return Compared(at, f"gdb guesses: {why}")
        there = ", ".join(f"{name} {_text(one)}" for name, one in (("ours", (pc, cfa)), ("gdb's", gdb.frames[at])))
        return Compared(at, f"frame {at} of {len(ours.frames)} and {len(gdb.frames)}: {there}", differs=True)
    if len(gdb.frames) < len(ours.frames):
        why = code.without_cfi(_code(gdb, at - 1))
        return Compared(at, f"gdb ends: {gdb.end}" + (f"; {why}" if why else ""), differs=gdb.complete and not why)
    if len(ours.frames) < len(gdb.frames):
        address = _code(ours, at - 1)
        why = code.without_cfi(address) or code.unsaid(address)
        if not why and at > 1 and ours.end == End.UNKNOWN_REGISTER.words:
            why = code.needs_register(address)
        if not why and at - 1 in ours.guessed:
            why = f"nothing describes {code.place(address)}"
        return Compared(at, f"we end: {ours.end}" + (f"; {why}" if why else ""), differs=not why)
    return Compared(at)


def _first_difference(ours: Stack, gdb: Stack) -> int:
    for at, (one, other) in enumerate(zip(ours.frames, gdb.frames, strict=False)):
        if one[0] != other[0] or (one[1] != other[1] and None not in (one[1], other[1])):
            return at
    return min(len(ours.frames), len(gdb.frames))


def _code(stack: Stack, at: int) -> int:
    """An address within the instruction that the frame is at."""
    return stack.frames[at][0] - (at > 0)


def _text(frame: tuple[int, int | None]) -> str:
    pc, cfa = frame
    return f"pc {pc:#x} cfa {cfa:#x}" if cfa is not None else f"pc {pc:#x} no cfa"
