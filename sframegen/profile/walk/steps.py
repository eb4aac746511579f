"""Walks one copied stack from frame to frame by the rules of decoded tables, as the kernel program walks stacks in place. Compiled.

Each frame is appended as a packed frame: the number of the file that is mapped at its address, and the link-time address there.
The caller is then found by the first of these that applies: the rule in the file's table; the registers that the kernel saved for a
signal handler; the rule of code that only returns; the frame pointer, which is a guess, because it may hold anything.

Functions that return "the End" return its number, or -1 if the walk goes on.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag
from typing import TYPE_CHECKING, Protocol

from sframegen.stack.walking.frames import End
from sframegen.stack.walking.step import CallerRule, RuleFlag, StackCursor

try:
    import cython
except ImportError:
    from sframegen.base import cython_shadow as cython  # type: ignore[no-redef]

if TYPE_CHECKING:
    from array import array

    from sframegen.base.columns import Bytes, Column
    from sframegen.stack.walking.step import WalkedMachine

COMPILED: bool = cython.compiled


class CodeKind(IntFlag):
    """Flags of the code at an address. The last is for code without a file, which has none of the others."""

    RETURNS = 1  # the address may be a return address, because a call ends there
    RETURNS_FROM_SIGNAL = 2  # the address is in code that returns from a signal handler
    STARTS_THREAD = 4  # a thread begins there, if its first register is 0
    ONLY_RETURNS = 8  # the code drops its frame and returns: WalkedMachine's rule `returning` holds there


class Search(IntEnum):
    """Results of a search in a table, in place of a rule number, which is above 0."""

    NO_RULE = 0
    NO_TABLE = -1
    DAMAGED = -2


if not cython.compiled:
    END_OUTERMOST, END_NO_MAPPING, END_NO_TABLE, END_NO_RULE = End.OUTERMOST, End.NO_MAPPING, End.NO_TABLE, End.NO_RULE
    END_GUESS_FAILED, END_UNKNOWN_REGISTER, END_TOO_DEEP = End.GUESS_FAILED, End.UNKNOWN_REGISTER, End.TOO_DEEP
    END_DAMAGED_TABLE, END_COPY_TOO_SHORT, END_OTHER_STACK = End.DAMAGED_TABLE, End.COPY_TOO_SHORT, End.OTHER_STACK
    CODE_RETURNS, CODE_RETURNS_FROM_SIGNAL, CODE_STARTS_THREAD, CODE_ONLY_RETURNS = map(int, CodeKind)
    SEARCH_NO_RULE, SEARCH_NO_TABLE, SEARCH_DAMAGED = map(int, Search)
    RULE_OUTERMOST, RULE_SIGNAL = int(RuleFlag.OUTERMOST), int(RuleFlag.SIGNAL)


class SpanColumns:
    """The executable mappings of one process (following.files.CodeSpan) as columns, by ascending address."""

    def __init__(self, start: Column, end: Column, bias: Column, file: Column) -> None:
        self.start, self.end, self.bias, self.file = start, end, bias, file


class TableColumns:
    """A DecodedTable whose parts begin at indices of 32-bit words. `final`: False if a proof may still add missing rules."""

    def __init__(
        self, words: Column, base: int, pages: int, index_at: int, rows_at: int, rules_at: int, rows: int, rules: int
    ) -> None:
        self.words, self.base, self.pages = words, base, pages
        self.index_at, self.rows_at, self.rules_at = index_at, rows_at, rules_at
        self.rows, self.rules = rows, rules
        self.final = True


class CodeKinds(Protocol):
    """Classifies code for a walk, where no rule applies."""

    def kind(self, file: int, address: int) -> int:
        """Return the CodeKind of the code at a link-time address, or, if `file` is 0, at a run-time address."""


class Steps:
    """One walk. Call `begin` and set `depth`, then call `run`. `cursor`: the current frame.

    The first `depth` elements of `frames` are the packed frames so far. `missing`: after NO_TABLE, the file without a table.
    """

    def __init__(self, machine: WalkedMachine, ra_mask: int, frames: array[int], code_kinds: CodeKinds, guess: CallerRule) -> None:
        """`ra_mask`: the bits of a return address that are not its signature. `guess`: the machine's rule for a frame record."""
        self.cursor = StackCursor(machine, ra_mask, None, END_COPY_TOO_SHORT)
        self.frames, self.code_kinds, self.guess = frames, code_kinds, guess
        self.rule = CallerRule(0, 0, 0, 0, 0, 0, 0)  # a second result of `find_rule`, which fills it
        self.tables: list[TableColumns | None] = []
        self.guessed = False
        self.final = True  # `final` of the table that was searched last
        self.depth = self.span = self.missing = 0
        self.stack_start = self.stack_size = 0
        # In an expression, Cython makes a literal of more than 31 bits a Python object; these typed attributes are C integers.
        self.mask = 0xFFFFFFFFFFFFFFFF
        self.address_mask = (1 << 48) - 1

    def add_table(self, number: int, table: TableColumns | None) -> None:
        """Use a table for the file with this number; None: it is not ready yet. A table without pages has no rules."""
        self.tables.extend([None] * (number + 1 - len(self.tables)))
        self.tables[number] = table

    def begin(self, values: array[int], known: int, pc: int, exact: bool, guessed: bool, stack_start: int, stack: Bytes) -> None:
        """Set the frame at which the walk begins; the arguments are those of copied_stack.Start. The caller sets `depth`."""
        cursor: StackCursor = self.cursor
        cursor.values = values
        cursor.known = known
        cursor.pc = pc
        cursor.exact = exact
        cursor.lowest = values[cursor.machine.sp] if known >> cursor.machine.sp & 1 else stack_start
        cursor.set_window(stack_start, stack)
        cursor.on_other_stack = False
        self.guessed = guessed
        self.span = 0
        self.stack_start = stack_start
        self.stack_size = len(stack)
        cursor.stack_end = (self.stack_start + self.stack_size) & self.mask

    def run(self, spans: SpanColumns) -> int:
        """Append all frames from the current one to the end of the walk; return the End."""
        end: cython.int = -1
        while end < 0:
            end = self.walk_frame(spans)
        return end

    def walk_frame(self, spans: SpanColumns) -> cython.int:
        """Append the current frame and go to its caller; return the End, or -1."""
        cursor: StackCursor = self.cursor
        address: cython.ulonglong = cursor.pc if cursor.exact else (cursor.pc - 1) & self.mask
        guessed: cython.ulonglong = self.guessed
        rule: cython.Py_ssize_t = 0
        if not self.find_span(spans, address):
            if cursor.exact and self.depth < len(self.frames):
                self.frames[self.depth] = guessed << 63 | address & self.address_mask
                self.depth += 1
            return END_NO_MAPPING
        if self.depth == len(self.frames):
            return END_TOO_DEEP
        file: cython.ulonglong = spans.file[self.span]
        bias: cython.ulonglong = spans.bias[self.span]
        pc_in_file: cython.ulonglong = (cursor.pc - bias) & self.mask
        self.frames[self.depth] = guessed << 63 | file << 48 | ((address - bias) & self.address_mask)  # as FileFrame.pack
        self.depth += 1
        if file:
            # In a new thread, the system call that created it returns 0.
            may_start_thread: cython.bint = cursor.exact and cursor.values[0] == 0 and cursor.is_known(0)
            if may_start_thread and self.code_kinds.kind(file, pc_in_file) & CODE_STARTS_THREAD:
                return END_OUTERMOST
            rule = self.find_rule(file, (address - bias) & self.mask)
            if rule == SEARCH_NO_RULE and not self.final and not self.code_kinds.kind(file, pc_in_file) & CODE_RETURNS_FROM_SIGNAL:
                self.missing = file  # wait for the proof, which may add the rule
                rule = SEARCH_NO_TABLE
            elif not cursor.exact and self.is_pushed(rule, file, pc_in_file):
                self.frames[self.depth - 1] += 1  # from pc - 1 to pc
        if rule < 0:
            return END_NO_TABLE if rule == SEARCH_NO_TABLE else END_DAMAGED_TABLE
        if rule == SEARCH_NO_RULE:
            return self.step_without_rule(spans, file, pc_in_file)
        end: cython.int = self.step(spans, self.rule)
        if end != END_UNKNOWN_REGISTER:
            return end
        return -1 if self.step(spans, self.guess) < 0 else END_UNKNOWN_REGISTER

    def step_without_rule(self, spans: SpanColumns, file: cython.ulonglong, pc_in_file: cython.ulonglong) -> cython.int:
        """Go to the caller of code that no table describes; return the End, or -1."""
        cursor: StackCursor = self.cursor
        if file and self.code_kinds.kind(file, pc_in_file) & CODE_RETURNS_FROM_SIGNAL:
            return self.step(spans, cursor.machine.signal)
        if not file and cursor.is_known(cursor.machine.sp) and self.code_kinds.kind(0, cursor.pc) & CODE_ONLY_RETURNS:
            return self.step(spans, cursor.machine.returning)  # type: ignore[arg-type] # not None, since such code was found
        if not cursor.is_known(cursor.machine.fp):
            return END_NO_RULE
        end: cython.int = self.step(spans, self.guess)
        # Other failures show only that the register is no frame pointer, so they all count as a failed guess.
        return end if end < 0 or end in (END_COPY_TOO_SHORT, END_OTHER_STACK) else END_GUESS_FAILED

    def is_pushed(self, rule: cython.Py_ssize_t, file: cython.ulonglong, pc_in_file: cython.ulonglong) -> cython.bint:
        """Return True if the kernel or a library pushed this return address. Then no call precedes it, and the frame is at `pc`.

        `rule`: the result of `find_rule`, which has set `self.rule`.
        """
        if rule > 0 and self.rule.flags & RULE_SIGNAL:
            return True
        if rule < 0 or (rule > 0 and not self.rule.flags & RULE_OUTERMOST):
            return False
        kind: cython.int = self.code_kinds.kind(file, pc_in_file)
        return kind & CODE_RETURNS_FROM_SIGNAL != 0 or kind & CODE_RETURNS == 0

    def step(self, spans: SpanColumns, rule: CallerRule) -> cython.int:
        """Go to the caller by this rule; return the End, or -1. If that fails, the current frame stays."""
        cursor: StackCursor = self.cursor
        end: cython.int = cursor.find_caller(rule)
        if end >= 0:
            return end
        if rule.guess and not self.returns_to(spans, cursor.ra):
            return END_GUESS_FAILED
        cursor.go_to_caller(rule)
        if rule.flags & RULE_SIGNAL:  # the interrupted code may be on another stack
            cursor.on_other_stack = (cursor.lowest - self.stack_start) & self.mask > self.stack_size
            cursor.stack_end = self.mask if cursor.on_other_stack else (self.stack_start + self.stack_size) & self.mask
        self.guessed = rule.guess
        return -1

    def find_span(self, spans: SpanColumns, address: cython.ulonglong) -> cython.bint:
        """Set `span` to the index of the span that contains this run-time address. Return False if there is none."""
        low: cython.Py_ssize_t = 0
        high: cython.Py_ssize_t = len(spans.start)
        if self.span < high and spans.start[self.span] <= address < spans.end[self.span]:
            return True
        while low < high:
            middle: cython.Py_ssize_t = (low + high) >> 1
            if spans.start[middle] <= address:
                low = middle + 1
            else:
                high = middle
        if low == 0 or address >= spans.end[low - 1]:
            return False
        self.span = low - 1
        return True

    def find_rule(self, file: cython.ulonglong, address: cython.ulonglong) -> cython.Py_ssize_t:
        """Set `rule` to the rule for a link-time address, and return its number, or a Search."""
        if file >= len(self.tables) or self.tables[file] is None:
            self.missing = file
            return SEARCH_NO_TABLE
        table: TableColumns = self.tables[file]  # type: ignore[assignment] # tested above
        self.final = table.final
        offset: cython.ulonglong = (address - table.base) & self.mask
        page: cython.ulonglong = offset >> 8  # decoded_table.PAGE_BITS
        if page >= table.pages:
            return SEARCH_NO_RULE
        low: cython.ulonglong = table.words[table.index_at + page]
        high: cython.ulonglong = table.words[table.index_at + page + 1]
        if low > high or high > table.rows:
            return SEARCH_DAMAGED
        offset &= 0xFF
        while low < high:  # the number of rows that begin at or before the address
            middle: cython.ulonglong = (low + high) >> 1
            if table.words[table.rows_at + middle] & 0xFF <= offset:
                low = middle + 1
            else:
                high = middle
        if low == 0:
            return SEARCH_NO_RULE
        rule: cython.ulonglong = table.words[table.rows_at + low - 1] >> 16  # decoded_table.ROW_RULE_SHIFT
        if rule >= table.rules:
            return SEARCH_DAMAGED
        if rule:
            self.set_rule(table.words, table.rules_at + 4 * rule)
        return rule

    def set_rule(self, words: Column, at: cython.Py_ssize_t) -> cython.int:
        """Set `rule` from four words: signed offsets of CFA, RA and FP; then their registers and the flags, a byte each."""
        rule: CallerRule = self.rule
        registers: cython.uint = words[at + 3]
        rule.cfa_offset = self.sign_extend(words[at])
        rule.ra_offset = self.sign_extend(words[at + 1])
        rule.fp_offset = self.sign_extend(words[at + 2])
        rule.cfa_register = registers & 0xFF
        rule.ra_register = registers >> 8 & 0xFF
        rule.fp_register = registers >> 16 & 0xFF
        rule.flags = registers >> 24
        return 0

    def sign_extend(self, word: cython.ulonglong) -> cython.ulonglong:
        """Return a signed 32-bit word, sign-extended to 64 bits."""
        return (word - ((word >> 31) << 32)) & self.mask

    def returns_to(self, spans: SpanColumns, pc: cython.ulonglong) -> cython.bint:
        """Return True if code may return to `pc`: always in code without a file, because interpreters push addresses themselves."""
        if not self.find_span(spans, (pc - 1) & self.mask):
            return False
        file: cython.ulonglong = spans.file[self.span]
        return file == 0 or self.code_kinds.kind(file, (pc - spans.bias[self.span]) & self.mask) != 0
