"""Collects the results of all packages, one at a time, into Parquet tables of ELF files and packages, JSON, and sums."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, BinaryIO, Self

from sframegen.api.add_summary import format_percent
from sframegen.base.text import format_count, printable
from sframegen.fleet.result_rows import COLUMN_TYPES, SCHEMA_KEY, SCHEMA_VERSION, FileRow, PackageResult, PackageRow, RowOutcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from sframegen.fleet.output_directory import OutputDirectory

ROW_GROUP_SIZE = 20_000  # rows that are kept in memory until they are written
# The columns of each table that are summed up.
PACKAGE_SUMS = (
    "package_bytes", "new_package_bytes", "unpacked_bytes", "entries", "elf_files",
    "seconds_fetching", "seconds_reading", "seconds_converting", "seconds_writing",
)  # fmt: skip
FILE_SUMS = (
    "file_bytes", "new_file_bytes", "executable_bytes", "code_bytes", "covered_bytes", "functions", "functions_covered", "rows",
    "section_bytes", "stored_bytes", "eh_frame_bytes", "eh_frame_hdr_bytes",
)  # fmt: skip
MAX_KEYS = 200  # reasons, languages and so on that one Counter counts separately; hostile packages could have millions
OTHER_KEY = "other"  # for those beyond MAX_KEYS


@dataclass
class RunTotals:
    """Sums over a run. Sizes are in bytes, times in seconds of one process."""

    packages: Counter[str] = field(default_factory=Counter)  #: by outcome
    files: Counter[str] = field(default_factory=Counter)  #: by outcome
    kinds: Counter[str] = field(default_factory=Counter)  #: packages by kind
    machines: Counter[str] = field(default_factory=Counter)  #: files
    languages: Counter[str] = field(default_factory=Counter)  #: files
    producers: Counter[str] = field(default_factory=Counter)  #: files
    package_sums: Counter[str] = field(default_factory=Counter)
    file_sums: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)  #: bytes of code by reason
    no_cfi: Counter[str] = field(default_factory=Counter)  #: bytes of code by category

    def add_package(self, row: PackageRow) -> None:
        self.packages[row.outcome] += 1
        self.kinds[row.kind] += 1
        _add_columns(self.package_sums, row, PACKAGE_SUMS)

    def add_file(self, row: FileRow) -> None:
        self.files[row.outcome] += 1
        for counts, key in ((self.machines, row.machine), (self.languages, row.language), (self.producers, row.producer)):
            counts[_limit_keys(key, counts)] += 1
        _add_columns(self.file_sums, row, FILE_SUMS)
        for sums, row_bytes in ((self.left_out, row.left_out), (self.no_cfi, row.no_cfi)):
            for key, code_bytes in row_bytes.items():
                sums[_limit_keys(key, sums)] += code_bytes

    def to_json(self) -> dict[str, Any]:
        counters: list[tuple[str, Counter[str]]] = [(counter.name, getattr(self, counter.name)) for counter in fields(self)]
        return {name: {key: round(value, 3) for key, value in sorted(counts.items())} for name, counts in counters}

    def one_line(self) -> str:
        """Return the line that the command prints."""
        outcomes = ", ".join(f"{count:,} {outcome}" for outcome in RowOutcome if (count := self.packages[outcome]))
        line = f"{format_count(self.packages.total(), 'package')}{f' ({outcomes})' if outcomes else ''}"
        line += f", {format_count(self.files.total(), 'ELF file')}"
        covered, code, section = (int(self.file_sums[name]) for name in ("covered_bytes", "code_bytes", "section_bytes"))
        if code:
            code_bytes, section_bytes = format_count(code, "byte"), format_count(section, "byte")
            line += f", {format_percent(covered, code)} % of {code_bytes} with CFI covered; .sframe {section_bytes}"
        return line


def _limit_keys(key: str, counted: Counter[str]) -> str:
    """Return the key, or OTHER_KEY if there are too many keys already."""
    return key if key in counted or len(counted) < MAX_KEYS else OTHER_KEY


def _add_columns(sums: Counter[str], row: FileRow | PackageRow, names: tuple[str, ...]) -> None:
    for name in names:
        sums[name] += getattr(row, name)


def write_tables(output: OutputDirectory, visit: Callable[[PackageResult], object]) -> RunTotals:
    """Write the tables of the last run, and return their sums. Only the keys and some thousand rows are kept in memory.

    `visit`: called with the result of each package. Raises FormatError for a result that is missing or damaged, OSError.
    """
    totals = RunTotals()
    with ExitStack() as stack:
        files = stack.enter_context(ParquetTable(FileRow, stack.enter_context(output.open_new_file("files.parquet"))))
        packages = stack.enter_context(ParquetTable(PackageRow, stack.enter_context(output.open_new_file("packages.parquet"))))
        listing = stack.enter_context(output.open_new_file("packages.json"))
        for number, key in enumerate(output.read_keys()):
            result = output.read_result(key)
            totals.add_package(result.package)
            packages.add(result.package)
            visit(result)
            listing.write(b",\n" if number else b"[\n")
            listing.write(json.dumps(vars(result.package)).encode("ascii"))
            for row in result.files:
                totals.add_file(row)
                files.add(row)
        listing.write(b"\n]\n" if totals.packages else b"[]\n")
    output.write_json("summary.json", totals.to_json())
    return totals


class ParquetTable:
    """A context manager that writes a Parquet file in groups of rows."""

    def __init__(self, row_type: type[FileRow | PackageRow], file: BinaryIO) -> None:
        import pyarrow as pa  # noqa: PLC0415 - of the extra `fleet`
        from pyarrow import parquet  # noqa: PLC0415

        column_types = {
            int: pa.int64(),
            float: pa.float64(),
            str: pa.string(),
            RowOutcome: pa.string(),
            list[str]: pa.list_(pa.string()),
            dict[str, int]: pa.map_(pa.string(), pa.int64()),
        }
        columns = [(name, column_types[field_type]) for name, field_type in COLUMN_TYPES[row_type].items()]
        self.schema = pa.schema(columns, metadata={SCHEMA_KEY: str(SCHEMA_VERSION)})
        self.make_table = pa.Table.from_pylist
        self.writer = parquet.ParquetWriter(file, self.schema, compression="zstd")
        self.rows: list[dict[str, Any]] = []

    def add(self, row: FileRow | PackageRow) -> None:
        self.rows.append({name: _to_parquet_value(value) for name, value in vars(row).items()})
        if len(self.rows) >= ROW_GROUP_SIZE:
            self._write()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exception_type: type[BaseException] | None, *_: object) -> None:
        try:
            if exception_type is None:
                self._write()
                self.writer.close()
        finally:
            self.writer.is_open = False  # otherwise its destructor tries to close it again and prints an error

    def _write(self) -> None:
        if self.rows:
            self.writer.write_table(self.make_table(self.rows, schema=self.schema))
            self.rows.clear()


def _to_parquet_value(value: Any) -> Any:  # noqa: ANN401 - of a field of any type
    """Convert a field's value to a type of Parquet, with unprintable characters of texts escaped."""
    if isinstance(value, str):
        return printable(str(value))
    return sorted(value.items()) if isinstance(value, dict) else value
