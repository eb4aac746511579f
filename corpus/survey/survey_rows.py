"""The rows that a run has stored, and sums over its files."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from pyarrow import parquet

from sframegen.fleet.result_rows import FileRow, Outcome, PackageRow

if TYPE_CHECKING:
    from pathlib import Path

CODE = "code"  # the fate of code without CFI in FileRow.no_cfi
WITH_SECTION = (Outcome.ADDED, Outcome.UNCHANGED)
MAPS = ("left_out", "no_cfi")


def packages_of(run: Path) -> list[PackageRow]:
    return [PackageRow(**row) for row in _rows(run / "packages.parquet", PackageRow)]


def files_of(run: Path) -> list[FileRow]:
    return [FileRow(**row | {name: dict(row[name]) for name in MAPS}) for row in _rows(run / "files.parquet", FileRow)]


def _rows(table: Path, kind: type[FileRow | PackageRow]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = parquet.read_table(table, columns=[field.name for field in fields(kind)]).to_pylist()
    return rows


@dataclass
class Sums:
    """Sizes in bytes. Only files that get a section count, except in `seen`, `executable` and `silent`."""

    seen: int = 0
    files: int = 0
    executable: int = 0
    code: int = 0
    covered: int = 0
    silent: int = 0  #: code without CFI
    section: int = 0
    eh_frame: int = 0  #: .eh_frame + .eh_frame_hdr

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
