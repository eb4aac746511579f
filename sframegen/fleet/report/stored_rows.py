"""The rows that a run has stored as Parquet, one by one."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from cfi.errors import FormatError
from sframegen.elf.opening import open_regular
from sframegen.elf.text import printable, shortened
from sframegen.fleet.result_rows import FileRow, PackageRow

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ROWS_AT_ONCE = 2000
MAPS = ("left_out", "no_cfi")


def stored_packages(path: Path) -> Iterator[PackageRow]:
    """The rows of packages.parquet. Raises FormatError, OSError."""
    columns = [field.name for field in fields(PackageRow)]
    with _faults(path):
        for row in _rows(path, columns):
            yield PackageRow(**row)


def stored_files(path: Path) -> Iterator[FileRow]:
    """The rows of files.parquet. Raises FormatError, OSError."""
    columns = [field.name for field in fields(FileRow)]
    with _faults(path):
        for row in _rows(path, columns):
            yield FileRow(**row | {name: dict(row[name]) for name in MAPS})


def _rows(path: Path, columns: list[str]) -> Iterator[dict[str, Any]]:
    with open(open_regular(str(path), str(path)), "rb") as source, pq.ParquetFile(source) as file:  # noqa: PTH123 - a descriptor
        if missing := set(columns) - set(file.schema_arrow.names):
            raise FormatError(f"no columns {', '.join(sorted(missing))}: another version of sframegen wrote it", file=str(path))
        for batch in file.iter_batches(ROWS_AT_ONCE, columns=columns):
            yield from batch.to_pylist()


@contextmanager
def _faults(path: Path) -> Iterator[None]:
    """What pyarrow raises for a damaged file becomes a FormatError in one line."""
    try:
        yield
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise FormatError(f"not a table of results: {shortened(printable(str(error)))}", file=str(path)) from None
