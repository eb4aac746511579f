"""The gate of a run: which files have less coverage than is demanded."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sframegen.fleet.result_rows import FileRow, RowOutcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from sframegen.fleet.result_rows import PackageResult

MAX_LINES = 20
NO_CODE = (RowOutcome.NOTHING, RowOutcome.WITHOUT)  # if there are no executable bytes


class CoverageDemand(NamedTuple):
    """What each file has to have."""

    minimum: float | None = None  #: per cent of the code with call frame information
    strict: bool = False  #: nothing left out, and something added; no warning of a check
    checked: bool = False  #: no error of a check, and no file that cannot be checked

    def failure(self, row: FileRow) -> str:
        """Why a file falls short, or "". Debug files, which have no code, do not."""
        if row.outcome in NO_CODE and not row.executable_bytes:
            return ""
        if self.checked and row.outcome in (RowOutcome.WRONG, RowOutcome.REFUSED):
            return row.reason
        if self.checked and self.strict and row.findings:
            return row.findings[0]
        if self.strict and not row.section_bytes:
            return row.reason if self.checked else f"nothing was added{f': {row.reason}' if row.reason else ''}"
        if self.strict and row.covered_bytes < row.code_bytes:
            return f"{row.code_bytes - row.covered_bytes:,} bytes of code were left out"
        if self.minimum is not None and coverage_of(row) < self.minimum:
            return f"coverage: {coverage_of(row):.4f} % is below {self.minimum:g} %"
        return ""


def coverage_of(row: FileRow) -> float:
    return 100 * row.covered_bytes / row.code_bytes if row.code_bytes else 0.0


class Gate:
    """Reports the files that fall short: the first of them in a line each, the others as a number."""

    def __init__(self, demand: CoverageDemand, finding: Callable[[str], object]) -> None:
        self.demand = demand
        self.finding = finding
        self.failed = 0

    def add(self, result: PackageResult) -> None:
        for row in result.files:
            if why := self.demand.failure(row):
                self.failed += 1
                if self.failed <= MAX_LINES:
                    self.finding(f"{row.package}: {row.path}: {why}")

    def finish(self, directory: str) -> None:
        """`directory`: of the results."""
        if self.failed > MAX_LINES:
            self.finding(f"{self.failed - MAX_LINES:,} more files fall short: compare the columns of {directory}/files.parquet")
