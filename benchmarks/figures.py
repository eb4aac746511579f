"""Measurements as tables: one for each part, a column for each file, a row for each thing, in units or as shares of another."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

END = "<!-- end -->"


class Figure(NamedTuple):
    """`value` of `what` for a file, in `unit`. With `of` it is shown as a share: of that of the same file, or of the file `of`."""

    part: str
    what: str
    file: str
    value: float
    unit: str
    of: str = ""


class Row(NamedTuple):
    """One line of the table: by file, shares of `of`, or without it figures in `unit`."""

    part: str
    what: str
    unit: str
    of: str
    cells: dict[str, float]


def table_rows(figures: Iterable[Figure]) -> list[Row]:
    """In the order of first appearance, parts together. A share of a figure that is missing is left out."""
    figures = list(figures)
    known = {(one.part, one.what, one.file): one.value for one in figures}
    found: dict[tuple[str, str, str], Row] = {}
    for part in dict.fromkeys(one.part for one in figures):
        for one in figures:
            if one.part != part:
                continue
            row = found.setdefault((part, one.what, one.of), Row(part, one.what, one.unit, one.of, {}))
            if not one.of:
                row.cells[one.file] = one.value
            elif base := known.get((part, one.of, one.file)) or known.get((part, one.what, one.of)):
                row.cells[one.file] = one.value / base
    return list(found.values())


def markdown(figures: Sequence[Figure]) -> str:
    """A table for each part, and for what its shares are of; only with the files that it has figures of."""
    tables: dict[tuple[str, str], list[Row]] = {}
    for row in table_rows(figures):
        tables.setdefault((row.part, row.of), []).append(row)
    return "\n\n".join(_table(part, of, rows) for (part, of), rows in tables.items())


def _table(part: str, of: str, rows: Sequence[Row]) -> str:
    files = list(dict.fromkeys(file for row in rows for file in row.cells))
    lines = [[f"{part}, as a share of {of}" if of else part, *files]]
    for row in rows:
        cells = [_text(row.cells[file], share=bool(of)) if file in row.cells else "" for file in files]
        lines.append([row.what if of else f"{row.what}, {row.unit}", *cells])
    return padded(lines)


def padded(lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table, readable as plain text; the first line is its head."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    ruler = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    texts = [[line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])] for line in (lines[0], ruler, *lines[1:])]
    return "\n".join("| " + " | ".join(line) + " |" for line in texts)


def _text(value: float, *, share: bool) -> str:
    if share:
        return f"{value:.3f}"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def written_into(document: str, text: str, mark: str) -> str:
    """The document with the text between its markers, of which `mark` is the first. Raises ValueError where it has none."""
    before, begin, rest = document.partition(mark)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the document lacks {mark} and {END}")
    return f"{before}{mark}\n{text}\n{END}{after}"
