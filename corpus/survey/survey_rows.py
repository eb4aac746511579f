"""The rows that a run has stored, and sums over its files."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from pyarrow import parquet

from sframegen.fleet.result_rows import FileRow, PackageRow, RowOutcome

if TYPE_CHECKING:
    from pathlib import Path

CODE = "code"  # the fate of code without CFI in FileRow.no_cfi
WITH_SECTION = (RowOutcome.ADDED, RowOutcome.UNCHANGED)


def packages_of(run: Path) -> list[PackageRow]:
    columns = [field.name for field in fields(PackageRow)]
    return [PackageRow(**row) for row in parquet.read_table(run / "packages.parquet", columns=columns).to_pylist()]


def files_of(run: Path) -> list[FileRow]:
    columns = [field.name for field in fields(FileRow)]
    rows = parquet.read_table(run / "files.parquet", columns=columns).to_pylist()
    return [FileRow(**row | {name: dict(row[name]) for name in ("left_out", "no_cfi")}) for row in rows]


@dataclass
class Sums:
    """Sums over files. Sizes are in bytes. Only files that get a section count, except in the last three."""

    files: int = 0
    code: int = 0
    covered: int = 0
    section: int = 0
    eh_frame: int = 0  #: .eh_frame + .eh_frame_hdr
    seen: int = 0
    executable: int = 0  #: bytes
    silent: int = 0  #: bytes of code without CFI

    def add(self, row: FileRow) -> None:
        self.seen += 1
        self.executable += row.executable_bytes
        self.silent += row.no_cfi.get(CODE, 0)
        if row.outcome in WITH_SECTION:
            self.files += 1
            self.code += row.code_bytes
            self.covered += row.covered_bytes
            self.section += row.section_bytes
            self.eh_frame += eh_frame_bytes(row)


def eh_frame_bytes(row: FileRow) -> int:
    return row.eh_frame_bytes + row.eh_frame_hdr_bytes


def size_ratio(row: FileRow) -> float:
    """Return the size of the section in proportion to .eh_frame + .eh_frame_hdr; 0 for a file without one of these."""
    return row.section_bytes / eh_frame_bytes(row) if row.section_bytes and eh_frame_bytes(row) else 0
