"""The tables of a run's directory -> its page, and CSV."""

from __future__ import annotations

import json
from contextlib import ExitStack
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, TextIO

from cfi.errors import FormatError
from linker.files.location import locate
from linker.files.rename_into_place import write_new
from sframegen.fleet.report.charts import charts
from sframegen.fleet.report.csv_tables import MODE, CsvTable
from sframegen.fleet.report.fleet_figures import COVERAGE, STEPS, FleetFigures
from sframegen.fleet.report.page_tables import FileTable, PackageTable, shown
from sframegen.fleet.report.report_page import report_page
from sframegen.fleet.report.stored_rows import stored_files, stored_packages
from sframegen.fleet.result_rows import FileRow, PackageRow
from sframegen.fleet.sources.fetching import opened_file

if TYPE_CHECKING:
    from pathlib import Path

    from sframegen.fleet.report.sums import Sums

MAX_RUN_BYTES = 1 << 26
SHOWN_OF_RUN = ("sframegen", "started", "ended")


def make_report(out: Path, page: Path | None = None) -> Path:
    """Make the page of a run, `out`/report.html or `page`, and files.csv and packages.csv in `out`; return the page.

    The rows of packages.parquet and files.parquet are read one by one, and those of files are not kept, except in the page's
    table. Raises FormatError, OSError.
    """
    figures, packages, files = FleetFigures(), PackageTable(), FileTable()
    with ExitStack() as stack:
        package_lines, file_lines = (CsvTable(kind, stack.enter_context(_private_text())) for kind in (PackageRow, FileRow))
        for package in stored_packages(out / "packages.parquet"):
            package_lines.add(package)
            figures.add_package(packages.add(package), package)
        for number, file in enumerate(stored_files(out / "files.parquet")):
            file_lines.add(file)
            home = packages.number_of(file)
            figures.add_file(number, file, packages.kind_of(home))
            packages.add_file(home, file)
            files.add(number, home, file)
        summary = page_summary(figures, _run(out / "run.json"))
        package_lines.write(out / "packages.csv")
        file_lines.write(out / "files.csv")
    page = page or out / "report.html"
    parts = report_page(summary, packages.columns(), files.columns())
    with locate(page) as target:
        write_new(target, "".join(parts).encode(), MODE)
    return page


def _private_text() -> TextIO:
    return TemporaryFile("w+", encoding="utf-8", newline="")


def page_summary(figures: FleetFigures, run: dict[str, Any]) -> dict[str, Any]:
    """Return what the page shows above its tables, as JSON."""
    reasons = sorted(figures.reasons.items(), key=lambda item: (item[0][0] != "package", -item[1].number))
    return {
        "run": run,
        "packages": {
            "outcomes": figures.packages,
            "bytes": figures.package_bytes,
            "unpacked": figures.unpacked_bytes,
            "rewritten": figures.rewritten,
            "memory": figures.peak_memory,
            "steps": {step: sum(row[2 + place] for row in figures.steps.values()) for place, step in enumerate(STEPS)},
        },
        "files": {"outcomes": figures.files, **figures.all.row("all")},
        "coverage": [
            {"least": least, "files": row[0], "code": row[1], "leftOut": row[2]}
            for least, row in zip(COVERAGE, figures.coverage, strict=True)
        ],
        "groups": {name: _groups(figures.by[name]) for name in ("language", "compiler", "machine", "kind")},
        "leftOut": figures.left_out,
        "noCfi": figures.no_cfi,
        "reasons": [
            {
                "of": of,
                "outcome": outcome,
                "reason": shown(text),
                "number": reason.number,
                "bytes": reason.bytes,
                "examples": [[number, shown(name)] for number, name in reason.examples],
            }
            for (of, outcome, text), reason in reasons
        ],
        "extremes": {
            name: [[value, number, shown(package), shown(path)] for value, number, package, path in extremes.rows()]
            for name, extremes in figures.extremes.items()
        },
        "charts": charts(figures),
    }


def _groups(groups: dict[str, Sums]) -> list[dict[str, Any]]:
    return [
        sums.row(shown(name)) for name, sums in sorted(groups.items(), key=lambda item: (-item[1].code, -item[1].seen, item[0]))
    ]


def _run(path: Path) -> dict[str, Any]:
    """Return what the page says of the run itself: {} if nothing is known of it. Raises FormatError, OSError."""
    try:
        with opened_file(str(path)) as file:
            run = json.loads(file.read(MAX_RUN_BYTES))
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError):
        raise FormatError("not JSON", file=str(path)) from None
    if not isinstance(run, dict):
        raise FormatError("not the description of a run", file=str(path))
    options = run.get("options")
    mode = options.get("mode", "") if isinstance(options, dict) else ""
    return {"mode": shown(str(mode))} | {name: shown(str(run[name])) for name in SHOWN_OF_RUN if run.get(name)}
