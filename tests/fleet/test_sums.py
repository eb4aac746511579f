"""A new number of a result is summed, or stands here among those that are not."""

from __future__ import annotations

from dataclasses import fields

from sframegen.api.add_summary import SUMMED_FIELDS, Summary
from sframegen.fleet.collecting import FILE_SUMS, PACKAGE_SUMS
from sframegen.fleet.result_rows import FileRow, PackageRow
from tests.support.loops import for_each

CASES = [
    (Summary, SUMMED_FIELDS, ()),
    (PackageRow, PACKAGE_SUMS, ("peak_memory_bytes",)),
    (FileRow, FILE_SUMS, ("seconds",)),  # which are in their package's
]


@for_each(("kind", "sums", "not_summed"), CASES)
def test_numbers_are_summed(kind: type[Summary | PackageRow | FileRow], sums: tuple[str, ...], not_summed: tuple[str, ...]) -> None:
    assert {one.name for one in fields(kind) if one.type in ("int", "float")} == {*sums, *not_summed}
