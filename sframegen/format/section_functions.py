"""The functions of a section, one after the other, with their names and rows: for people who want no columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from sframegen.format.equations import rule_fields

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sframegen.elf.function_names import NamedAddresses
    from sframegen.format.abi import Abi
    from sframegen.format.model import FunctionTable, Kind, Rule

COLUMNS_OF_PARTS = {"base": "string", "offset": "int64", "deref": "bool_"}  # of cfa, ra and fp, and their types in pyarrow


class FunctionRow(NamedTuple):
    """A row of a function: its rule holds from `offset` to the next row's."""

    offset: int  #: bytes from the function's start; of a function whose rows repeat, from the repeated block's
    rule: Rule  #: how to find the caller's frame


class SframeFunction(NamedTuple):
    """A function of a section, or several that follow one another and have equal rules: then it has the name of the first.

    Without rows it is the outermost frame, as a thread's first function is.
    """

    start: int  #: link-time address
    size: int  #: bytes
    name: str | None  #: from the file's symbol table; None where that has no name for its start
    kind: Kind  #: the properties that all its rows share
    rows: tuple[FunctionRow, ...]  #: in ascending order


def functions_of_section(table: FunctionTable, names: NamedAddresses) -> Iterator[SframeFunction]:
    """Yield the functions in the section's order. Raises FormatError if the symbol table is damaged."""
    for number, (start, size, kind) in enumerate(zip(table.start, table.size, table.kind, strict=True)):
        rows = tuple(FunctionRow(offset, rule) for offset, rule in table.rows(number))
        yield SframeFunction(start, size, names.exactly_at(start), table.kinds[kind], rows)


def arrow_table(table: FunctionTable, names: NamedAddresses, abi: Abi) -> Any:  # noqa: ANN401 - pyarrow has no types
    """Return a `pyarrow.Table` with a line for each row. Raises ImportError without pyarrow, and FormatError as above."""
    import pyarrow as pa  # noqa: PLC0415 - optional

    counts = (end - first for first, end in zip(table.first_row, table.first_row[1:], strict=False))
    function = pa.array([number for number, count in enumerate(counts) for _ in range(count)], pa.uint32())
    rule = pa.array(table.row_rule, pa.uint32())
    named = [names.exactly_at(start) for start in table.start]
    fields = [rule_fields(one, abi) for one in table.rules]
    columns = {
        "start": pa.array(table.start, pa.uint64()).take(function),
        "size": pa.array(table.size, pa.uint32()).take(function),
        "name": pa.array(named, pa.string()).take(function),
        "offset": pa.array(table.row_start, pa.uint32()),
        "rule": pa.array([one["rule"] for one in fields], pa.string()).take(rule),
    }
    for part in ("cfa", "ra", "fp"):
        for name, kind in COLUMNS_OF_PARTS.items():
            values = [one[part] and one[part][name] for one in fields]
            columns[f"{part}_{name}"] = pa.array(values, getattr(pa, kind)()).take(rule)
    return pa.table(columns)
