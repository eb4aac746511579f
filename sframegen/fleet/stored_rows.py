"""The rows of files.parquet, as a run has stored them, one by one."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from cfi.errors import FormatError
from sframegen.elf.text import printable, shortened
from sframegen.fleet.result_rows import SCHEMA_KEY, SCHEMA_VERSION, FileRow

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sframegen.fleet.output_directory import OutputDirectory

NAME = "files.parquet"
ROWS_AT_ONCE = 2000
MAPS = ("left_out", "no_cfi")


def stored_files(output: OutputDirectory) -> Iterator[FileRow]:
    """What pyarrow raises for a damaged file becomes a FormatError in one line. Raises FormatError, OSError."""
    path = f"{output.path}/{NAME}"
    columns = [field.name for field in fields(FileRow)]
    try:
        with output.file(NAME) as source, pq.ParquetFile(source) as file:
            version = (file.schema_arrow.metadata or {}).get(SCHEMA_KEY.encode(), b"1")
            if version != str(SCHEMA_VERSION).encode():
                raise FormatError(
                    f"schema version {printable(version.decode('utf-8', 'replace'))}: a later sframegen reads it", file=path
                )
            if missing := set(columns) - set(file.schema_arrow.names):
                raise FormatError(f"no columns {', '.join(sorted(missing))}: another version of sframegen wrote it", file=path)
            for batch in file.iter_batches(ROWS_AT_ONCE, columns=columns):
                for row in batch.to_pylist():
                    yield FileRow(**row | {name: dict(row[name]) for name in MAPS})
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise FormatError(f"not a table of results: {shortened(printable(str(error)))}", file=path) from None
