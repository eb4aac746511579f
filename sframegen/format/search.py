"""An address -> the function, the row and the rule that cover it."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

from sframegen.format.model import OUTERMOST, FdeType, Kind, Rule

if TYPE_CHECKING:
    from sframegen.format.model import FunctionTable


class Match(NamedTuple):
    """The function and the row that cover an address."""

    start: int
    size: int
    kind: Kind
    row_offset: int | None  # where the row begins, bytes from the function's start or the repeated block's; None without rows
    rule: Rule


def look_up_in(table: FunctionTable, pc: int) -> Match | None:
    """Look up `pc` in a table whose functions ascend, if there is no section to search."""
    function = bisect_right(table.start, pc) - 1
    if function < 0 or pc - table.start[function] >= table.size[function]:
        return None
    kind = table.kinds[table.kind[function]]
    offset = pc - table.start[function]
    first, end = table.first_row[function], table.first_row[function + 1]
    head = (table.start[function], table.size[function], kind)
    if first == end:
        return Match(*head, None, OUTERMOST) if kind.fde_type is FdeType.DEFAULT else None
    row = bisect_right(table.row_start, offset % kind.rep_size if kind.mask and kind.rep_size else offset, first, end) - 1
    return None if row < first else Match(*head, table.row_start[row], table.rules[table.row_rule[row]])
