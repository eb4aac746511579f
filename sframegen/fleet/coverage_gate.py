"""The gate of a run: which files have less coverage than is demanded, as a table."""

from __future__ import annotations

import csv
from contextlib import ExitStack
from dataclasses import dataclass, fields
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Self, TextIO

from sframegen.base.text import printable
from sframegen.fleet.result_rows import FileRow, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from _typeshed import DataclassInstance

    from sframegen.fleet.output_directory import OutputDirectory
    from sframegen.fleet.result_rows import PackageResult

TABLE = "short.csv"
FORMULAS = ("=", "+", "-", "@")  # spreadsheets take a text for one that begins so: it gets an apostrophe
SHOWN = 20  # lines
NO_CODE = (Outcome.NOTHING, Outcome.WITHOUT)  # if there are no executable bytes


class CoverageDemand(NamedTuple):
    """What each file has to have. True if there is a demand."""

    minimum: float | None = None  #: per cent of the code with call frame information
    strict: bool = False  #: nothing left out, and something added; no warning of a check
    checked: bool = False  #: no error of a check, and no file that cannot be checked

    def __bool__(self) -> bool:
        return self.checked or self.strict or self.minimum is not None

    def failure(self, row: FileRow) -> str:
        """Why a file falls short, or "". Debug files, which have no code, do not."""
        if row.outcome in NO_CODE and not row.executable_bytes:
            return ""
        if self.checked and row.outcome in (Outcome.WRONG, Outcome.REFUSED):
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


@dataclass
class Shortfall:
    """A row of the table."""

    package: str
    path: str
    machine: str
    coverage: float
    code_bytes: int
    covered_bytes: int
    reason: str


class Gate:
    """A block: `add` the results of a run. At its end, the table is in the output; the first of its rows are lines, too."""

    def __init__(self, demand: CoverageDemand, output: OutputDirectory, finding: Callable[[str], object]) -> None:
        self.demand = demand
        self.output = output
        self.finding = finding
        self.failed = 0

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            text = stack.enter_context(TemporaryFile("w+", encoding="utf-8", newline=""))
            self._table = CsvTable(Shortfall, text)
            self._files = stack.pop_all()
        return self

    def add(self, result: PackageResult) -> None:
        for row in result.files:
            self._judge(row)

    def _judge(self, row: FileRow) -> None:
        why = self.demand.failure(row)
        if not why:
            return
        self.failed += 1
        self._table.add(
            Shortfall(row.package, row.path, row.machine, round(coverage_of(row), 4), row.code_bytes, row.covered_bytes, why)
        )
        if self.failed <= SHOWN:
            self.finding(f"{row.package}: {row.path}: {why}")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._files:
            if kind is None and self.demand:
                with self.output.new_file(TABLE) as file:
                    self._table.write(file)
            elif kind is None:
                with self.output.at(TABLE) as location:
                    location.unlink()
        if kind is None and self.failed > SHOWN:
            self.finding(f"{self.failed - SHOWN:,} more files fall short: {self.output.path}/{TABLE}")


class CsvTable:
    """A header line, then a line for each row, in a private file until all are there."""

    def __init__(self, kind: type[DataclassInstance], text: TextIO) -> None:
        self._names = [field.name for field in fields(kind)]
        self._text = text
        self._writer = csv.writer(self._text, lineterminator="\n")
        self._writer.writerow(self._names)

    def add(self, row: DataclassInstance) -> None:
        self._writer.writerow([_cell(getattr(row, name)) for name in self._names])

    def write(self, file: BinaryIO) -> None:
        """Raises OSError."""
        self._text.seek(0)
        file.writelines(line.encode() for line in self._text)


def _cell(value: str | float | dict[str, int] | list[str]) -> str | float:
    """Return a mapping as `name: number; name: number`, a list with semicolons, a text in one line."""
    if isinstance(value, (int, float)):
        return value
    if isinstance(value, dict):
        value = "; ".join(f"{name}: {number}" for name, number in value.items())
    elif isinstance(value, list):
        value = "; ".join(value)
    text = printable(value)
    return f"'{text}" if text.startswith(FORMULAS) else text
