"""The rows that a run has stored as Parquet, one by one."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from cfi.errors import FormatError
from sframegen.elf.text import printable, shortened
from sframegen.fleet.result_rows import SCHEMA_KEY, SCHEMA_VERSION, FileRow, PackageRow

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sframegen.fleet.output_directory import OutputDirectory

ROWS_AT_ONCE = 2000
MAPS = ("left_out", "no_cfi")


def stored_packages(output: OutputDirectory) -> Iterator[PackageRow]:
    """The rows of packages.parquet. Raises FormatError, OSError."""
    columns = [field.name for field in fields(PackageRow)]
    with _stored(output, "packages.parquet", columns) as rows:
        for row in rows:
            yield PackageRow(**row)


def stored_files(output: OutputDirectory) -> Iterator[FileRow]:
    """The rows of files.parquet. Raises FormatError, OSError."""
    columns = [field.name for field in fields(FileRow)]
    with _stored(output, "files.parquet", columns) as rows:
        for row in rows:
            yield FileRow(**row | {name: dict(row[name]) for name in MAPS})


@contextmanager
def _stored(output: OutputDirectory, name: str, columns: list[str]) -> Iterator[Iterator[dict[str, Any]]]:
    """The rows of a table. What pyarrow raises for a damaged file becomes a FormatError in one line."""
    path = f"{output.path}/{name}"
    try:
        with output.file(name) as source, pq.ParquetFile(source) as file:
            version = (file.schema_arrow.metadata or {}).get(SCHEMA_KEY.encode(), b"1")
            if version != str(SCHEMA_VERSION).encode():
                raise FormatError(
                    f"schema version {printable(version.decode('utf-8', 'replace'))}: a later sframegen reads it", file=path
                )
            if missing := set(columns) - set(file.schema_arrow.names):
                raise FormatError(f"no columns {', '.join(sorted(missing))}: another version of sframegen wrote it", file=path)
            yield (row for batch in file.iter_batches(ROWS_AT_ONCE, columns=columns) for row in batch.to_pylist())
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise FormatError(f"not a table of results: {shortened(printable(str(error)))}", file=path) from None
