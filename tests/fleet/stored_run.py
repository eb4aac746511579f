"""Results of a run, as `sframegen fleet run` stores them, from rows that a test makes."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sframegen.fleet.result_rows import FileRow, PackageRow

if TYPE_CHECKING:
    from collections.abc import Sequence


def write_table(path: Path, kind: type[FileRow | PackageRow], rows: Sequence[FileRow | PackageRow]) -> None:
    """Skips the test without the extra `fleet`."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    types = {
        "str": pa.string(),
        "Outcome": pa.string(),
        "int": pa.int64(),
        "float": pa.float64(),
        "dict[str, int]": pa.map_(pa.string(), pa.int64()),
        "list[str]": pa.list_(pa.string()),
    }
    schema = pa.schema([(field.name, types[str(field.type)]) for field in fields(kind)])
    plain = [
        {name: list(value.items()) if isinstance(value, dict) else value for name, value in asdict(row).items()} for row in rows
    ]
    pq.write_table(pa.Table.from_pylist(plain, schema), path)


def write_run(out: Path, packages: Sequence[PackageRow], files: Sequence[FileRow], run: dict[str, Any] | None = None) -> None:
    out.mkdir(exist_ok=True)
    write_table(out / "packages.parquet", PackageRow, packages)
    write_table(out / "files.parquet", FileRow, files)
    (out / "run.json").write_text(json.dumps(run or {"options": {"mode": "rewrite"}}))


def report_of(out: Path) -> Path:
    """Skips the test without the extra `fleet`."""
    pytest.importorskip("altair")
    from sframegen.fleet.report.make_report import make_report  # noqa: PLC0415 - needs the extra

    return Path(make_report(out))
