"""The table's shares as bars, in SVG: a panel each thing that they are shares of, a group each file, a bar each row."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, NamedTuple

from figures import table_rows

if TYPE_CHECKING:
    from collections.abc import Iterable

    from figures import Figure, Row

COLOURS = ("#4269d0", "#efb118", "#3ca951", "#ff725c", "#a463f2", "#6cc5b0", "#9c6b4e", "#97bbf5", "#ff8ab7")
COLUMNS = 2
WIDTH, BARS_LEFT, BARS_RIGHT = 520, 110, 470  # of a panel
BAR, GAP, LINE = 9, 6, 14
LONGEST = 2.0  # a longer bar is cut, its number tells


class Panel(NamedTuple):
    title: str
    rows: list[Row]

    def files(self) -> list[str]:
        return list(dict.fromkeys(file for row in self.rows for file in row.cells))

    def height(self) -> int:
        bars = sum(file in row.cells for row in self.rows for file in self.files())
        return LINE * (3 + len(self.rows)) + BAR * bars + GAP * len(self.files())


def svg(figures: Iterable[Figure]) -> str:
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in table_rows(figures):
        if row.of:
            groups.setdefault((row.part, row.of), []).append(row)
    panels = [Panel(f"{part}, as shares of {of}", rows) for (part, of), rows in groups.items()]
    bottoms = [0] * COLUMNS
    parts = []
    for panel in panels:
        column = bottoms.index(min(bottoms))
        parts.append(f'<g transform="translate({column * WIDTH},{bottoms[column]})">{_panel(panel)}</g>')
        bottoms[column] += panel.height()
    width, height = COLUMNS * WIDTH, max(bottoms) + LINE
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="sans-serif" font-size="10">\n<rect width="{width}" height="{height}" fill="white"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _panel(panel: Panel) -> str:
    scale = (BARS_RIGHT - BARS_LEFT) / min(LONGEST, max(1.0, *(value for row in panel.rows for value in row.cells.values())))
    out = [f'<text x="8" y="{LINE + 4}" font-size="12" font-weight="bold">{escape(panel.title)}</text>']
    y = 2 * LINE
    for row, colour in zip(panel.rows, _colours(), strict=False):
        out.append(f'<rect x="{BARS_LEFT}" y="{y}" width="{BAR}" height="{BAR}" fill="{colour}"/>')
        out.append(f'<text x="{BARS_LEFT + BAR + 4}" y="{y + BAR - 1}">{escape(row.what)}</text>')
        y += LINE
    top = y
    for file in panel.files():
        shown = [(row.cells[file], colour) for row, colour in zip(panel.rows, _colours(), strict=False) if file in row.cells]
        middle = y + BAR * len(shown) / 2
        out.append(f'<text x="{BARS_LEFT - 6}" y="{middle + 4:.1f}" text-anchor="end">{escape(file)}</text>')
        for value, colour in shown:
            length = min(value, LONGEST) * scale
            out.append(f'<rect x="{BARS_LEFT}" y="{y}" width="{length:.1f}" height="{BAR - 1}" fill="{colour}"/>')
            out.append(f'<text x="{BARS_LEFT + length + 3:.1f}" y="{y + BAR - 1.5}" font-size="8">{value:.2f}</text>')
            y += BAR
        y += GAP
    one = BARS_LEFT + scale
    out.append(f'<line x1="{one:.1f}" y1="{top - 3}" x2="{one:.1f}" y2="{y}" stroke="#888" stroke-dasharray="3,2"/>')
    return "\n".join(out)


def _colours() -> Iterable[str]:
    while True:
        yield from COLOURS
