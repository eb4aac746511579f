"""What `make bench` makes of its measurements. The measuring itself needs the peers, the corpus and a quiet machine."""

from __future__ import annotations

import io
import sys
import tarfile
import xml.etree.ElementTree as ET
from importlib import import_module
from typing import TYPE_CHECKING

import pytest

from benchmarks import growth
from benchmarks.figures import BEGIN, END, Figure, from_json, markdown, table_rows, to_json, written_into
from benchmarks.growth import chosen
from benchmarks.lookup import layouts_of, random_pcs
from benchmarks.measure import in_turn, run
from benchmarks.ours import ADDRESS, open_input, rows_of, section_of
from benchmarks.run import tables
from benchmarks.samples import SAMPLES, listed
from benchmarks.summary import ROWS, summary
from sframegen import add_section, read
from sframegen.format.decode import decode, open_section
from sframegen.tables.optimize import LEVELS
from tests import ROOT

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

    from sframegen.tables.optimize import LevelName
    from tests.support.peers import Compiler

pytestmark = [pytest.mark.once, pytest.mark.full]

FIGURES = [
    Figure("size", "GNU's", "small", 200, "bytes"),
    Figure("size", "fast", "small", 150, "bytes", "GNU's"),
    Figure("time", "cp", "small", 0.5, "s"),
    Figure("size", "GNU's", "large & new", 4000, "bytes"),
    Figure("size", "fast", "large & new", 2000, "bytes", "GNU's"),
    Figure("time", "cp", "large & new", 1.5, "s"),
    Figure("time", "cp", "large & new", 1.5, "s", "small"),
    Figure("time", "add", "large & new", 9, "s", "cp"),
    Figure("time", "add", "unmeasured", 9, "s", "cp"),
]


def test_shares_are_of_another_row_or_of_another_file() -> None:
    rows = {(row.part, row.what, row.of): row.cells for row in table_rows(FIGURES)}
    assert rows == {
        ("size", "GNU's", ""): {"small": 200, "large & new": 4000},
        ("size", "fast", "GNU's"): {"small": 0.75, "large & new": 0.5},
        ("time", "cp", ""): {"small": 0.5, "large & new": 1.5},
        ("time", "cp", "small"): {"large & new": 3},
        ("time", "add", "cp"): {"large & new": 6},
    }


def test_a_table_for_each_part_and_what_it_is_a_share_of() -> None:
    assert markdown(FIGURES[:5]).splitlines() == [
        "| size         | small | large & new |",
        "| ------------ | ----: | ----------: |",
        "| GNU's, bytes |   200 |       4,000 |",
        "",
        "| size, as a share of GNU's | small | large & new |",
        "| ------------------------- | ----: | ----------: |",
        "| fast                      | 0.750 |       0.500 |",
        "",
        "| time  | small |",
        "| ----- | ----: |",
        "| cp, s |   0.5 |",
    ]


def test_figures_are_kept() -> None:
    assert from_json(to_json("two cores", FIGURES)) == ("two cores", FIGURES)


def test_a_document_gets_its_table_again() -> None:
    once = written_into(f"before\n{BEGIN}\nold\n{END}\nafter\n", "new")
    assert once == f"before\n{BEGIN}\nnew\n{END}\nafter\n"
    assert written_into(once, "new") == once
    with pytest.raises(ValueError, match="lacks"):
        written_into("no markers", "new")


PICTURES = ("size", "growth", "time", "memory", "start-up", "look-up")


def texts_of(picture: Path) -> list[str]:
    return sorted(node.text or "" for node in ET.parse(picture).iter() if node.tag.endswith("text"))


@pytest.fixture
def plot() -> ModuleType:
    pytest.importorskip("matplotlib", reason="no matplotlib in this environment: use make docs", exc_type=ImportError)
    return import_module("benchmarks.plot")


def test_every_bar_is_whole_and_has_its_number(plot: ModuleType) -> None:
    figures = [Figure("time", what, file, seconds, "s") for what in plot.TOOLS for file, seconds in (("a", 0.25), ("b", 1234.5))]
    picture = plot.pictures([*figures, Figure("time", "add-section", "c", 8, "s")])["time"]
    bars = {axes.get_title(loc="left"): [bar.get_width() for bar in axes.patches] for axes in picture.axes}
    assert bars == {"a": [0.25] * len(plot.TOOLS), "b": [1234.5] * len(plot.TOOLS), "c": [8]}
    assert all(bar.get_width() < 0.95 * axes.get_xlim()[1] for axes in picture.axes for bar in axes.patches)
    assert {text.get_text() for axes in picture.axes for text in axes.texts} == {"0.25", "1.23e+03", "8"}


def test_every_size_has_a_dot(plot: ModuleType) -> None:
    base = [Figure("size", plot.SIZE_OF, file, 200, "bytes") for file in "ab"]
    sizes = [
        Figure("size", what, "ab"[place % 2], 100 + 60 * place, "bytes", plot.SIZE_OF) for place, what in enumerate(plot.SIZES)
    ]
    [axes] = plot.pictures([*base, *sizes])["size"].axes
    dots = {line.get_label(): (*line.get_xdata(), *line.get_ydata()) for line in axes.lines if line.get_label() in plot.SIZES}
    assert dots == {what: (0.5 + 0.3 * number, number % 2) for number, what in enumerate(plot.SIZES)}
    assert axes.get_xlim()[0] == 0
    assert axes.get_xlim()[1] > 1.7


def test_plots_in_the_documents_are_of_the_figures_there(plot: ModuleType, tmp_path: Path) -> None:
    folder = ROOT / "docs/reports"
    plot.draw(from_json((folder / "performance.json").read_text())[1], tmp_path)
    drawn = {path.name: texts_of(path) for path in tmp_path.iterdir()}
    assert set(drawn) == {f"{name}{suffix}.svg" for name in PICTURES for suffix in ("", "-dark")}
    shown = {path for path in folder.glob("*.svg") if not path.name.startswith("own-stack")}  # which are of benchmarks/backtrace.py
    assert {path.name: texts_of(path) for path in shown} == drawn


def test_a_dot_for_each_file_and_the_cost_of_large_ones(plot: ModuleType) -> None:
    points = [(1_000, 1e-3), (100_000, 5e-3), (1_000_000, 0.03), (5_000_000, 0.1), (10_000_000, 0.2)]
    figures = [
        Figure(growth.PART, what, str(number), value, "unit")
        for number, point in enumerate(points)
        for what, value in zip((growth.FRAMES, growth.COST), point, strict=True)
    ]
    [axes] = plot.pictures(figures)["growth"].axes
    dots, line = axes.lines
    assert list(zip(dots.get_xdata(), dots.get_ydata(), strict=True)) == points
    assert list(line.get_ydata()) == pytest.approx([2e-5, 0.2])
    assert tables("about", figures) == "\n\nabout."


def test_files_are_chosen_evenly_and_with_the_largest(tmp_path: Path) -> None:
    sizes = [1_000, 1_001, 1_002, 10_000, 10_001, 1_000_000]
    assert [size for size, _ in chosen(dict.fromkeys(sizes, tmp_path))] == [1_002, 10_001, 1_000_000]


def test_the_rows_in_the_documents_are_of_the_figures_there() -> None:
    _, figures = from_json((ROOT / "docs/reports/performance.json").read_text())
    text = summary(figures)
    assert len(text.splitlines()) == 2 + len(ROWS)
    assert text in (ROOT / "docs/performance.md").read_text()


def test_sources_that_a_package_lists() -> None:
    text = b"""{"sources": ["lib/addon.cc", "vendor/one.cc", 'vendor/two.c'], "flags": ["vendor/include", "-std=c++17"]}"""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        entry = tarfile.TarInfo("package/list")
        entry.size = len(text)
        tar.addfile(entry, io.BytesIO(text))
    packed.seek(0)
    with tarfile.open(fileobj=packed) as tar:
        assert listed(tar, "list", "vendor/") == ["vendor/one.cc", "vendor/two.c"]


def test_samples_name_their_version_and_sources() -> None:
    for sample in SAMPLES.values():
        assert sample["package"].rpartition("@")[0]
        assert ("list" in sample) != ("sources" in sample)


@pytest.mark.parametrize("level", LEVELS)
def test_the_conversion_that_is_timed_is_the_real_one(level: LevelName, compile_c: Compiler, tmp_path: Path) -> None:
    program, out = compile_c("int main(void) { return 0; }", "-O2", "-static"), tmp_path / "out"
    summary = add_section(program, output=out, optimize=level, verify=False)
    source = open_input(program)
    timed = decode(section_of(source, level), ADDRESS).table
    assert (timed.start, timed.size, timed.row_start) == (read(out).table.start, read(out).table.size, read(out).table.row_start)
    assert (source.eh_frame_bytes, len(section_of(source, level))) == (summary.eh_frame_bytes, summary.section_bytes)
    assert rows_of(source) >= summary.rows


def test_random_pcs_are_covered(compile_c: Compiler) -> None:
    program = compile_c("int main(void) { return 0; }", "-O2", "-static")
    layouts = layouts_of(open_input(program))
    assert [layout.name for layout in layouts] == ["GNU's layout", "share", "fast", "size"]
    for layout in layouts:
        seeker = open_section(layout.section, layout.address).seeker
        pcs = random_pcs(open_section(layouts[0].section, layouts[0].address).table)[:1000]
        assert all(seeker.find(pc) >= 0 for pc in pcs)


def test_a_process_is_measured_from_outside() -> None:
    """Its memory is its own, not this process's."""
    large = [sys.executable, "-S", "-c", "x = bytearray(b'1') * (100 << 20)"]
    small = [sys.executable, "-S", "-c", ""]
    ballast = bytearray(b"1") * (100 << 20)
    assert run(large).anonymous_bytes > 50 << 20
    assert run(small).peak_bytes < 50 << 20 < len(ballast)


def test_rounds_are_run_in_turn(tmp_path: Path) -> None:
    log = tmp_path / "log"
    commands = {name: ["sh", "-c", f"echo {name} >>{log}"] for name in "ab"}
    assert set(in_turn(commands, 2, tmp_path / "scratch")) == {"a", "b"}
    assert log.read_text().split() == ["a", "b"] * 3
