"""Walks one stack, frame by frame, from registers and the rules of the code, as far as these and the stack can be trusted."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from sframegen.stack.abi.machines import conventions_of
from sframegen.stack.walking.frames import ADDRESS_MASK, Described, End, Frame, How, Walk

if TYPE_CHECKING:
    from sframegen.format.abi import Abi
    from sframegen.format.model import Where
    from sframegen.stack.abi.registers import Registers

MAX_FRAMES = 65_536


def guess(abi: Abi, failing: End) -> Described | End:
    """Return the frame record as the rule; `failing` on an ABI without frame records."""
    record = conventions_of(abi).frame_record
    return Described(record.rule, False, How.FRAME_POINTER, record.sp_is_cfa, failing) if record else failing


class View(Protocol):
    """What a walk asks about a process."""

    def word(self, address: int) -> int | None:
        """Return 8 bytes of memory; None if they cannot be read."""

    def describe(self, pc: int, exact: bool) -> Described | End:
        """Return the rule of the code at `pc`; if not `exact`, of the call before it."""

    def stack_at(self, address: int) -> tuple[int, int] | None:
        """Return (start, end) of the writable memory around the address."""

    def returns_to(self, pc: int) -> bool:
        """Return True if code may return to `pc`: a call seems to end there."""


class _EndedError(Exception):
    def __init__(self, end: End, cfa: int | None = None) -> None:
        self.end = end
        self.cfa = cfa  # if it can be trusted


def walk(start: Registers, abi: Abi, view: View, limit: int = MAX_FRAMES) -> Walk:
    """Return all frames of a thread that has these registers."""
    walker = _Walker(start, abi, view)
    frames: list[Frame] = []
    guessed = False
    end = None
    while end is None and len(frames) < limit:
        pc, sp, exact = walker.pc, walker.values.get(abi.sp), walker.exact
        found = view.describe(pc, exact)
        if isinstance(found, End):
            if found is End.NOT_CODE and not exact:
                return Walk(frames, End.BAD_RETURN)
            frames.append(Frame(pc, sp, None, None, exact, guessed=guessed))
            return Walk(frames, found)
        try:
            cfa: int | None = walker.step(found)
        except _EndedError as error:
            found, cfa, end = walker.without(found, error)
        frames.append(Frame(pc, sp, cfa, found.how, exact, found.signal, guessed))
        guessed = found.failing is not None
    return Walk(frames, End.TOO_DEEP if end is None else end)


class _Walker:
    """The current frame of a walk, with its known registers."""

    def __init__(self, start: Registers, abi: Abi, view: View) -> None:
        self.abi, self.view, self.ra_mask = abi, view, start.ra_mask
        self.pc, self.values, self.exact = start.pc, start.values, True
        self.lowest = start.values[abi.sp]  # allowed SP of the caller
        self.stack = view.stack_at(self.lowest)
        self.crossed: set[tuple[int, int]] = set()  # signal frames: all other steps go up the stack, so each loop has one

    def step(self, found: Described) -> int:
        """Go to the caller; return the CFA of the frame before. Raises _EndedError if there is no caller."""
        stack, rule, abi = self.stack, found.rule, self.abi
        if rule.cfa is None:
            raise _EndedError(End.OUTERMOST)
        if stack is None:
            raise _EndedError(End.NO_STACK)
        cfa = self._value(rule.cfa, 0)
        ra = (self._value(rule.ra, cfa) if rule.ra else self._known(abi.ra)) & self.ra_mask
        sp = cfa + abi.sp_offset & ADDRESS_MASK
        values = {abi.sp: sp} if found.sp_is_cfa else {}
        if rule.fp is None:
            if abi.fp in self.values:
                values[abi.fp] = self.values[abi.fp]
        elif rule.fp.register is None or rule.fp.register in self.values:  # else it is lost, which few frames notice
            values[abi.fp] = self._value(rule.fp, cfa)
        if found.signal:  # the interrupted code may be on another stack
            values |= self._interrupted(ra)
            sp = values.get(abi.sp, sp)
            if (self.pc, cfa) in self.crossed:
                raise _EndedError(End.LOOP)
            self.crossed.add((self.pc, cfa))
            self.stack = self.view.stack_at(sp)
        elif sp < self.lowest or (sp == self.lowest and not self.exact):
            raise _EndedError(End.NOT_ASCENDING)
        elif sp > stack[1]:
            raise _EndedError(End.OFF_THE_STACK)
        if ra == 0:
            raise _EndedError(End.NO_RETURN, cfa)
        if found.failing is not None and (cfa & 7 or not self.view.returns_to(ra)):
            raise _EndedError(End.BAD_RETURN)
        self.pc, self.values, self.exact, self.lowest = ra, values, found.signal, sp
        return cfa

    def without(self, found: Described, error: _EndedError) -> tuple[Described, int | None, End | None]:
        """Return another rule that leads on, with the CFA of the frame before; or the failing rule, and the end."""
        if found.failing is not None:  # how a false frame pointer fails says nothing
            return (found, error.cfa, error.end) if error.end is End.NO_RETURN else (found, None, found.failing)
        instead = guess(self.abi, error.end)
        if error.end is End.UNKNOWN_REGISTER and not isinstance(instead, End):
            with suppress(_EndedError):
                return instead, self.step(instead), None
        return found, error.cfa, error.end

    def _known(self, register: int) -> int:
        value = self.values.get(register)
        if value is None:
            raise _EndedError(End.UNKNOWN_REGISTER)
        return value

    def _value(self, where: Where, cfa: int) -> int:
        register, offset, deref = where
        value = (cfa if register is None else self._known(register)) + offset & ADDRESS_MASK
        if not deref:
            return value
        word = self.view.word(value)
        if word is None:
            raise _EndedError(End.UNREADABLE)
        return word

    def _interrupted(self, pc: int) -> dict[int, int]:
        """Return all registers, if the kernel saved them with that PC; else none."""
        sp = self.values.get(self.abi.sp)
        if sp is None:
            return {}
        for context in conventions_of(self.abi).contexts:
            if self.view.word(sp + context.pc) == pc:
                saved = {number: self.view.word(sp + place) for number, place in context.places.items()}
                return {number: value for number, value in saved.items() if value is not None}
        return {}
