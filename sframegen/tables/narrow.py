"""Cuts flexible functions where a default FDE for the rows that do not need a flexible one makes the section smaller. Compiled.

Rows take fewer bytes in a default FDE, which cannot express all rules; each cut costs an index entry and an attribute. A dynamic
program chooses the types of a function's rows: forward, it computes the fewest bytes up to a row for either type of that row, and
notes the type of the previous row that gives them; backward, it follows these notes from the better type of the last row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sframegen.base.columns import make_columns
from sframegen.format.columns import Words
from sframegen.format.model import FdeType, FunctionTable

try:
    import cython
except ImportError:
    from sframegen.base import cython_shadow as cython  # type: ignore[no-redef]

if TYPE_CHECKING:
    from sframegen.base.columns import Column
    from sframegen.format.columns import Functions
    from sframegen.format.words import EncodedRules

COMPILED: bool = cython.compiled
NO_KIND = 0xFFFF  # in place of the number of a kind


def narrow_table(table: FunctionTable, encoded: EncodedRules) -> FunctionTable:
    """Return a table with the same rule at every address that takes no more bytes. It reuses, and changes, the rows of `table`.

    In `table`, flexible functions are as long as possible. A function of PC type MASK is never cut, because its rows repeat.
    """
    kinds = table.kinds
    [default_kind] = make_columns("H", len(kinds))
    for number, kind in enumerate(kinds):
        default = kind._replace(fde_type=FdeType.DEFAULT)
        may_be_cut = default != kind and not kind.mask and default in kinds
        default_kind[number] = kinds.index(default) if may_be_cut else NO_KIND
    layout = encoded.layout
    functions = table.columns()
    [types] = make_columns("B", len(table.row_start))
    words = Words(encoded.rule_at, encoded.rule_bytes, b"")
    count = choose_types(functions, words, default_kind, layout.index_size + layout.attribute_size, types)
    if count == 0:
        return table
    out = FunctionTable.with_room(count, 0, kinds, table.rules)
    out.row_start, out.row_rule = table.row_start, table.row_rule
    cut_by_type(functions, default_kind, types, out.columns())
    return out


@cython.locals(default_kind="const unsigned short[::1]", types="unsigned char[::1]")
def choose_types(functions: Functions, words: Words, default_kind: Column, function_cost: cython.longlong, types: Column) -> int:
    """Fill `types`, the FDE type of each row of flexible functions; return the number of functions after cuts, 0 if none is cut.

    The chosen types take the fewest bytes. Where the type changes, a new function begins, which costs `function_cost` bytes.
    `default_kind`: for each flexible kind the number of the default one, for other kinds NO_KIND.
    """
    count: cython.Py_ssize_t = 0
    changed: cython.bint = False
    function: cython.Py_ssize_t
    first: cython.Py_ssize_t
    row: cython.Py_ssize_t
    rule: cython.Py_ssize_t
    chosen: cython.int
    by_default: cython.longlong  # bytes of the rows so far if the last is in a default FDE
    by_flex: cython.longlong
    before: cython.longlong  # `by_default` before this row
    previous_type: cython.int
    size: cython.longlong
    for function in range(len(functions.start)):
        count += 1
        if default_kind[functions.kind[function]] == 0xFFFF:  # NO_KIND
            continue
        first = functions.first_row[function]
        by_default = 0
        by_flex = 0
        for row in range(first, functions.first_row[function + 1]):
            rule = 2 * functions.row_rule[row]
            types[row] = 2  # the previous row's type: bit 0 if this row is in a default FDE, bit 1 if in a flexible one
            before = by_default
            if by_default > by_flex + function_cost:
                types[row] = 3
                by_default = by_flex + function_cost
            elif by_flex > by_default + function_cost:
                types[row] = 0
                by_flex = before + function_cost
            size = words.rule_at[rule + 1] - words.rule_at[rule]
            by_default += size if size else 0x40000000  # inexpressible: more bytes than any function
            size = words.rule_at[rule + 2] - words.rule_at[rule + 1]
            by_flex += size if size else 0x40000000
        chosen = 0 if by_default <= by_flex else 1
        for row in range(functions.first_row[function + 1] - 1, first - 1, -1):
            previous_type = (types[row] >> chosen) & 1
            types[row] = chosen
            changed = changed or chosen == 0
            if row > first and previous_type != chosen:
                count += 1
            chosen = previous_type
    return count if changed else 0


@cython.locals(default_kind="const unsigned short[::1]", types="const unsigned char[::1]")
def cut_by_type(functions: Functions, default_kind: Column, types: Column, out: Functions) -> None:
    """Fill `out` with the functions, cut where the type of rows changes. Both tables share their rows, whose offsets change."""
    count: cython.Py_ssize_t = 0
    function: cython.Py_ssize_t
    first: cython.Py_ssize_t
    row: cython.Py_ssize_t
    base: cython.uint
    for function in range(len(functions.start)):
        first = functions.first_row[function]
        out.start[count] = functions.start[function]
        out.kind[count] = functions.kind[function]
        out.first_row[count] = first
        base = 0
        if default_kind[functions.kind[function]] != 0xFFFF:  # NO_KIND
            for row in range(first, functions.first_row[function + 1]):
                if row > first and types[row] != types[row - 1]:
                    out.size[count] = functions.row_start[row] - base
                    count += 1
                    base = functions.row_start[row]
                    out.start[count] = functions.start[function] + base
                    out.first_row[count] = row
                out.kind[count] = functions.kind[function] if types[row] else default_kind[functions.kind[function]]
                out.row_start[row] = functions.row_start[row] - base
        out.size[count] = functions.size[function] - base
        count += 1
    out.first_row[count] = functions.first_row[len(functions.start)]
