"""Results of a run, as `sframegen fleet run` stores them, from rows that a test makes."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from sframegen.fleet.result_rows import FileRow, PackageRow

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

TYPES: dict[str, Any] = {
    "str": pa.string(),
    "Outcome": pa.string(),
    "int": pa.int64(),
    "float": pa.float64(),
    "dict[str, int]": pa.map_(pa.string(), pa.int64()),
    "list[str]": pa.list_(pa.string()),
}


def write_table(path: Path, kind: type[FileRow | PackageRow], rows: Sequence[FileRow | PackageRow]) -> None:
    schema = pa.schema([(field.name, TYPES[str(field.type)]) for field in fields(kind)])
    plain = [
        {name: list(value.items()) if isinstance(value, dict) else value for name, value in asdict(row).items()} for row in rows
    ]
    pq.write_table(pa.Table.from_pylist(plain, schema), path)


def write_run(out: Path, packages: Sequence[PackageRow], files: Sequence[FileRow], run: dict[str, Any] | None = None) -> None:
    out.mkdir(exist_ok=True)
    write_table(out / "packages.parquet", PackageRow, packages)
    write_table(out / "files.parquet", FileRow, files)
    (out / "run.json").write_text(json.dumps(run or {"options": {"mode": "rewrite"}}))
