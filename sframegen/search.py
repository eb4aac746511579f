"""From an address to its row, as an unwinder does: one binary search over the functions, one over the function's rows."""

from __future__ import annotations

from bisect import bisect_right
from itertools import islice
from operator import le
from typing import TYPE_CHECKING

from sframegen.model import OUTERMOST

if TYPE_CHECKING:
    from sframegen.model import FunctionTable, Rule


def is_sorted(table: FunctionTable) -> bool:
    """Whether function starts ascend, without which no search finds anything."""
    return all(map(le, table.start, islice(table.start, 1, None)))


def locate(table: FunctionTable, pc: int) -> tuple[int, int | None] | None:
    """(function, row) that cover `pc`; row None where the function has no rows; None in the gaps. `table` is sorted."""
    function = bisect_right(table.start, pc) - 1
    if function < 0:
        return None
    offset = pc - table.start[function]
    if offset >= table.size[function]:
        return None
    first, end = table.first_row[function], table.first_row[function + 1]
    if first == end:
        return function, None
    kind = table.kinds[table.kind[function]]
    if kind.mask and kind.rep_size:
        offset %= kind.rep_size
    row = bisect_right(table.row_start, offset, first, end) - 1
    return (function, row) if row >= first else None


def rule_at(table: FunctionTable, place: tuple[int, int | None]) -> Rule | None:
    """The rule at a place that `locate` found.

    A default function without rows is an outermost frame; a flexible one without rows says nothing.
    """
    function, row = place
    if row is None:
        return None if table.kinds[table.kind[function]].fde_type else OUTERMOST
    return table.rules[table.row_rule[row]]


def find(table: FunctionTable, pc: int) -> Rule | None:
    """The rule at link-time address `pc`; None where no function covers it. `table` is sorted."""
    place = locate(table, pc)
    return None if place is None else rule_at(table, place)
