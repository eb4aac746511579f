"""Figures as plots: one message each, in SVG, in the colours that the reader's page has, light or dark."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.figure import Figure as Picture

from benchmarks import growth
from benchmarks.figures import table_rows

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path
    from typing import TypeAlias

    from matplotlib.axes import Axes

    from benchmarks.figures import Figure, Row

    Panels: TypeAlias = Mapping[str, Mapping[str, float]]

WIDTH = 6.4  # inches: as wide as a page's text
PAGE, TEXT, LINE = "#ffffff", "#1c2733", "#dde3e8"
OURS, OTHERS = "#1f6fc5", "#9aa4ae"
NONE, SIZE = "#c8a2e0", "#2b9a66"  # levels of --optimize
DARK = {
    PAGE: "#131416", TEXT: "#dfe4e9", LINE: "#363d44", OURS: "#5ea8f2", OTHERS: "#6b7681", NONE: "#8a64a8", SIZE: "#4cc38a"
}  # fmt: skip
SIZE_OF = ".eh_frame + .eh_frame_hdr"
SIZES = {  # row: marker, colour
    "GNU's .sframe": ("D", OTHERS),
    "--optimize none": ("o", NONE),
    "--optimize fast": ("o", OURS),
    "--optimize size": ("o", SIZE),
}
STYLE: dict[Any, Any] = {  # matplotlib's newer releases list the keys in its type
    "figure.facecolor": PAGE,
    "axes.facecolor": PAGE,
    "axes.edgecolor": LINE,
    "grid.color": LINE,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    **dict.fromkeys(["text.color", "axes.labelcolor", "xtick.color", "ytick.color"], TEXT),
    "svg.fonttype": "none",
    "svg.hashsalt": "sframegen",
}


def draw(figures: Sequence[Figure], folder: Path) -> None:
    """Write size.svg and growth.svg, if the figures have rows for them."""
    rows = table_rows(figures)
    with mpl.rc_context(STYLE):
        for name, picture in {"size": _sizes(rows), "growth": _growth(rows)}.items():
            if picture is not None:
                _save(picture, folder / f"{name}.svg")


def draw_bars(title: str, panels: Panels, ours: Collection[str], file: Path) -> None:
    """Write a panel for each title, with a bar for each label; those of `ours` stand out."""
    bars = max(map(len, panels.values()))
    with mpl.rc_context(STYLE):
        picture = Picture(figsize=(WIDTH, 0.5 + len(panels) * (0.45 + 0.22 * bars)), layout="constrained")
        places = picture.subplots(len(panels), squeeze=False)
        for (name, shown), axes in zip(panels.items(), places[:, 0], strict=True):
            _panel(axes, name, shown, [OURS if label in ours else OTHERS for label in shown])
        picture.suptitle(title, fontsize="medium", fontweight="bold")
        _save(picture, file)


def _save(picture: Picture, path: Path) -> None:
    picture.savefig(path, bbox_inches="tight", pad_inches=0.12, metadata={"Date": None, "Creator": None})
    path.write_text(for_dark_pages("".join(f"{line.rstrip()}\n" for line in path.read_text().splitlines())))


def for_dark_pages(svg: str) -> str:
    """With a rule for each colour that the drawing has."""
    rules = "\n".join(
        f'[style*="{what}: {light}"] {{ {what}: {dark} !important }}'
        for light, dark in DARK.items()
        for what in ("fill", "stroke")
        if f"{what}: {light}" in svg
    )
    return svg.replace("</style>", f"\n@media (prefers-color-scheme: dark) {{\n{rules}\n}}\n</style>", 1)


def _sizes(rows: Sequence[Row]) -> Picture | None:
    """A line for each file, and on it a dot for each section."""
    shares = {row.what: row.cells for row in rows if (row.part, row.of) == ("size", SIZE_OF)}
    files = list(dict.fromkeys(file for cells in shares.values() for file in cells))
    if not files:
        return None
    picture = Picture(figsize=(WIDTH, 1.3 + 0.28 * len(files)), layout="constrained")
    axes = picture.subplots()
    for what, (marker, colour) in SIZES.items():
        cells = shares.get(what, {})
        places = [files.index(file) for file in cells]
        axes.plot(list(cells.values()), places, marker, color=colour, markersize=7, label=what)
    axes.set_yticks(range(len(files)), files)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.05 * max(1, *(value for cells in shares.values() for value in cells.values())))
    axes.axvline(1, color=TEXT, linewidth=0.8, linestyle="--")
    axes.grid(visible=True)
    picture.suptitle(f"Size of .sframe, as a share of {SIZE_OF}", fontsize="medium", fontweight="bold")
    picture.legend(loc="outside lower center", ncols=3, frameon=False)
    return picture


def _growth(rows: Sequence[Row]) -> Picture | None:
    """A dot for each file: seconds against bytes, and a line with the median cost of a byte in large files."""
    cells = {row.what: row.cells for row in rows if row.part == growth.PART}
    if not cells:
        return None
    sizes, seconds = list(cells[growth.FRAMES].values()), list(cells[growth.COST].values())
    picture = Picture(figsize=(WIDTH, 3.6), layout="constrained")
    axes = picture.subplots()
    axes.loglog(sizes, seconds, "o", color=OURS, markersize=4, alpha=0.7)
    cost = median(taken / size for taken, size in zip(seconds, sizes, strict=True) if size >= growth.LARGE)
    ends = [min(sizes), max(sizes)]
    axes.loglog(ends, [cost * end for end in ends], "--", color=TEXT, linewidth=0.8)
    axes.set_xlabel("bytes of .eh_frame")
    axes.set_ylabel("seconds of CPU time")
    axes.grid(visible=True)
    picture.suptitle(f"{growth.COST} on files of a machine, without the start of Python", fontsize="medium", fontweight="bold")
    return picture


def _panel(axes: Axes, title: str, values: Mapping[str, float], colours: list[str]) -> None:
    bars = axes.barh(list(values), list(values.values()), color=colours)
    axes.bar_label(bars, [f"{value:.3g}" for value in values.values()], padding=3, fontsize="small")
    axes.set_xlim(0, 1.12 * max(values.values()))  # room for the longest bar's number
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    axes.tick_params(axis="y", length=0, labelsize="small")
    axes.invert_yaxis()
    axes.set_title(title, loc="left", fontsize="small", fontweight="bold")
