"""Walks one stack, frame by frame, from registers and the rules of the code, as far as both can be trusted. Compiled.

It keeps the CFA of each frame and why the walk ends, reads any memory, and asks for the rule of an address once.
`sframegen/profile/walk` walks copies only, millions of them, with the table of a whole file: to make that takes longer than to walk
all stacks of a process.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from cfi.columns import zeros
from sframegen.stack.abi.machines import conventions_of
from sframegen.stack.walking.frames import ADDRESS_MASK, GUESS_REACH, End, Frame, How, Walk

try:
    import cython
except ImportError:
    from cfi import cython_shadow as cython  # type: ignore[no-redef]

if TYPE_CHECKING:
    from cfi.columns import Bytes
    from sframegen.format.abi import Abi
    from sframegen.format.model import Rule
    from sframegen.stack.abi.registers import Registers

COMPILED: bool = cython.compiled

MAX_FRAMES = 65_536
REGISTERS = 64  # more than any DWARF number that is known of a thread


class Described:
    """The rule of some code. `sp_is_cfa`: the caller's SP follows from the CFA.

    `failing`: for a guess, the end of the walk if it leads nowhere.
    """

    def __init__(self, rule: Rule, signal: bool, how: How, sp_is_cfa: bool = True, failing: End | None = None) -> None:
        self.signal = signal
        self.how = how
        self.sp_is_cfa = sp_is_cfa
        self.failing = failing
        self.cfa = None if rule.cfa is None else Base(rule.cfa.register, rule.cfa.offset, rule.cfa.deref)
        self.ra = None if rule.ra is None else Base(rule.ra.register, rule.ra.offset, rule.ra.deref)
        self.fp = None if rule.fp is None else Base(rule.fp.register, rule.fp.offset, rule.fp.deref)


class Base:
    """A `Where` in numbers: `number` is the register's, REGISTERS for one that is never known, and -1 for the CFA."""

    def __init__(self, register: int | None, offset: int, deref: bool) -> None:
        self.number = -1 if register is None else min(register, REGISTERS)
        self.offset = offset & ADDRESS_MASK
        self.deref = deref


def guess(abi: Abi, failing: End) -> Described | End:
    """Return the frame record as the rule; `failing` on an ABI without frame records."""
    record = conventions_of(abi).frame_record
    return Described(record.rule, False, How.FRAME_POINTER, record.sp_is_cfa, failing) if record else failing


class View(Protocol):
    """What a walk asks about a process.

    `answers`: those of `describe` that still hold, by PC: where it is not exact, and where it is.
    """

    answers: tuple[dict[int, Described | End], dict[int, Described | End]]

    def word(self, address: int) -> int | None:
        """Return 8 bytes of memory; None if they cannot be read."""

    def window(self, address: int) -> tuple[int, Bytes]:
        """Return some memory around the address and where it begins, to be read without asking again; of any size, or none."""

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
    return Walker(start, abi, view).frames(limit)


class Walker:
    """The current frame of a walk, with its known registers: `values` by DWARF number, and in `known` a bit for each."""

    def __init__(self, start: Registers, abi: Abi, view: View) -> None:
        self.abi = abi
        self.view = view
        self.mask = ADDRESS_MASK  # as attributes these are C's numbers
        self.guess_reach = GUESS_REACH
        self.ra_mask = start.ra_mask & ADDRESS_MASK
        self.values = zeros("Q", REGISTERS)
        self.known = 0
        self.remember(start.values)
        self.pc = start.pc
        self.exact = True
        self.sp_register = abi.sp
        self.fp_register = abi.fp
        self.sp_offset = abi.sp_offset & ADDRESS_MASK
        self.lowest = start.values[abi.sp]  # allowed SP of the caller
        self.stack_end = 0
        self.has_stack = False
        self.enter_stack(start.values[abi.sp])
        self.crossed: set[tuple[int, int]] = set()  # signal frames: all other steps go up the stack, so each loop has one
        self.little = abi.byte_order == "little"
        self.window: Bytes = b""
        self.window_start = 0
        self.window_size = 0

    def remember(self, registers: dict[int, int]) -> None:
        """Take more registers as known."""
        one: cython.ulonglong = 1
        register: cython.Py_ssize_t
        for register, value in registers.items():
            self.values[register] = value
            self.known |= one << register

    def enter_stack(self, sp: int) -> None:
        stack = self.view.stack_at(sp)
        self.has_stack = stack is not None
        self.stack_end = min(stack[1], ADDRESS_MASK) if stack is not None else 0

    def frames(self, limit: int) -> Walk:
        """Return all frames, the current one first."""
        frames: list[Frame] = []
        guessed: cython.bint = False
        exact: cython.bint
        found: Described
        end: End | None = None
        count: cython.Py_ssize_t = 0
        most: cython.Py_ssize_t = limit
        pc: int
        sp: int | None
        cfa: int | None
        while end is None and count < most:
            pc = self.pc
            exact = self.exact
            sp = self.values[self.sp_register] if self.is_known(self.sp_register) else None
            answer = self.view.answers[exact].get(pc)
            if answer is None:
                answer = self.view.describe(pc, exact)
            if not isinstance(answer, Described):
                if answer is End.NOT_CODE and not exact:
                    return Walk(frames, End.BAD_RETURN)
                frames.append(Frame(pc, sp, None, None, exact, guessed=guessed))
                return Walk(frames, answer)
            found = answer
            try:
                cfa = self.step(found)
            except _EndedError as error:
                found, cfa, end = self.without(found, error)
            # What Frame(...) does, in a third of the time.
            frames.append(tuple.__new__(Frame, (pc, sp, cfa, found.how, exact, found.signal, guessed)))
            count += 1
            guessed = found.failing is not None
        return Walk(frames, End.TOO_DEEP if end is None else end)

    def step(self, found: Described) -> cython.ulonglong:
        """Go to the caller; return the CFA of the frame before. Raises _EndedError if there is no caller."""
        cfa: cython.ulonglong
        ra: cython.ulonglong
        sp: cython.ulonglong
        fp: cython.ulonglong = self.values[self.fp_register]
        one: cython.ulonglong = 1
        keeps_fp: cython.bint = self.is_known(self.fp_register)
        saved: dict[int, int] = {}
        if found.cfa is None:
            raise _EndedError(End.OUTERMOST)
        if not self.has_stack:
            raise _EndedError(End.NO_STACK)
        cfa = self.place(found.cfa, 0)
        ra = self.place(found.ra, cfa) if found.ra is not None else self.value_of(self.abi.ra)
        ra &= self.ra_mask
        sp = (cfa + self.sp_offset) & self.mask
        if found.fp is not None:
            keeps_fp = found.fp.number < 0 or self.is_known(found.fp.number)  # else it is lost, which few frames notice
            if keeps_fp:
                fp = self.place(found.fp, cfa)
        if found.signal:  # the interrupted code may be on another stack
            saved = self.interrupted(ra)
            sp = saved.get(self.sp_register, sp)
            if (self.pc, cfa) in self.crossed:
                raise _EndedError(End.LOOP)
            self.crossed.add((self.pc, cfa))
            self.enter_stack(sp)
        elif sp < self.lowest or (sp == self.lowest and not self.exact):
            raise _EndedError(End.NOT_ASCENDING)
        elif sp > self.stack_end or (found.failing is not None and sp - self.lowest > self.guess_reach):
            raise _EndedError(End.OFF_THE_STACK)
        if ra == 0:
            raise _EndedError(End.NO_RETURN, cfa)
        if found.failing is not None and (cfa & 7 or not self.view.returns_to(ra)):
            raise _EndedError(End.BAD_RETURN)
        self.known = 0
        if keeps_fp:
            self.values[self.fp_register] = fp
            self.known |= one << self.fp_register
        if found.sp_is_cfa:
            self.values[self.sp_register] = (cfa + self.sp_offset) & self.mask
            self.known |= one << self.sp_register
        if found.signal:
            self.remember(saved)
        self.pc = ra
        self.exact = found.signal
        self.lowest = sp
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

    def is_known(self, register: cython.Py_ssize_t) -> cython.bint:
        return register < 64 and self.known >> register & 1 != 0

    def value_of(self, register: cython.Py_ssize_t) -> cython.ulonglong:
        if not self.is_known(register):
            raise _EndedError(End.UNKNOWN_REGISTER)
        return self.values[register]

    def place(self, base: Base, cfa: cython.ulonglong) -> cython.ulonglong:
        value: cython.ulonglong = cfa if base.number < 0 else self.value_of(base.number)
        value = (value + base.offset) & self.mask
        return self.word(value) if base.deref else value

    def word(self, address: cython.ulonglong) -> cython.ulonglong:
        """Return the 8 bytes at that address."""
        at: cython.ulonglong = (address - self.window_start) & self.mask
        value: cython.ulonglong = 0
        i: cython.Py_ssize_t
        if self.window_size < 8 or at > self.window_size - 8:
            self.window_start, self.window = self.view.window(address)
            self.window_size = len(self.window)
            at = (address - self.window_start) & self.mask
            if self.window_size < 8 or at > self.window_size - 8:
                word = self.view.word(address)
                if word is None:
                    raise _EndedError(End.UNREADABLE)
                return word
        for i in range(8):
            value |= self.byte(at + i) << (8 * i if self.little else 56 - 8 * i)
        return value

    def byte(self, at: cython.Py_ssize_t) -> cython.ulonglong:
        return self.window[at]

    def interrupted(self, pc: int) -> dict[int, int]:
        """Return all registers, if the kernel saved them with that PC; else none."""
        if not self.is_known(self.sp_register):
            return {}
        sp: int = self.values[self.sp_register]
        for context in conventions_of(self.abi).contexts:
            if self.view.word(sp + context.pc) == pc:
                saved = {number: self.view.word(sp + place) for number, place in context.places.items()}
                return {number: value for number, value in saved.items() if value is not None}
        return {}
