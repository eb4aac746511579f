"""From an address to its row, as an unwinder does: one binary search over the functions, one over the function's rows."""

from __future__ import annotations

from bisect import bisect_right
from itertools import islice
from operator import le
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sframegen.model import FunctionTable, Rule


def is_sorted(table: FunctionTable) -> bool:
    """Whether function starts ascend, without which no search finds anything."""
    return all(map(le, table.start, islice(table.start, 1, None)))


def locate(table: FunctionTable, pc: int) -> tuple[int, int] | None:
    """(function, row) that cover `pc`; None in the gaps. `table` is sorted."""
    function = bisect_right(table.start, pc) - 1
    if function < 0:
        return None
    offset = pc - table.start[function]
    if offset >= table.size[function]:
        return None
    kind = table.kinds[table.kind[function]]
    if kind.mask and kind.rep_size:
        offset %= kind.rep_size
    first = table.first_row[function]
    row = bisect_right(table.row_start, offset, first, table.first_row[function + 1]) - 1
    return (function, row) if row >= first else None


def find(table: FunctionTable, pc: int) -> Rule | None:
    """The rule at link-time address `pc`; None where no function covers it. `table` is sorted."""
    place = locate(table, pc)
    return None if place is None else table.rules[table.row_rule[place[1]]]
