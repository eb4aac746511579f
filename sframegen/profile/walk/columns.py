"""What a walk over a copied stack reads: spans of code, decoded tables, what differs between machines. Compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    import cython
except ImportError:
    from cfi import cython_shadow as cython  # type: ignore[no-redef]

if TYPE_CHECKING:
    from cfi.columns import Column

COMPILED: bool = cython.compiled


class SpanColumns:
    """Executable mappings of one process, ascending: following.files.Span by columns."""

    def __init__(self, start: Column, end: Column, bias: Column, file: Column) -> None:
        self.start = start
        self.end = end
        self.bias = bias
        self.file = file


class TableColumns:
    """A DecodedTable: places are numbers of 32-bit words. `guessed`: where it has no rule, frame pointers may lead on."""

    def __init__(
        self, words: Column, base: int, pages: int, index_at: int, rows_at: int, rules_at: int, rows: int, rules: int
    ) -> None:
        self.words = words
        self.base = base
        self.pages = pages
        self.index_at = index_at
        self.rows_at = rows_at
        self.rules_at = rules_at
        self.rows = rows
        self.rules = rules
        self.guessed = True


class MachineColumns:
    """Registers are DWARF numbers. `guess` and `signal`: rules for code without one, as the four words of a table's rule.

    `context_place`: of each register, where the kernel saved it, from SP in the code that a signal handler returns to; -1: nowhere.
    `context_pc`: the same for the PC. `sp_is_cfa`: after a guess, the caller's SP is the CFA.
    """

    def __init__(
        self,
        sp: int,
        fp: int,
        sp_offset: int,
        context_pc: int,
        context_place: Column,
        guess: Column,
        signal: Column,
        sp_is_cfa: bool,
    ) -> None:
        self.sp = sp
        self.fp = fp
        self.sp_offset = sp_offset
        self.context_pc = context_pc
        self.context_place = context_place
        self.guess = guess
        self.signal = signal
        self.sp_is_cfa = sp_is_cfa
