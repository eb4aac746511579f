"""Converts a table to what an SFrame version can express. Other ranges of code are left out, and counted by reason."""

from __future__ import annotations

from collections import Counter
from itertools import groupby, islice
from operator import eq
from typing import TYPE_CHECKING

from sframegen.format.layouts import MAX_FUNCTION_ROWS, Layout
from sframegen.format.model import OUTERMOST, FdeType, FunctionTable, Kind
from sframegen.format.words import EncodedRules, Reason, RuleWords, why_inexpressible
from sframegen.tables.narrow import narrow_table

if TYPE_CHECKING:
    from sframegen.format.abi import Abi

    Row = tuple[int, int]  # offset from the function's start, rule


def lower_table(table: FunctionTable, abi: Abi, layout: Layout) -> tuple[FunctionTable, dict[Reason, int]]:
    """Return (the functions that the version can express, bytes of code left out by reason).

    A search in the result finds the same rules as in the sorted `table`: a function ends where the next one starts, and of several
    functions with the same start the last one stays. Rows that repeat the previous row are dropped.
    """
    words = RuleWords(abi, layout)
    lowered = _LoweredFunctions(table, words)
    for function, start, end in table.searchable_ranges():
        lowered.add(function, start, end)
    return narrow_table(lowered.out, EncodedRules(lowered.out.rules, words)), dict(lowered.lost)


class _LoweredFunctions:
    """Converts functions, which are added in the order of their addresses. The result is `out`; `lost` counts bytes by reason."""

    def __init__(self, table: FunctionTable, words: RuleWords) -> None:
        self.table = table
        self.layout = words.layout
        self.out = FunctionTable(rules=[*table.rules, OUTERMOST])
        self.lost: Counter[Reason] = Counter()
        self.kinds: dict[Kind, int] = {}
        self.reasons = [why_inexpressible(rule, words) for rule in self.out.rules]
        self.flex = [not words.of(rule)[FdeType.DEFAULT] for rule in self.out.rules]
        self.not_default = {number for number, flex in enumerate(self.flex) if flex}

    def add(self, function: int, start: int, end: int) -> None:
        kind = self.table.kinds[self.table.kind[function]]
        if kind.signal > self.layout.signal:
            self.lost[Reason.SIGNAL] += end - start
            return
        if self._copy(function, kind, start, end):
            return
        rows = self._rows(function, end - start)
        if not rows and kind.fde_type is FdeType.FLEX:
            return
        if not rows:  # an outermost frame; it becomes a row, because every consumer of version 3 reads that
            self._add_ranges(kind._replace(mask=False, rep_size=0), [(0, len(self.table.rules))], start, end)
        elif kind.mask:
            reason = next(filter(None, (self.reasons[rule] for _, rule in rows)), None)
            if reason is None:
                self._emit(kind, rows, start, end)
            else:
                self.lost[reason] += end - start
        else:
            self._add_ranges(kind._replace(rep_size=0), rows, start, end)

    def _copy(self, function: int, kind: Kind, start: int, end: int) -> bool:
        """Add a function whose rows stay the same and return True, or return False. This is the fast path for most functions."""
        span = slice(self.table.first_row[function], self.table.first_row[function + 1])
        offsets, rules = self.table.row_start[span], self.table.row_rule[span]
        if not 0 < len(rules) <= MAX_FUNCTION_ROWS or kind.mask or offsets[-1] >= end - start:
            return False
        if not self.not_default.isdisjoint(rules) or any(map(eq, rules, islice(rules, 1, None))):
            return False
        out = self.out
        out.start.append(start)
        out.size.append(end - start)
        out.kind.append(self._kind(kind._replace(fde_type=FdeType.DEFAULT, rep_size=0)))
        out.row_start += offsets
        out.row_rule += rules
        out.first_row.append(len(out.row_start))
        return True

    def _rows(self, function: int, size: int) -> list[Row]:
        """Return the rows that begin in the first `size` bytes of the function, without rows that repeat the previous row."""
        rows: list[Row] = []
        for offset, rule in self.table.numbered_rows(function):
            if offset < size and not (rows and rows[-1][1] == rule):
                rows.append((offset, rule))
        return rows

    def _add_ranges(self, kind: Kind, rows: list[Row], start: int, end: int) -> None:
        """Add the parts of a function that can be expressed, and count the others as lost."""
        groups = [(reason, list(group)) for reason, group in groupby(rows, lambda row: self.reasons[row[1]])]
        limits = [start + group[0][0] for _, group in groups[1:]] + [end]
        for (reason, group), limit in zip(groups, limits, strict=True):
            if reason is not None:
                self.lost[reason] += limit - start - group[0][0]
                continue
            for first in range(0, len(group), MAX_FUNCTION_ROWS):
                after = group[first + MAX_FUNCTION_ROWS : first + MAX_FUNCTION_ROWS + 1]
                part = group[first : first + MAX_FUNCTION_ROWS]
                self._emit(kind, part, start + part[0][0], start + after[0][0] if after else limit)

    def _emit(self, kind: Kind, rows: list[Row], start: int, end: int) -> None:
        """Add a function. Its rows are moved, so that the first one begins at offset 0."""
        fde_type = FdeType(any(self.flex[rule] for _, rule in rows))
        base = rows[0][0]
        number = self._kind(kind._replace(fde_type=fde_type))
        self.out.append(start, end - start, number, [(offset - base, rule) for offset, rule in rows])

    def _kind(self, kind: Kind) -> int:
        """Return a kind's number in `kinds`. New kinds are added with both FDE types, because narrow_table changes the type."""
        if kind not in self.kinds:
            for fde_type in FdeType:
                self.kinds[kind._replace(fde_type=fde_type)] = len(self.kinds)
                self.out.kinds.append(kind._replace(fde_type=fde_type))
        return self.kinds[kind]
