from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest

from sframegen.base.errors import FormatError
from sframegen.fleet.collecting import ParquetTable
from sframegen.fleet.output_directory import OutputDirectory
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


def test_what_is_no_table_is_one_line(tmp_path: Path) -> None:
    import pyarrow as pa  # noqa: PLC0415 - of the extra
    from pyarrow import parquet  # noqa: PLC0415

    from sframegen.fleet.report_page import stored_files  # noqa: PLC0415

    def parquet_of(metadata: dict[str, str] | None) -> bytes:
        file = io.BytesIO()
        parquet.write_table(pa.table({"package": ["x"]}, metadata=metadata), file)
        return file.getvalue()

    whole = written(FileRow).getvalue()
    for content, why in (
        (parquet_of({SCHEMA_KEY: "2"}), "schema version 2; use a later sframegen"),
        (parquet_of(None), r"no columns build_id, .*: another version of sframegen wrote it"),
        *((damaged, "not a table of results") for damaged in (b"", b"text", whole[:-20], whole[:100] + whole[-100:])),
    ):
        (tmp_path / "files.parquet").write_bytes(content)
        with OutputDirectory.opened(str(tmp_path)) as output, pytest.raises(FormatError, match=why) as caught:
            list(stored_files(output))
        assert "\n" not in str(caught.value)


def test_the_document_has_the_columns() -> None:
    text = (ROOT / "docs/fleet.md").read_text().partition("\n## Columns\n")[2].partition("\n## ")[0]
    for name, part in zip(KINDS, text.split(".parquet`:\n")[1:], strict=True):
        with ParquetTable(KINDS[name], io.BytesIO()) as table:
            types = {field.name: type_text(field.type) for field in table.schema}
        lines = re.findall(r"^- (.*?)(?:, bytes)?: (.*(?:\n  .*)*)", part, re.MULTILINE)
        assert {name: kind for kind, names in lines for name in re.findall(r"`(\w+)`", names)} == types
