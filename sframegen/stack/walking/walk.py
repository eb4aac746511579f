"""Walks one stack, frame by frame, from registers and the rules of the code, as far as both can be trusted. Compiled.

A walk keeps the CFA of each frame and why it ends, and asks for the rule of an address once; step.py goes from frame to frame.
`sframegen/profile/walk` is for millions of copied stacks: it needs tables of whole files, which take longer to make than a walk
of all stacks of a process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from sframegen.stack.abi.machines import walked_machine
from sframegen.stack.walking.frames import ADDRESS_MASK, End, Frame, RuleSource, WalkedStack
from sframegen.stack.walking.step import StackCursor, StackMemory, caller_rule

try:
    import cython
except ImportError:
    from sframegen.base import cython_shadow as cython  # type: ignore[no-redef]

if not cython.compiled:
    from sframegen.stack.walking.step import END_LOOP, END_NO_RETURN, END_OUTERMOST, END_UNKNOWN_REGISTER, RULE_SIGNAL
if TYPE_CHECKING:
    from sframegen.format.abi import Abi
    from sframegen.format.model import Rule
    from sframegen.stack.abi.machines import ThreadRegisters
    from sframegen.stack.walking.step import CallerRule

COMPILED: bool = cython.compiled

MAX_FRAMES = 65_536


class CodeRule:
    """The rule of some code. `failing`: for a guess, the end of the walk if it leads nowhere."""

    def __init__(self, rule: CallerRule, how: RuleSource, failing: End | None = None) -> None:
        self.rule = rule
        self.how = how
        self.failing = failing
        self.signal = rule.flags & RULE_SIGNAL != 0


def code_rule(rule: Rule, abi: Abi, how: RuleSource, *, signal: bool = False) -> CodeRule:
    return CodeRule(caller_rule(rule, abi.ra, signal=signal), how)


def guess(abi: Abi, failing: End) -> CodeRule | End:
    """Return the frame record as the rule; `failing` on an ABI without frame records."""
    rule = walked_machine(abi).guess
    return CodeRule(rule, RuleSource.FRAME_POINTER, failing) if rule else failing


class View(StackMemory, Protocol):
    """The process as a walk sees it: memory, and the rules of its code.

    `answers`: those of `describe` that still hold, by PC: where it is not exact, and where it is.
    """

    answers: tuple[dict[int, CodeRule | End], dict[int, CodeRule | End]]

    def describe(self, pc: int, exact: bool) -> CodeRule | End:
        """Return the rule of the code at `pc`; if not `exact`, of the call before it."""

    def stack_at(self, address: int) -> tuple[int, int] | None:
        """Return (start, end) of the writable memory around the address."""

    def starts_thread(self, pc: int) -> bool:
        """Return True if a new thread begins at `pc`, if its first register is 0; in its creator it is not."""

    def returns_to(self, pc: int) -> bool:
        """Return True if code may return to `pc`: a call seems to end there."""


def walk(start: ThreadRegisters, abi: Abi, view: View, limit: int = MAX_FRAMES) -> WalkedStack:
    """Return all frames of a thread that has these registers."""
    return StackWalker(start, abi, view).frames(limit)


class StackWalker:
    """The walk of one stack."""

    def __init__(self, start: ThreadRegisters, abi: Abi, view: View) -> None:
        self.view = view
        past_end = int(End.OFF_THE_STACK)  # Cython 3.1 takes no subclass of int for an int
        self.cursor = StackCursor(walked_machine(abi), start.ra_mask, view, past_end)
        for register, value in start.values.items():
            self.cursor.values[register] = value
            self.cursor.known |= 1 << register
        self.cursor.pc = start.pc
        self.cursor.lowest = start.values[abi.sp]
        self.enter_stack()
        self.instead = guess(abi, End.UNKNOWN_REGISTER)
        self.crossed: set[tuple[int, int]] = set()  # signal frames: all other steps go up the stack, so each loop has one

    def enter_stack(self) -> None:
        stack = self.view.stack_at(self.cursor.lowest)
        self.cursor.has_stack = stack is not None
        self.cursor.stack_end = min(stack[1], ADDRESS_MASK) if stack is not None else 0

    def frames(self, limit: int) -> WalkedStack:
        """Return all frames, the current one first."""
        frames: list[Frame] = []
        cursor: StackCursor = self.cursor
        sp_register: cython.int = cursor.machine.sp
        guessed: cython.bint = False
        exact: cython.bint
        signal: bool
        found: CodeRule
        end: cython.int = -1
        count: cython.Py_ssize_t = 0
        most: cython.Py_ssize_t = limit
        pc: int
        sp: int | None
        cfa: int | None
        while end < 0 and count < most:
            pc = cursor.pc
            exact = cursor.exact
            sp = cursor.values[sp_register] if cursor.is_known(sp_register) else None
            if exact and cursor.values[0] == 0 and cursor.is_known(0) and self.view.starts_thread(pc):
                frames.append(Frame(pc, sp, None, RuleSource.PROVEN, exact, guessed=guessed))
                return WalkedStack(frames, End.OUTERMOST)
            answer = self.view.answers[exact].get(pc)
            if answer is None:
                answer = self.view.describe(pc, exact)
            if not isinstance(answer, CodeRule):
                if answer is End.NOT_CODE and not exact:
                    return WalkedStack(frames, End.BAD_RETURN)
                frames.append(Frame(pc, sp, None, None, exact or self.is_put(pc), guessed=guessed))
                return WalkedStack(frames, answer)
            found = answer
            signal = found.signal  # of the code, by whatever rule the walk leaves it
            end = self.step(found)
            if end == END_UNKNOWN_REGISTER and isinstance(self.instead, CodeRule) and self.step(self.instead) < 0:
                found = self.instead
                end = -1
            if not exact and (end == END_OUTERMOST or found.failing is not None):
                exact = self.is_put(pc)
            cfa = cursor.cfa if end < 0 or end == END_NO_RETURN else None
            # What Frame(...) does, in a third of the time.
            frames.append(tuple.__new__(Frame, (pc, sp, cfa, found.how, exact, signal, guessed)))
            count += 1
            guessed = found.failing is not None
        return WalkedStack(frames, End.TOO_DEEP if end < 0 else End(end))

    def is_put(self, pc: int) -> bool:
        """Return True if a library or the kernel pushed this return address: no call ends there. For rules that do not say."""
        return not self.view.returns_to(pc)

    def step(self, found: CodeRule) -> cython.int:
        """Go to the caller, or return the End."""
        cursor: StackCursor = self.cursor
        end: cython.int = cursor.find_caller(found.rule)
        if found.failing is not None and (end >= 0 or not self.view.returns_to(cursor.ra)):
            return found.failing  # how a false frame pointer fails says nothing
        if end >= 0:
            return end
        if not found.signal:
            return cursor.go_to_caller(found.rule)
        at = (cursor.pc, cursor.cfa)
        if at in self.crossed:
            return END_LOOP
        self.crossed.add(at)
        cursor.go_to_caller(found.rule)
        self.enter_stack()
        return -1
