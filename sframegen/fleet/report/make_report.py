"""The tables of a run's directory -> its page, and CSV."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack, contextmanager
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO

from cfi.errors import FormatError
from linker.files.location import locate
from linker.files.rename_into_place import writing_new
from sframegen.fleet.output_directory import MODE, OutputDirectory
from sframegen.fleet.report.charts import charts
from sframegen.fleet.report.csv_tables import CsvTable
from sframegen.fleet.report.fleet_figures import COVERAGE, STEPS, FleetFigures
from sframegen.fleet.report.page_tables import FileTable, PackageTable
from sframegen.fleet.report.report_page import report_page
from sframegen.fleet.report.stored_rows import stored_files, stored_packages
from sframegen.fleet.result_rows import FileRow, PackageRow, one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sframegen.fleet.report.sums import Sums

    StrPath = str | os.PathLike[str]

PAGE, RUN = "report.html", "run.json"
MAX_RUN_BYTES = 1 << 26
SHOWN_OF_RUN = ("sframegen", "started", "ended")


def make_report(out: StrPath, page: StrPath | None = None) -> str:
    """Make the page of a run, `out`/report.html or `page`, and files.csv and packages.csv in `out`; return the page.

    The rows of packages.parquet and files.parquet are read one by one, and those of files are not kept, except in the page's
    table. Raises FormatError, OSError.
    """
    figures, packages, files = FleetFigures(), PackageTable(), FileTable()
    with ExitStack() as stack:
        output = stack.enter_context(OutputDirectory.opened(os.fspath(out)))
        package_lines, file_lines = (CsvTable(kind, stack.enter_context(_private_text())) for kind in (PackageRow, FileRow))
        for package in stored_packages(output):
            package_lines.add(package)
            figures.add_package(packages.add(package), package)
        for number, file in enumerate(stored_files(output)):
            file_lines.add(file)
            home = packages.number_of(file)
            figures.add_file(number, file, packages.kind_of(home))
            packages.add_file(home, file)
            files.add(number, home, file)
        summary = page_summary(figures, _run(output))
        for name, lines in (("packages.csv", package_lines), ("files.csv", file_lines)):
            with output.new_file(name) as csv:
                lines.write(csv)
        parts = report_page(summary, packages.columns(), files.columns())
        with output.new_file(PAGE) if page is None else _new_file(page) as html:
            html.writelines(part.encode() for part in parts)
    return os.path.join(out, PAGE) if page is None else os.fspath(page)  # noqa: PTH118 - as the user names it


@contextmanager
def _new_file(path: StrPath) -> Iterator[BinaryIO]:
    with locate(path) as target, writing_new(target, MODE) as file:
        yield file


def _private_text() -> TextIO:
    return TemporaryFile("w+", encoding="utf-8", newline="")


def page_summary(figures: FleetFigures, run: dict[str, Any]) -> dict[str, Any]:
    """Return what the page shows above its tables, as JSON."""
    totals = figures.totals
    reasons = sorted(figures.reasons.items(), key=lambda item: (item[0][0] != "package", -item[1].number))
    return {
        "run": run,
        "packages": {
            "outcomes": totals.packages,
            "bytes": totals.package_sums["package_bytes"],
            "unpacked": totals.package_sums["unpacked_bytes"],
            "rewritten": figures.rewritten,
            "memory": figures.peak_memory,
            "steps": {step: sum(row[2 + place] for row in figures.steps.values()) for place, step in enumerate(STEPS)},
        },
        "files": {"outcomes": totals.files, **figures.all.row("all")},
        "coverage": [
            {"least": least, "files": row[0], "code": row[1], "leftOut": row[2]}
            for least, row in zip(COVERAGE, figures.coverage, strict=True)
        ],
        "groups": {name: _groups(figures.by[name]) for name in ("language", "compiler", "machine", "kind")},
        "leftOut": totals.left_out,
        "noCfi": totals.no_cfi,
        "reasons": [
            {
                "of": of,
                "outcome": outcome,
                "reason": one_line(text),
                "number": reason.number,
                "bytes": reason.bytes,
                "examples": [[number, one_line(name)] for number, name in reason.examples],
            }
            for (of, outcome, text), reason in reasons
        ],
        "extremes": {
            name: [[value, number, one_line(package), one_line(path)] for value, number, package, path in extremes.rows()]
            for name, extremes in figures.extremes.items()
        },
        "charts": charts(figures),
    }


def _groups(groups: dict[str, Sums]) -> list[dict[str, Any]]:
    return [
        sums.row(one_line(name)) for name, sums in sorted(groups.items(), key=lambda item: (-item[1].code, -item[1].seen, item[0]))
    ]


def _run(output: OutputDirectory) -> dict[str, Any]:
    """Return the facts about the run itself; {} without run.json. Raises FormatError, OSError."""
    try:
        with output.file(RUN) as file:
            run = json.loads(file.read(MAX_RUN_BYTES))
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError):
        raise FormatError("not JSON", file=f"{output.path}/{RUN}") from None
    if not isinstance(run, dict):
        raise FormatError("not the description of a run", file=f"{output.path}/{RUN}")
    options = run.get("options")
    mode = options.get("mode", "") if isinstance(options, dict) else ""
    return {"mode": one_line(str(mode))} | {name: one_line(str(run[name])) for name in SHOWN_OF_RUN if run.get(name)}
