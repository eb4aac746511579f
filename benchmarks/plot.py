"""Figures as plots: one message each, in SVG, for light and for dark pages."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

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
OURS = ("#1f6fc5", "#5ea8f2")
OTHERS = ("#9aa4ae", "#6b7681")


class Bars(NamedTuple):
    """A panel for each file, a labelled bar for each row; those of `ours` stand out."""

    title: str
    part: str
    rows: dict[str, str]
    ours: tuple[str, ...]


TOOLS = ("cp", "objcopy --add-section", "readelf -wF", "llvm-dwarfdump --eh-frame", "add-section --no-verify", "add-section")
BARS = {
    "time": Bars("Time of a whole process, in seconds", "time", dict(zip(TOOLS, TOOLS, strict=True)), TOOLS[-2:]),
    "memory": Bars("Peak memory of a process, in MB", "peak memory", dict(zip(TOOLS, TOOLS, strict=True)), TOOLS[-2:]),
    "start-up": Bars(
        "Start of a process, in milliseconds",
        "start-up",
        {what: what for what in ("python -c pass", "--version", "--help", "lookup")},
        ("--version", "--help", "lookup"),
    ),
    "look-up": Bars(
        "Time of a look-up with libsframe, in nanoseconds",
        "look-up",
        {
            "GNU's layout": "libsframe on GNU's layout",
            **{f"--optimize {level}": f"libsframe on {level}" for level in ("fast", "size")},
        },
        ("--optimize fast",),
    ),
}
SIZE_OF = ".eh_frame + .eh_frame_hdr"
SIZES = {  # row: marker, colours on light and dark pages
    "GNU's .sframe": ("D", OTHERS),
    "--optimize none": ("o", ("#c8a2e0", "#8a64a8")),
    "--optimize fast": ("o", OURS),
    "--optimize size": ("o", ("#2b9a66", "#4cc38a")),
}
PAGES = {"": ("#ffffff", "#1c2733", "#dde3e8"), "-dark": ("#131416", "#dfe4e9", "#363d44")}  # background, text, lines


def draw(figures: Sequence[Figure], folder: Path) -> None:
    """Write NAME.svg and NAME-dark.svg for each plot that the figures have rows for."""
    for suffix in PAGES:
        with mpl.rc_context(_style(suffix)):
            for name, picture in pictures(figures, suffix).items():
                _save(picture, folder / f"{name}{suffix}.svg")


def draw_bars(title: str, panels: Panels, ours: Collection[str], file: Path) -> None:
    """Write FILE.svg and FILE-dark.svg: a panel for each title, with a bar for each label; those of `ours` stand out."""
    for dark, suffix in enumerate(PAGES):
        with mpl.rc_context(_style(suffix)):
            _save(_bar_panels(title, panels, ours, dark), file.with_name(f"{file.name}{suffix}.svg"))


def _save(picture: Picture, path: Path) -> None:
    picture.savefig(path, bbox_inches="tight", pad_inches=0.12, metadata={"Date": None, "Creator": None})
    path.write_text("".join(f"{line.rstrip()}\n" for line in path.read_text().splitlines()))


def pictures(figures: Sequence[Figure], suffix: str = "") -> dict[str, Picture]:
    rows, dark = table_rows(figures), list(PAGES).index(suffix)
    found = {"size": _sizes(rows, dark), "growth": _growth(rows, dark)} | {
        name: _bars(rows, bars, dark) for name, bars in BARS.items()
    }
    return {name: picture for name, picture in found.items() if picture is not None}


def _style(suffix: str) -> dict[Any, Any]:  # matplotlib's newer releases list the keys in its type
    page, text, line = PAGES[suffix]
    return {
        "figure.facecolor": page,
        "axes.facecolor": page,
        "axes.edgecolor": line,
        "grid.color": line,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        **dict.fromkeys(["text.color", "axes.labelcolor", "xtick.color", "ytick.color"], text),
        "svg.fonttype": "none",
        "svg.hashsalt": "sframegen",
    }


def _sizes(rows: Sequence[Row], dark: int) -> Picture | None:
    """A line for each file, and on it a dot for each section."""
    shares = {row.what: row.cells for row in rows if (row.part, row.of) == ("size", SIZE_OF)}
    files = list(dict.fromkeys(file for cells in shares.values() for file in cells))
    if not files:
        return None
    picture = Picture(figsize=(WIDTH, 1.3 + 0.28 * len(files)), layout="constrained")
    axes = picture.subplots()
    for what, (marker, colours) in SIZES.items():
        cells = shares.get(what, {})
        places = [files.index(file) for file in cells]
        axes.plot(list(cells.values()), places, marker, color=colours[dark], markersize=7, label=what)
    axes.set_yticks(range(len(files)), files)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.05 * max(1, *(value for cells in shares.values() for value in cells.values())))
    axes.axvline(1, color=mpl.rcParams["text.color"], linewidth=0.8, linestyle="--")
    axes.grid(visible=True)
    picture.suptitle(f"Size of .sframe, as a share of {SIZE_OF}", fontsize="medium", fontweight="bold")
    picture.legend(loc="outside lower center", ncols=3, frameon=False)
    return picture


def _growth(rows: Sequence[Row], dark: int) -> Picture | None:
    """A dot for each file: seconds against bytes, and a line with the median cost of a byte in large files."""
    cells = {row.what: row.cells for row in rows if row.part == growth.PART}
    if not cells:
        return None
    sizes, seconds = list(cells[growth.FRAMES].values()), list(cells[growth.COST].values())
    picture = Picture(figsize=(WIDTH, 3.6), layout="constrained")
    axes = picture.subplots()
    axes.loglog(sizes, seconds, "o", color=OURS[dark], markersize=4, alpha=0.7)
    cost = median(taken / size for taken, size in zip(seconds, sizes, strict=True) if size >= growth.LARGE)
    ends = [min(sizes), max(sizes)]
    axes.loglog(ends, [cost * end for end in ends], "--", color=mpl.rcParams["text.color"], linewidth=0.8)
    axes.set_xlabel("bytes of .eh_frame")
    axes.set_ylabel("seconds of CPU time")
    axes.grid(visible=True)
    picture.suptitle(f"{growth.COST} on files of a machine, without the start of Python", fontsize="medium", fontweight="bold")
    return picture


def _bars(rows: Sequence[Row], bars: Bars, dark: int) -> Picture | None:
    cells = {row.what: row.cells for row in rows if row.part == bars.part and not row.of}
    values = {label: cells[what] for label, what in bars.rows.items() if what in cells}
    files = list(dict.fromkeys(file for of_files in values.values() for file in of_files))
    if not files:
        return None
    panels = {file: {label: of_files[file] for label, of_files in values.items() if file in of_files} for file in files}
    return _bar_panels(bars.title, panels, bars.ours, dark)


def _bar_panels(title: str, panels: Panels, ours: Collection[str], dark: int) -> Picture:
    bars = max(map(len, panels.values()))
    picture = Picture(figsize=(WIDTH, 0.5 + len(panels) * (0.45 + 0.22 * bars)), layout="constrained")
    places = picture.subplots(len(panels), squeeze=False)
    for (name, shown), axes in zip(panels.items(), places[:, 0], strict=True):
        _panel(axes, name, shown, [(OURS if label in ours else OTHERS)[dark] for label in shown])
    picture.suptitle(title, fontsize="medium", fontweight="bold")
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
