"""Many tables of functions -> one."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import TYPE_CHECKING

from cfi.errors import FormatError
from sframegen.model import FunctionTable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sframegen.format.decode import SframeSection
    from sframegen.model import Kind, Rule


def merge(pieces: list[SframeSection], code: list[tuple[int, int]]) -> tuple[FunctionTable, int]:
    """(what the sections say together, functions that are left out because no code is there). `code`: ranges, ascending.

    Sections of different versions are merged, those of different ABIs are not: FormatError. Linkers leave functions of which they
    dropped the code, at address 0 or elsewhere outside of it.
    """
    first = pieces[0]
    for number, piece in enumerate(pieces):
        if piece.abi.sframe_id != first.abi.sframe_id:
            what = f"piece {number} is for {piece.abi.name}, the first one for {first.abi.name}"
            raise FormatError(what, ".sframe", piece.address - first.address)
    table = gather(piece.table for piece in pieces) if len(pieces) > 1 else first.table
    if not code:  # a file that loads nothing
        return table, 0
    starts = [start for start, _ in code]
    alive = []
    for function, (start, size) in enumerate(zip(table.start, table.size, strict=True)):
        place = bisect_right(starts, start) - 1
        if place >= 0 and size and start + size <= code[place][1]:
            alive.append(function)
    dead = len(table) - len(alive)
    return (select(table, alive) if dead else table), dead


def select(table: FunctionTable, functions: Iterable[int]) -> FunctionTable:
    """The table of some functions, in that order."""
    out = FunctionTable(kinds=table.kinds, rules=table.rules)
    for function in functions:
        rows = slice(table.first_row[function], table.first_row[function + 1])
        out.start.append(table.start[function])
        out.size.append(table.size[function])
        out.kind.append(table.kind[function])
        out.row_start += table.row_start[rows]
        out.row_rule += table.row_rule[rows]
        out.first_row.append(len(out.row_start))
    return out


def gather(tables: Iterable[FunctionTable]) -> FunctionTable:
    """All functions, those of one table behind those of the one before; each kind and each rule once."""
    out = FunctionTable()
    kinds: dict[Kind, int] = {}
    rules: dict[Rule, int] = {}
    for table in tables:
        kind_of = [kinds.setdefault(kind, len(kinds)) for kind in table.kinds]
        rule_of = [rules.setdefault(rule, len(rules)) for rule in table.rules]
        rows = len(out.row_start)
        out.start += table.start
        out.size += table.size
        out.kind += array("H", map(kind_of.__getitem__, table.kind))
        out.first_row += array("I", [rows + row for row in table.first_row[1:]])
        out.row_start += table.row_start
        out.row_rule += array("I", map(rule_of.__getitem__, table.row_rule))
    out.kinds, out.rules = list(kinds), list(rules)
    return out
