"""Sums over the rows of a run: by language, compiler and machine, by reason, by step."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sframegen.fleet.collecting import RunTotals
from sframegen.fleet.report import WITH_SECTION
from sframegen.fleet.result_rows import PackageRow

if TYPE_CHECKING:
    from pathlib import Path

    from sframegen.fleet.result_rows import FileRow

STEPS = {"fetching": "fetch", "reading": "unpack", "converting": "convert", "writing": "pack"}  # with a column of seconds each
CODE = "code"  # the fate of code without CFI in FileRow.no_cfi
NUMBER = re.compile(r"\b(?:0x[0-9a-f]+|\d[\d,]{2,})\b", re.IGNORECASE)


@dataclass
class Sums:
    """Sizes are in bytes. Only files with a section count, except in `seen`, `executable` and `silent`."""

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


@dataclass
class Reason:
    """Files or packages that have no section for the same reason."""

    example: str
    number: int = 0
    bytes: int = 0


@dataclass
class Figures:
    totals: RunTotals = field(default_factory=RunTotals)
    all: Sums = field(default_factory=Sums)
    by: dict[str, defaultdict[str, Sums]] = field(
        default_factory=lambda: {name: defaultdict(Sums) for name in ("language", "compiler", "machine")}
    )
    whole: int = 0  #: files whose code is all covered
    steps: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(lambda: [0.0] * (2 + len(STEPS))))
    reasons: dict[tuple[str, str, str], Reason] = field(default_factory=dict)  #: by file or package, outcome, reason

    def add_package(self, row: PackageRow) -> None:
        self.totals.add_package(row)
        seconds = [getattr(row, f"seconds_{step}") for step in STEPS]
        steps = self.steps[row.kind or "unknown"]  # bytes, packages, seconds of each step
        for place, value in enumerate((row.package_bytes, 1, *seconds)):
            steps[place] += value
        if row.reason:
            self._reason("package", row, row.package, row.package_bytes)

    def add_file(self, row: FileRow) -> None:
        self.totals.add_file(row)
        self.all.add(row)
        compiler = f"{row.producer} {row.producer_version.partition('.')[0]}".strip()
        for name, key in (("language", row.language), ("compiler", compiler), ("machine", row.machine)):
            self.by[name][key or "unknown"].add(row)
        if row.outcome not in WITH_SECTION:
            self._reason("file", row, f"{row.package}: {row.path}", row.file_bytes)
        elif 0 < row.code_bytes == row.covered_bytes:
            self.whole += 1

    def _reason(self, what: str, row: FileRow | PackageRow, name: str, size: int) -> None:
        """A reason without its numbers: files that differ only in an address or a size count together."""
        reason = self.reasons.setdefault((what, str(row.outcome), NUMBER.sub("…", row.reason)), Reason(name))
        reason.number += 1
        reason.bytes += size


def stored_packages(run: Path) -> list[PackageRow]:
    return [PackageRow(**row) for row in json.loads((run / "packages.json").read_bytes())]


def eh_frame_bytes(row: FileRow) -> int:
    return row.eh_frame_bytes + row.eh_frame_hdr_bytes


def size_ratio(row: FileRow) -> float | None:
    """The size of the section in proportion to .eh_frame + .eh_frame_hdr; None for a file without one of these."""
    return row.section_bytes / eh_frame_bytes(row) if row.section_bytes and eh_frame_bytes(row) else None
