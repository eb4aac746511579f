"""The rows that a run has stored, and sums over its files."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from pyarrow import parquet

from sframegen.fleet.output_directory import OutputDirectory
from sframegen.fleet.report_page import GroupSums, stored_files
from sframegen.fleet.result_rows import PackageRow, RowOutcome

if TYPE_CHECKING:
    from pathlib import Path

    from sframegen.fleet.result_rows import FileRow

CODE = "code"  # the fate of code without CFI in FileRow.no_cfi
WITH_SECTION = (RowOutcome.ADDED, RowOutcome.UNCHANGED)


def packages_of(run: Path) -> list[PackageRow]:
    columns = [field.name for field in fields(PackageRow)]
    return [PackageRow(**row) for row in parquet.read_table(run / "packages.parquet", columns=columns).to_pylist()]


def files_of(run: Path) -> list[FileRow]:
    with OutputDirectory.opened(str(run)) as output:
        return list(stored_files(output))


@dataclass
class Sums(GroupSums):
    """Only files that get a section count, except in these."""

    seen: int = 0
    executable: int = 0  #: bytes
    silent: int = 0  #: bytes of code without CFI

    def add(self, row: FileRow) -> None:
        self.seen += 1
        self.executable += row.executable_bytes
        self.silent += row.no_cfi.get(CODE, 0)
        if row.outcome in WITH_SECTION:
            super().add(row)


def eh_frame_bytes(row: FileRow) -> int:
    return row.eh_frame_bytes + row.eh_frame_hdr_bytes


def size_ratio(row: FileRow) -> float:
    """Return the size of the section in proportion to .eh_frame + .eh_frame_hdr; 0 for a file without one of these."""
    return row.section_bytes / eh_frame_bytes(row) if row.section_bytes and eh_frame_bytes(row) else 0
