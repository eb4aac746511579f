"""Runs sframegen over all packages of the sources, writes results and tables, and reports files with too little coverage.

1. The packages of all sources are listed, and numbered, as items.
2. An item whose result an earlier run has written keeps that; an engine has processes work on the others.
3. Each result is a file with a hash as its name, its key. The keys are stored by item number.
4. At the end, the results are read again, one at a time, in the order of the keys, to make the tables.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from contextlib import ExitStack
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from itertools import chain
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from sframegen import __version__
from sframegen.base.errors import FormatError
from sframegen.base.text import format_count
from sframegen.fleet.collecting import RunTotals, write_tables
from sframegen.fleet.output_directory import OutputDirectory, write_key
from sframegen.fleet.result_rows import FileRow, Finished, PackageResult, RowOutcome
from sframegen.fleet.run_options import Engine, Job, RunOptions
from sframegen.fleet.sources.fetching import identify_content
from sframegen.fleet.sources.items import Item, without_secrets
from sframegen.fleet.sources.listing import list_items

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from sframegen.program.workers import Progress

    Reporter = Callable[[str], object]  # called with one line of text

UNSUCCESSFUL = (RowOutcome.REFUSED, RowOutcome.FAILED)
MAX_REPORTED_FILES = 20  # files that fall short and get a line each
OUTCOMES_WITHOUT_CODE = (RowOutcome.NOTHING, RowOutcome.NO_SECTION)  # acceptable outcomes of files without executable bytes


class CoverageDemand(NamedTuple):
    """The demands of a run on each file."""

    minimum: float | None = None  #: percentage of the code with call frame information that must be covered
    strict: bool = False  #: fail refused files; in a check, also files with warnings and files without a section
    is_check: bool = False  #: fail files with errors of a check, and files that cannot be checked

    def explain_shortfall(self, row: FileRow) -> str:
        """Return why a file falls short, or "". Debug files never fall short, because they have no code."""
        if row.outcome in OUTCOMES_WITHOUT_CODE and not row.executable_bytes:
            return ""
        if row.outcome is RowOutcome.REFUSED and (self.is_check or self.strict or self.minimum is not None):
            return row.reason
        if row.outcome is RowOutcome.WRONG and self.is_check:
            return row.reason
        if self.is_check and self.strict and (row.findings or not row.section_bytes):
            return row.findings[0] if row.findings else row.reason
        coverage = 100 * row.covered_bytes / row.code_bytes if row.code_bytes else 0.0
        if self.minimum is not None and coverage < self.minimum:
            return f"coverage: {coverage:.4f} % is below {self.minimum:g} %"
        return ""


class CoverageGate:
    """A reporter of files that fall short: it reports the first ones in a line each, and the number of the others."""

    def __init__(self, demand: CoverageDemand, report_finding: Reporter) -> None:
        self.demand = demand
        self.report_finding = report_finding
        self.failed_files = 0

    def add(self, result: PackageResult) -> None:
        for row in result.files:
            if why := self.demand.explain_shortfall(row):
                self.failed_files += 1
                if self.failed_files <= MAX_REPORTED_FILES:
                    self.report_finding(f"{row.package}: {row.path}: {why}")

    def finish(self, directory: str) -> None:
        """Report the number of files beyond MAX_REPORTED_FILES. `directory`: the path of the results."""
        if self.failed_files > MAX_REPORTED_FILES:
            number = self.failed_files - MAX_REPORTED_FILES
            self.report_finding(f"{number:,} more files fall short: compare the columns of {directory}/files.parquet")


class FleetRun:
    """A run, from its sources to its tables."""

    def __init__(
        self, sources: Sequence[str], output: str, options: RunOptions, report_finding: Reporter, progress: Progress | None
    ) -> None:
        """`report_finding`: called for each failure. `progress`: called with the numbers of finished and of all packages."""
        self.sources = sources
        self.path = os.path.abspath(output)  # noqa: PTH100 - workers may be elsewhere
        self.options = options
        self.report_finding = report_finding
        self.progress = progress
        self.exclude: Sequence[str] = ()  #: patterns of names of packages to leave out
        self.demand = CoverageDemand()
        self.note: Reporter = lambda _: None  #: called with a line that does not report a failure
        self.packages = 0  #: packages of the run
        self.excluded_packages = 0  #: packages that match `exclude`
        self.outcomes: Counter[RowOutcome] = Counter()  #: of finished packages
        self.earlier_packages = 0  #: packages with a result from an earlier run
        self.started = _now()
        self.token = os.urandom(8).hex()

    @property
    def done(self) -> int:
        return self.outcomes.total()

    def run(self, start_engine: Callable[[Job], AbstractContextManager[Engine]]) -> RunTotals | None:
        """Do the run, and return its sums; None, with earlier output kept, if a source is missing or none can be listed.

        Raises EngineError if the run cannot go on, BlockingIOError if another run is there, OSError.
        """
        with ExitStack() as stack:
            self.output = stack.enter_context(OutputDirectory.opened(self.path, make=True))
            stack.enter_context(self.output.locked())
            listing = stack.enter_context(TemporaryFile())
            if not self._list_items(listing):
                return None
            self._write_run()
            keys = stack.enter_context(self.output.new_keys())
            pending = self._yield_items_for_workers(listing, keys)
            first = next(pending, None)
            if first is not None:  # else all results are there, and no engine is needed
                engine = stack.enter_context(start_engine(Job(self.options, self.output, self.token, self.note)))
                for number, item, finished in engine.submit(chain([first], pending)):
                    self._record_result(keys, number, item, finished)
            gate = CoverageGate(self.demand, self.report_finding)
            totals = write_tables(self.output, gate.add)
            gate.finish(self.path)
            self._write_run(ended=_now())
        return totals

    def _list_items(self, listing: BinaryIO) -> bool:
        """Write all items to a file, a line each, because progress needs their number. Return False if a source is missing."""
        errors = []
        for item in list_items(self.sources):
            if isinstance(item, Exception):
                self.report_finding(_describe_error(item))
                errors.append(type(item))
            elif is_excluded(item.name, self.exclude):
                self.excluded_packages += 1
            else:
                listing.write(json.dumps(item, separators=(",", ":")).encode("ascii") + b"\n")
                self.packages += 1
        listing.seek(0)
        return FileNotFoundError not in errors and (self.packages + self.excluded_packages > 0 or not errors)

    def _yield_items_for_workers(self, listing: BinaryIO, keys: int) -> Iterator[tuple[int, Item]]:
        """Yield (number, item) for the items that a worker has to process, and record the results of the others."""
        for number, line in enumerate(listing):
            item = Item(*json.loads(line))
            result = self._find_result(item)
            if isinstance(result, Item):
                yield number, result
            else:
                self._record_result(keys, number, item, result)

    def _find_result(self, item: Item) -> Finished | Item:
        """Return the result of an item that does not need a worker; else the item, with its size and time on this machine."""
        if item.refused:
            return self._write_no_content(item, RowOutcome.REFUSED, item.refused)
        if not (item.is_local or item.sha256):
            return item
        try:
            content = identify_content(item)
        except FormatError as error:
            return self._write_no_content(item, RowOutcome.REFUSED, str(error).removeprefix(f"{item.path_or_url}: "))
        except OSError as error:
            return self._write_no_content(item, RowOutcome.FAILED, error.strerror or str(error))
        earlier = self.output.find_earlier_result(self.options.make_identity_key(item, content.identity))
        return earlier or item._replace(size_and_mtime=content.size_and_mtime)

    def _write_no_content(self, item: Item, outcome: RowOutcome, reason: str) -> Finished:
        return self.output.write_no_content(self.options.make_key_without_content(item), item, outcome, reason)

    def _record_result(self, keys: int, number: int, item: Item, finished: Finished) -> None:
        write_key(keys, number, finished.key)
        self.outcomes[finished.outcome] += 1
        self.earlier_packages += not finished.is_new
        if finished.outcome in UNSUCCESSFUL:
            self.report_finding(f"{item.name}: {finished.outcome}: {finished.reason}")
        if self.progress is not None:
            self.progress(self.done, self.packages)

    def _write_run(self, ended: str | None = None) -> None:
        run = {
            "sources": [without_secrets(source) for source in self.sources],
            "options": self.options.to_json(),
            "sframegen": __version__,
            "token": self.token,
            "started": self.started,
            "ended": ended,
            "packages": self.packages,
            "packages_excluded": self.excluded_packages,
            "packages_from_earlier_runs": self.earlier_packages,
        }
        self.output.write_json("run.json", run)

    def how_to_continue(self) -> str:
        """Return a message that says how to continue an interrupted run."""
        return f"{format_count(self.done, 'package')} of {self.packages:,} done; run the same command for the others"


def is_excluded(name: str, patterns: Sequence[str]) -> bool:
    """Return True if a shell pattern (`*`, `?`, `[...]`) matches. A pattern without `/` only has to match the last part."""
    last = name.rpartition("/")[2]
    return any(fnmatchcase(name if "/" in pattern else last, pattern) for pattern in patterns)


def _describe_error(error: Exception) -> str:
    if isinstance(error, OSError):
        where = f"{without_secrets(os.fsdecode(error.filename))}: " if error.filename else ""
        return f"{where}{error.strerror or error}"
    return str(error)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
