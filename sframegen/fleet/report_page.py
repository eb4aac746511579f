"""Makes an HTML page of Altair plots from a run's files.parquet; it opens without a network."""

from __future__ import annotations

import heapq
import re
from collections import Counter, defaultdict
from contextlib import ExitStack
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import altair as alt
import pyarrow as pa
import pyarrow.parquet as pq
import vl_convert

from linker.files.location import locate
from linker.files.rename_into_place import writing_new
from sframegen.base.errors import FormatError
from sframegen.base.text import count_of, printable, shortened
from sframegen.fleet.collecting import OTHER, bounded
from sframegen.fleet.output_directory import MODE, OutputDirectory
from sframegen.fleet.result_rows import SCHEMA_KEY, SCHEMA_VERSION, FileRow, RowOutcome, one_line
from sframegen.program.html_page import allowing_hash, json_element

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    Records = list[dict[str, Any]]


NAME = "files.parquet"
ROWS_AT_ONCE = 2000
MAPS = ("left_out", "no_cfi")


def stored_files(output: OutputDirectory) -> Iterator[FileRow]:
    """Yield the rows of files.parquet. Raises FormatError in one line if pyarrow finds the file damaged, OSError."""
    path = f"{output.path}/{NAME}"
    columns = [field.name for field in fields(FileRow)]
    try:
        with output.file(NAME) as source, pq.ParquetFile(source) as file:
            version = (file.schema_arrow.metadata or {}).get(SCHEMA_KEY.encode(), b"1")
            if version != str(SCHEMA_VERSION).encode():
                raise FormatError(
                    f"schema version {printable(version.decode('utf-8', 'replace'))}; use a later sframegen", file=path
                )
            if missing := set(columns) - set(file.schema_arrow.names):
                raise FormatError(f"no columns {', '.join(sorted(missing))}: another version of sframegen wrote it", file=path)
            for batch in file.iter_batches(ROWS_AT_ONCE, columns=columns):
                for row in batch.to_pylist():
                    yield FileRow(**row | {name: dict(row[name]) for name in MAPS})
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise FormatError(f"not a table of results: {shortened(printable(str(error)))}", file=path) from None


PAGE = "report.html"
WITH_SECTION = (RowOutcome.ADDED, RowOutcome.UNCHANGED, RowOutcome.GOOD, RowOutcome.WRONG)
COVERAGE = (100, 99.99, 99.9, 99, 95, 0)  # lower ends of classes, in per cent
MAX_BARS = 15  # bars
WIDTH, BAR_HEIGHT, LABEL_WIDTH = 620, 20, 420
NUMBER = re.compile(r"\b(?:0x[0-9a-f]+|\d[\d,]{2,})\b", re.IGNORECASE)
STYLE = "body{font:15px/1.5 sans-serif;margin:2rem auto;max-width:1100px;padding:0 1rem}"
SCRIPT = """
vegaEmbed("#plots", JSON.parse(document.getElementById("chart").textContent), {ast: true, actions: false});
"""
HTML = """<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'">
<title>SFrame in many packages</title>
<style>{style}</style>
<h1>SFrame in many packages</h1>
<p>{summary}</p>
<div id="plots"></div>
<script type="application/json" id="chart">{chart}</script>
<script>{library}</script>
<script>{script}</script>
</html>
"""


@dataclass
class GroupSums:
    """Sums over files with a section: a bar of a plot. Sizes are in bytes."""

    files: int = 0
    code: int = 0
    covered: int = 0
    section: int = 0
    eh_frame: int = 0  #: .eh_frame + .eh_frame_hdr

    def add(self, row: FileRow) -> None:
        self.files += 1
        self.code += row.code_bytes
        self.covered += row.covered_bytes
        self.section += row.section_bytes
        self.eh_frame += row.eh_frame_bytes + row.eh_frame_hdr_bytes


class Largest:
    """A list of the few files with the largest values."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, str]] = []

    def add(self, value: float, row: FileRow) -> None:
        heapq.heappush(self._heap, (value, one_line(f"{row.package}: {row.path}")))
        if len(self._heap) > MAX_BARS:
            heapq.heappop(self._heap)

    def counts(self) -> list[tuple[str, float]]:
        return [(name, value) for value, name in sorted(self._heap, reverse=True)]


@dataclass
class Figures:
    """The figures of the page, counted in one pass over the rows; their size does not grow with the run."""

    files: int = 0
    packages: set[str] = field(default_factory=set)
    all: GroupSums = field(default_factory=GroupSums)
    groups: dict[str, defaultdict[str, GroupSums]] = field(
        default_factory=lambda: {name: defaultdict(GroupSums) for name in ("language", "compiler", "machine")}
    )
    coverage: Counter[str] = field(default_factory=Counter)  #: files
    left_out: Counter[str] = field(default_factory=Counter)  #: bytes of code
    no_cfi: Counter[str] = field(default_factory=Counter)  #: bytes of code
    reasons: Counter[str] = field(default_factory=Counter)  #: files without a section, or with a wrong one
    sections: Largest = field(default_factory=Largest)
    uncovered: Largest = field(default_factory=Largest)  #: bytes of code

    def add(self, row: FileRow) -> None:
        self.files += 1
        self.packages.add(row.package)
        for counts, more in ((self.left_out, row.left_out), (self.no_cfi, row.no_cfi)):
            for name, number in more.items():
                counts[bounded(name, counts, OTHER)] += number
        if row.outcome not in WITH_SECTION or row.outcome == RowOutcome.WRONG:
            reason = f"{row.outcome}: {NUMBER.sub('…', row.reason)}"  # those that differ only in numbers count together
            self.reasons[bounded(reason, self.reasons, OTHER)] += 1
        if row.outcome in WITH_SECTION:
            self._add_section(row)

    def _add_section(self, row: FileRow) -> None:
        self.all.add(row)
        compiler = f"{row.producer} {row.producer_version.partition('.')[0]}".strip()
        for name, key in (("language", row.language), ("compiler", compiler), ("machine", row.machine)):
            group = self.groups[name]
            group[bounded(key or "unknown", group, OTHER)].add(row)
        self.coverage[coverage_class(row)] += 1
        self.sections.add(row.section_bytes, row)
        if row.covered_bytes < row.code_bytes:
            self.uncovered.add(row.code_bytes - row.covered_bytes, row)

    def summary(self) -> str:
        covered, ratio = share(self.all.covered, self.all.code), share(self.all.section, self.all.eh_frame)
        return (
            f"{count_of(self.files, 'ELF file')} of {count_of(len(self.packages), 'package')}; {self.all.files:,} with a section."
            f" Sections cover {covered:.4%} of {count_of(self.all.code, 'byte')} of code with call frame information, and take"
            f" {count_of(self.all.section, 'byte')}, {ratio:.1%} of .eh_frame and .eh_frame_hdr."
        )


def share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def coverage_class(row: FileRow) -> str:
    if not row.code_bytes:
        return "no code with CFI"
    least = next(least for least in COVERAGE if 100 * row.covered_bytes >= least * row.code_bytes)
    return "all" if least == COVERAGE[0] else f"{least:g} % or more"


def make_report(out: str, page: str | None = None) -> str:
    """Make the page of a run, `out`/report.html or `page`; return its path. Raises FormatError, OSError."""
    figures = Figures()
    with ExitStack() as stack:
        output = stack.enter_context(OutputDirectory.opened(out))
        for row in stored_files(output):
            figures.add(row)
        text = page_of(figures)
        if page is None:
            file = stack.enter_context(output.new_file(PAGE))
        else:
            file = stack.enter_context(writing_new(stack.enter_context(locate(page)), MODE))
        file.write(text.encode())
    return f"{out}/{PAGE}" if page is None else page


def page_of(figures: Figures) -> str:
    """Return the page. Names from packages are only data of its plots: it allows just its own two scripts, and no eval."""
    library = f"(() => {{{vl_convert.javascript_bundle('window.vegaEmbed = vegaEmbed;')}}})();"
    return HTML.format(
        hashes=" ".join(f"'sha256-{allowing_hash(text)}'" for text in (library, SCRIPT)),
        style=STYLE,
        summary=figures.summary(),
        chart=json_element(chart_of(figures).to_dict()),
        library=library,
        script=SCRIPT,
    )


# -- plots


def chart_of(figures: Figures) -> alt.VConcatChart:
    names = ("all", *(f"{least:g} % or more" for least in COVERAGE[1:]), "no code with CFI")
    plots = [
        bars("Files by the share of their code that is covered", [(name, figures.coverage[name]) for name in names], "files"),
        *(ratios(name, groups) for name, groups in figures.groups.items()),
        bars("Code with CFI that is left out", figures.left_out.most_common(MAX_BARS), "bytes"),
        bars("Code without CFI", figures.no_cfi.most_common(MAX_BARS), "bytes"),
        bars("Files without a section, or with a wrong one", figures.reasons.most_common(MAX_BARS), "files"),
        bars("The least covered", figures.uncovered.counts(), "bytes of code left out"),
        bars("The largest sections", figures.sections.counts(), "bytes"),
    ]
    return alt.vconcat(*filter(None, plots)).resolve_scale(color="independent").configure_axis(labelLimit=LABEL_WIDTH)


def bars(title: str, counts: Iterable[tuple[str, float]], unit: str) -> alt.Chart | None:
    records = [{"name": name, "value": value} for name, value in counts if value]
    return plot(title, records, alt.X("value:Q", title=unit, axis=alt.Axis(format="~s")), [alt.Tooltip("value:Q", format=",")])


def ratios(name: str, groups: Mapping[str, GroupSums]) -> alt.Chart | None:
    """Plot the size ratios of the groups with the most code."""
    most = sorted(groups.items(), key=lambda item: -item[1].code)[:MAX_BARS]
    records = [
        {"name": key, **vars(sums), "value": share(sums.section, sums.eh_frame), "share": share(sums.covered, sums.code)}
        for key, sums in most
    ]
    tooltips = [
        alt.Tooltip("files:Q", format=","),
        alt.Tooltip("code:Q", title="bytes of code with CFI", format=","),
        alt.Tooltip("share:Q", title="covered", format=".4%"),
        alt.Tooltip("section:Q", title="bytes of sections", format=","),
        alt.Tooltip("value:Q", title="of .eh_frame + .eh_frame_hdr", format=".1%"),
    ]
    x = alt.X("value:Q", title=".sframe in proportion to .eh_frame + .eh_frame_hdr", axis=alt.Axis(format="%"))
    return plot(f"Size by {name}", records, x, tooltips)


def plot(title: str, records: Records, x: alt.X, tooltips: list[alt.Tooltip]) -> alt.Chart | None:
    if not records:
        return None
    return (
        alt.Chart(alt.InlineData(values=records), title=title, width=WIDTH, height=BAR_HEIGHT * len(records))
        .mark_bar()
        .encode(x=x, y=alt.Y("name:N", sort=None, title=None), tooltip=[alt.Tooltip("name:N"), *tooltips])
    )
