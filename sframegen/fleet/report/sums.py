"""Sums over files: their code, sections and call frame information, and how the sizes of both compare."""

from __future__ import annotations

import re
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sframegen.fleet.result_rows import Outcome

if TYPE_CHECKING:
    from sframegen.fleet.result_rows import FileRow

CODE = "code"  #: the fate of code without CFI in FileRow.no_cfi
WITH_SECTION = (Outcome.ADDED, Outcome.UNCHANGED, Outcome.GOOD, Outcome.WRONG)


@dataclass
class Sums:
    """Sums over the files of a kind; sizes are in bytes.

    Only those that get a section count, except in `seen`, `executable`, `silent` and `seconds`.
    """

    seen: int = 0
    files: int = 0
    file_bytes: int = 0  #: of files of which there is a new one: a survey writes none
    new_file_bytes: int = 0
    executable: int = 0  #: bytes in executable segments, of files that do not get a section, too
    code: int = 0
    covered: int = 0
    silent: int = 0  #: code without CFI, of files that do not get a section, too
    functions: int = 0
    section: int = 0
    eh_frame: int = 0  #: .eh_frame + .eh_frame_hdr
    seconds: float = 0.0
    ratios: array[float] = field(default_factory=lambda: array("f"))  #: of section and .eh_frame + .eh_frame_hdr, for each file

    def add(self, row: FileRow) -> None:
        self.seen += 1
        self.seconds += row.seconds
        self.executable += row.executable_bytes
        self.silent += row.no_cfi.get(CODE, 0)
        if row.outcome not in WITH_SECTION:
            return
        self.files += 1
        if row.new_file_bytes:
            self.file_bytes += row.file_bytes
            self.new_file_bytes += row.new_file_bytes
        self.code += row.code_bytes
        self.covered += row.covered_bytes
        self.functions += row.functions
        self.section += row.section_bytes
        self.eh_frame += eh_frame_bytes(row)
        ratio = size_ratio(row)
        if ratio is not None:
            self.ratios.append(ratio)

    def row(self, name: str) -> dict[str, Any]:
        """Return what the page shows of the kind, as JSON: names as in JavaScript."""
        shown = vars(self) | {"name": name, "seconds": round(self.seconds, 2), "ratios": quantiles(self.ratios)}
        return {re.sub("_(.)", lambda letter: letter[1].upper(), key): value for key, value in shown.items()}


def eh_frame_bytes(row: FileRow) -> int:
    return row.eh_frame_bytes + row.eh_frame_hdr_bytes


def size_ratio(row: FileRow) -> float | None:
    """Return the size of the section in proportion to .eh_frame + .eh_frame_hdr; None for a file without one of these."""
    return row.section_bytes / eh_frame_bytes(row) if row.section_bytes and eh_frame_bytes(row) else None


def quantiles(values: array[float], at: tuple[float, ...] = (0.1, 0.5, 0.9)) -> list[float]:
    """Return the values at these shares of their order: [] without values."""
    ordered = sorted(values)
    return [round(ordered[min(int(share * len(ordered)), len(ordered) - 1)], 4) for share in at] if ordered else []
