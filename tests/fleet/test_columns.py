"""Columns of the tables are those of the document; a new number is summed, or stands here among those that are not."""

from __future__ import annotations

import io
import re
from dataclasses import fields

import pytest

from sframegen.api.add_summary import SUMMED_FIELDS, Summary
from sframegen.fleet.collecting import FILE_SUMS, PACKAGE_SUMS, ParquetTable
from sframegen.fleet.result_rows import SCHEMA_KEY, FileRow, PackageRow
from tests import ROOT
from tests.support.loops import for_each

KINDS: dict[str, type[FileRow | PackageRow]] = {"files": FileRow, "packages": PackageRow}
SUMS = [
    (Summary, SUMMED_FIELDS, ()),
    (PackageRow, PACKAGE_SUMS, ("peak_memory_bytes",)),
    (FileRow, FILE_SUMS, ("seconds",)),  # which are in their package's
]


@pytest.mark.full
def test_the_document_has_the_columns() -> None:
    """A column that goes or has another type needs another SCHEMA_VERSION."""
    pytest.importorskip("pyarrow")
    text = (ROOT / "docs/fleet.md").read_text().partition("\n## Columns\n")[2].partition("\n## ")[0]
    for name, part in zip(KINDS, text.split(".parquet`:\n")[1:], strict=True):
        with ParquetTable(KINDS[name], io.BytesIO()) as table:
            assert table.schema.metadata[SCHEMA_KEY.encode()] == b"1"
            types = {field.name: re.sub(r"<\w+: ", "<", str(field.type)) for field in table.schema}  # as of any pyarrow
        lines = re.findall(r"^- (.*?)(?:, bytes)?: (.*(?:\n  .*)*)", part, re.MULTILINE)
        assert {name: kind for kind, names in lines for name in re.findall(r"`(\w+)`", names)} == types


@for_each(("kind", "sums", "not_summed"), SUMS)
def test_numbers_are_summed(kind: type[Summary | PackageRow | FileRow], sums: tuple[str, ...], not_summed: tuple[str, ...]) -> None:
    assert {one.name for one in fields(kind) if one.type in ("int", "float")} == {*sums, *not_summed}
