"""Many tables of functions -> one."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from sframegen.model import FunctionTable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sframegen.model import Kind, Rule


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
