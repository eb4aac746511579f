"""Converts a table to what an SFrame version can express. Other ranges of code are left out, and counted by reason.

Each function is divided where its rows become expressible or inexpressible, or where it has too many rows for one FDE. A part is
flexible if one of its rules needs that; narrow_table then cuts flexible parts where that saves bytes.
"""

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
    return narrow_table(lowered.out, EncodedRules(lowered.out.rules, words)), dict(lowered.lost_bytes)


class _LoweredFunctions:
    """Converts functions, which are added in the order of their addresses, to the table `out`. `lost_bytes`: by reason."""

    def __init__(self, table: FunctionTable, words: RuleWords) -> None:
        self.table = table
        self.layout = words.layout
        self.out = FunctionTable(rules=[*table.rules, OUTERMOST])
        self.outermost = len(table.rules)  # the number of that rule
        self.lost_bytes: Counter[Reason] = Counter()
        self.kinds: dict[Kind, int] = {}
        self.reasons = [why_inexpressible(rule, words) for rule in self.out.rules]
        self.needs_flex = [not words.encode(rule)[FdeType.DEFAULT] for rule in self.out.rules]
        self.flex_rules = {rule for rule, needs_flex in enumerate(self.needs_flex) if needs_flex}

    def add(self, function: int, start: int, end: int) -> None:
        kind = self.table.kinds[self.table.kind[function]]
        if kind.signal and not self.layout.signal:
            self.lost_bytes[Reason.SIGNAL] += end - start
            return
        if self._copy(function, kind, start, end):
            return
        rows = self._distinct_rows(function, end - start)
        if not rows and kind.fde_type is FdeType.FLEX:
            return
        if not rows:  # an outermost frame; it becomes a row, because every consumer of version 3 reads that
            self._add_expressible_parts(kind._replace(mask=False, rep_size=0), [(0, self.outermost)], start, end)
        elif kind.mask:
            reason = next(filter(None, (self.reasons[rule] for _, rule in rows)), None)
            if reason is None:
                self._append(kind, rows, start, end)
            else:
                self.lost_bytes[reason] += end - start
        else:
            self._add_expressible_parts(kind._replace(rep_size=0), rows, start, end)

    def _copy(self, function: int, kind: Kind, start: int, end: int) -> bool:
        """Add a function whose rows stay the same and return True, or return False. This is the fast path for most functions."""
        row_slice = slice(self.table.first_row[function], self.table.first_row[function + 1])
        offsets, rules = self.table.row_start[row_slice], self.table.row_rule[row_slice]
        if not 0 < len(rules) <= MAX_FUNCTION_ROWS or kind.mask or offsets[-1] >= end - start:
            return False
        if not self.flex_rules.isdisjoint(rules) or any(map(eq, rules, islice(rules, 1, None))):
            return False
        out = self.out
        out.start.append(start)
        out.size.append(end - start)
        out.kind.append(self._number_of_kind(kind._replace(fde_type=FdeType.DEFAULT, rep_size=0)))
        out.row_start += offsets
        out.row_rule += rules
        out.first_row.append(len(out.row_start))
        return True

    def _distinct_rows(self, function: int, size: int) -> list[Row]:
        """Return the rows that begin in the first `size` bytes of the function, without rows that repeat the previous row."""
        rows: list[Row] = []
        for offset, rule in self.table.numbered_rows(function):
            if offset < size and not (rows and rows[-1][1] == rule):
                rows.append((offset, rule))
        return rows

    def _add_expressible_parts(self, kind: Kind, rows: list[Row], start: int, end: int) -> None:
        """Add the parts of a function that can be expressed, and count the bytes of the others as lost."""
        groups = [(reason, list(group)) for reason, group in groupby(rows, lambda row: self.reasons[row[1]])]
        limits = [start + group[0][0] for _, group in groups[1:]] + [end]
        for (reason, group), limit in zip(groups, limits, strict=True):
            if reason is not None:
                self.lost_bytes[reason] += limit - start - group[0][0]
                continue
            for first in range(0, len(group), MAX_FUNCTION_ROWS):
                next_first = first + MAX_FUNCTION_ROWS
                end_of_part = start + group[next_first][0] if next_first < len(group) else limit
                self._append(kind, group[first:next_first], start + group[first][0], end_of_part)

    def _append(self, kind: Kind, rows: list[Row], start: int, end: int) -> None:
        """Add a function. Its rows are moved, so that the first one begins at offset 0."""
        fde_type = FdeType(any(self.needs_flex[rule] for _, rule in rows))
        base = rows[0][0]
        kind_number = self._number_of_kind(kind._replace(fde_type=fde_type))
        self.out.append(start, end - start, kind_number, [(offset - base, rule) for offset, rule in rows])

    def _number_of_kind(self, kind: Kind) -> int:
        """Return a kind's number in `kinds`. New kinds are added with both FDE types, because narrow_table changes the type."""
        if kind not in self.kinds:
            for fde_type in FdeType:
                self.kinds[kind._replace(fde_type=fde_type)] = len(self.kinds)
                self.out.kinds.append(kind._replace(fde_type=fde_type))
        return self.kinds[kind]
