"""Walks one stack, frame by frame, from registers and the rules of the code, as far as both can be trusted. Compiled.

For each frame, the walk asks its `View` for the rule of the code at the PC, and the cursor of step.py goes to the caller. The walk
records each frame's CFA, and ends with the reason (End) why no caller is found. If a rule needs a register that is not known in the
frame, the frame pointer is tried instead, as a guess. For millions of copied stacks there is `sframegen/profile/walk`, whose tables
of whole files take longer to make than this walk takes for all stacks of a process.
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
    """The rule of some code, and how it was found. `failing`: for a guess, the end of the walk if the guess leads nowhere."""

    def __init__(self, rule: CallerRule, how: RuleSource, failing: End | None = None) -> None:
        self.rule = rule
        self.how = how
        self.failing = failing
        self.signal = rule.flags & RULE_SIGNAL != 0


def code_rule(rule: Rule, abi: Abi, how: RuleSource, *, signal: bool = False) -> CodeRule:
    return CodeRule(caller_rule(rule, abi.ra, signal=signal), how)


def guess(abi: Abi, failing: End) -> CodeRule | End:
    """Return a rule that trusts the frame pointer, or `failing` if the ABI has none."""
    rule = walked_machine(abi).guess
    return CodeRule(rule, RuleSource.FRAME_POINTER, failing) if rule else failing


class View(StackMemory, Protocol):
    """The process as a walk sees it: memory, and the rules of its code.

    `answers`: results of `describe` that are still valid, by PC: those for a PC that is not exact, and those for an exact one.
    """

    answers: tuple[dict[int, CodeRule | End], dict[int, CodeRule | End]]

    def describe(self, pc: int, exact: bool) -> CodeRule | End:
        """Return the rule of the code at `pc`, or of the call before it if not `exact`; an End if there is none."""

    def stack_at(self, address: int) -> tuple[int, int] | None:
        """Return (start, end) of the writable memory around the address."""

    def starts_thread(self, pc: int) -> bool:
        """Return True if a new thread begins at `pc`. That needs register 0 to be 0 too, for it is not in the thread's creator."""

    def returns_to(self, pc: int) -> bool:
        """Return True if code may return to `pc`, because a call seems to end there."""


def walk(start: ThreadRegisters, abi: Abi, view: View, limit: int = MAX_FRAMES) -> WalkedStack:
    """Return the frames of a thread that has these registers, at most `limit` of them."""
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
        self.fallback = guess(abi, End.UNKNOWN_REGISTER)
        # (PC, CFA) of signal frames. Each loop of frames has one of these, because all other steps lead up the stack.
        self.signal_frames: set[tuple[int, int]] = set()

    def enter_stack(self) -> None:
        stack = self.view.stack_at(self.cursor.lowest)
        self.cursor.has_stack = stack is not None
        self.cursor.stack_end = min(stack[1], ADDRESS_MASK) if stack is not None else 0

    def frames(self, limit: int) -> WalkedStack:
        """Return the frames, at most `limit` of them, the current one first."""
        frames: list[Frame] = []
        cursor: StackCursor = self.cursor
        sp_register: cython.int = cursor.machine.sp
        guessed: cython.bint = False
        exact: cython.bint
        signal: bool
        rule: CodeRule
        end: cython.int = -1
        count: cython.Py_ssize_t = 0
        max_count: cython.Py_ssize_t = limit
        pc: int
        sp: int | None
        cfa: int | None
        while end < 0 and count < max_count:
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
                frames.append(Frame(pc, sp, None, None, exact or self.was_pushed(pc), guessed=guessed))
                return WalkedStack(frames, answer)
            rule = answer
            signal = rule.signal  # kept because another rule may be tried below
            end = self.step(rule)
            if end == END_UNKNOWN_REGISTER and isinstance(self.fallback, CodeRule) and self.step(self.fallback) < 0:
                rule = self.fallback
                end = -1
            if not exact and (end == END_OUTERMOST or rule.failing is not None):
                exact = self.was_pushed(pc)
            cfa = cursor.cfa if end < 0 or end == END_NO_RETURN else None
            # This does what Frame(...) does in a third of the time.
            frames.append(tuple.__new__(Frame, (pc, sp, cfa, rule.how, exact, signal, guessed)))
            count += 1
            guessed = rule.failing is not None
        return WalkedStack(frames, End.TOO_DEEP if end < 0 else End(end))

    def was_pushed(self, pc: int) -> bool:
        """Return True if a library or the kernel pushed this return address, because no call ends there."""
        return not self.view.returns_to(pc)

    def step(self, rule: CodeRule) -> cython.int:
        """Go to the caller by this rule and return -1, or return the End."""
        cursor: StackCursor = self.cursor
        end: cython.int = cursor.find_caller(rule.rule)
        if rule.failing is not None and (end >= 0 or not self.view.returns_to(cursor.ra)):
            return rule.failing  # not `end`, because the way in which a wrong frame pointer fails means nothing
        if end >= 0:
            return end
        if not rule.signal:
            return cursor.go_to_caller(rule.rule)
        frame = (cursor.pc, cursor.cfa)
        if frame in self.signal_frames:
            return END_LOOP
        self.signal_frames.add(frame)
        cursor.go_to_caller(rule.rule)
        self.enter_stack()
        return -1
