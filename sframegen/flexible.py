"""Flexible FDEs only for the ranges that need them: cuts a flexible function where default FDEs for its other rows are smaller."""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

from sframegen.format.words import encode_rule
from sframegen.model import FdeType, FunctionTable

if TYPE_CHECKING:
    from array import array

    from sframegen.abi import Abi
    from sframegen.format.layouts import Layout

UNSAYABLE = 1 << 30  # bytes; more than any function


def narrow(table: FunctionTable, abi: Abi, layout: Layout) -> FunctionTable:
    """The same rules at every address, in no more bytes. `table`: flexible functions as long as they can be.

    A function of PC type MASK is never cut: its rows hold in every period.
    """
    flexible = [number for number, kind in enumerate(table.kinds) if kind.fde_type is FdeType.FLEX and not kind.mask]
    functions = [function for number in flexible for function in _indexes(table.kind, number)]
    if not functions:
        return table
    cost = _Cost(table, abi, layout)
    out = FunctionTable(kinds=table.kinds, rules=table.rules, row_rule=table.row_rule)
    done = 0
    for function in sorted(functions):
        _copy(table, out, done, function)
        _cut(table, out, function, cost)
        done = function + 1
    _copy(table, out, done, len(table))
    return out


class _Cost:
    """Bytes of a rule in each FDE type, its info byte and words."""

    def __init__(self, table: FunctionTable, abi: Abi, layout: Layout) -> None:
        self.of = [
            [len(encode_rule(rule, fde_type, abi, layout) or b"") or UNSAYABLE for fde_type in FdeType] for rule in table.rules
        ]
        self.function = layout.index_size + layout.attribute_size


def _indexes(column: array[int], value: int) -> list[int]:
    found: list[int] = []
    at = -1
    while True:
        try:
            at = column.index(value, at + 1)
        except ValueError:
            return found
        found.append(at)


def _copy(table: FunctionTable, out: FunctionTable, first: int, end: int) -> None:
    """Functions first .. end - 1 as they are."""
    out.start += table.start[first:end]
    out.size += table.size[first:end]
    out.kind += table.kind[first:end]
    out.first_row += table.first_row[first + 1 : end + 1]
    out.row_start += table.row_start[table.first_row[first] : table.first_row[end]]


def _cut(table: FunctionTable, out: FunctionTable, function: int, cost: _Cost) -> None:
    """The function as its ranges of one type each."""
    first, end = table.first_row[function], table.first_row[function + 1]
    types = _types([cost.of[table.row_rule[row]] for row in range(first, end)], cost.function)
    kind = table.kinds[table.kind[function]]
    for fde_type, group in groupby(zip(types, range(first, end), strict=True), key=itemgetter(0)):
        rows = [row for _, row in group]
        base = table.row_start[rows[0]]
        limit = table.row_start[rows[-1] + 1] if rows[-1] + 1 < end else table.size[function]
        out.start.append(table.start[function] + base)
        out.size.append(limit - base)
        out.kind.append(table.kinds.index(kind._replace(fde_type=FdeType(fde_type))))
        out.first_row.append(rows[-1] + 1)
        out.row_start.extend(table.row_start[row] - base for row in rows)


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
