from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest

from sframegen.fleet.collecting import ParquetTable
from sframegen.fleet.result_rows import SCHEMA_KEY, SCHEMA_VERSION, FileRow, PackageRow
from tests import ROOT

pytestmark = pytest.mark.full

COLUMNS = json.loads(Path(__file__).with_name("columns_of_schema_1.json").read_text())
KINDS: dict[str, type[FileRow | PackageRow]] = {"files": FileRow, "packages": PackageRow}


@pytest.fixture(autouse=True)
def _extra() -> None:
    pytest.importorskip("pyarrow")


def type_text(of: object) -> str:
    """As all versions of pyarrow have it."""
    return re.sub(r"<\w+: ", "<", str(of))


def written(kind: type[FileRow | PackageRow]) -> io.BytesIO:
    file = io.BytesIO()
    with ParquetTable(kind, file):
        pass
    return file


def test_what_readers_of_the_schema_know_is_still_there() -> None:
    """A column that goes or has another type needs another SCHEMA_VERSION, and another file of columns."""
    from pyarrow import parquet  # noqa: PLC0415 - of the extra

    assert SCHEMA_VERSION == 1
    for name, kind in KINDS.items():
        schema = parquet.read_schema(written(kind))
        assert schema.metadata[SCHEMA_KEY.encode()] == b"1"
        assert COLUMNS[name].items() <= {field.name: type_text(field.type) for field in schema}.items()


def test_the_document_has_the_columns() -> None:
    text = (ROOT / "docs/fleet.md").read_text().partition("\n## Columns\n")[2].partition("\n## ")[0]
    for name, part in zip(KINDS, text.split(".parquet`:\n")[1:], strict=True):
        with ParquetTable(KINDS[name], io.BytesIO()) as table:
            types = {field.name: type_text(field.type) for field in table.schema}
        lines = re.findall(r"^- (.*?)(?:, bytes)?: (.*(?:\n  .*)*)", part, re.MULTILINE)
        assert {name: kind for kind, names in lines for name in re.findall(r"`(\w+)`", names)} == types
