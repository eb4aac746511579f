"""Flexible FDEs only for the ranges that need them: cuts a flexible function where default FDEs for its other rows are smaller."""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

from cfi.columns import zeros
from sframegen.format.model import FdeType, FunctionTable
from sframegen.tables.join import of_kinds

if TYPE_CHECKING:
    from sframegen.format.words import EncodedRules

UNSAYABLE = 1 << 30  # bytes; more than any function


def narrow(table: FunctionTable, encoded: EncodedRules) -> FunctionTable:
    """The same rules at every address, in no more bytes. `table`: flexible functions as long as they can be; its rows become ours.

    A function of PC type MASK is never cut: its rows hold in every period.
    """
    flexible = bytes(kind.fde_type is FdeType.FLEX and not kind.mask for kind in table.kinds)
    functions = zeros("I", len(table))
    del functions[of_kinds(table.kind, flexible, functions) :]
    if not functions:
        return table
    out = FunctionTable(kinds=table.kinds, rules=table.rules, row_start=table.row_start, row_rule=table.row_rule)
    done = 0
    for function in functions:
        types = _types_of(table, function, encoded)
        if not all(types):
            _copy(table, out, done, function)
            _cut(table, out, function, types)
            done = function + 1
    _copy(table, out, done, len(table))
    return out


def _copy(table: FunctionTable, out: FunctionTable, first: int, end: int) -> None:
    """Functions first .. end - 1. Their rows are there: a million of them would take longer to copy than all that is cut."""
    out.start += table.start[first:end]
    out.size += table.size[first:end]
    out.kind += table.kind[first:end]
    out.first_row += table.first_row[first + 1 : end + 1]


def _types_of(table: FunctionTable, function: int, encoded: EncodedRules) -> list[int]:
    """The FDE type of each row of a function."""
    rules = table.row_rule[table.first_row[function] : table.first_row[function + 1]]
    costs = [[encoded.size(rule, fde_type) or UNSAYABLE for fde_type in FdeType] for rule in rules]
    return _types(costs, encoded.layout.index_size + encoded.layout.attribute_size)


def _cut(table: FunctionTable, out: FunctionTable, function: int, types: list[int]) -> None:
    """The function as its ranges of one type each."""
    first, end = table.first_row[function], table.first_row[function + 1]
    kind = table.kinds[table.kind[function]]
    for fde_type, group in groupby(zip(types, range(first, end), strict=True), key=itemgetter(0)):
        rows = [row for _, row in group]
        base = table.row_start[rows[0]]
        limit = table.row_start[rows[-1] + 1] if rows[-1] + 1 < end else table.size[function]
        out.start.append(table.start[function] + base)
        out.size.append(limit - base)
        out.kind.append(table.kinds.index(kind._replace(fde_type=FdeType(fde_type))))
        out.first_row.append(rows[-1] + 1)
        for row in rows:
            out.row_start[row] -= base


def _types(costs: list[list[int]], function_cost: int) -> list[int]:
    """The FDE type of each row, so that rows and functions together are smallest; a change of type costs a function."""
    total = [0, 0]  # of the rows so far, the last in that type
    came_from: list[tuple[int, int]] = []
    for row_costs in costs:
        before = tuple(fde_type if total[fde_type] <= total[1 - fde_type] + function_cost else 1 - fde_type for fde_type in (0, 1))
        total = [
            total[before[fde_type]] + function_cost * (before[fde_type] != fde_type) + row_costs[fde_type] for fde_type in (0, 1)
        ]
        came_from.append((before[0], before[1]))
    fde_type = 0 if total[0] <= total[1] else 1
    types = []
    for before in reversed(came_from):
        types.append(fde_type)
        fde_type = before[fde_type]
    return types[::-1]
