"""All that the page shows in sum: made in one pass over the rows, of which only a few numbers for each file are kept."""

from __future__ import annotations

import heapq
import re
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sframegen.fleet.collecting import OTHER, RunTotals, bounded
from sframegen.fleet.report.sums import WITH_SECTION, Sums, eh_frame_bytes, size_ratio

if TYPE_CHECKING:
    from sframegen.fleet.result_rows import FileRow, PackageRow

EXTREMES = 10
EXAMPLES = 3
STEPS = ("fetching", "reading", "converting", "writing")  #: those of a package, with a column of seconds for each
# Lower ends of coverage classes in percent.
COVERAGE = (100, 99.99, 99.9, 99, 95, 0)
# The same of growth; what shrinks is in the first.
GROWTH = (0, 1, 2, 5, 10, 20, 50, 100)
NUMBER = re.compile(r"\b(?:0x[0-9a-f]+|\d[\d,]{2,})\b", re.IGNORECASE)


@dataclass
class ReasonFigures:
    """Files or packages that have no section for the same reason."""

    number: int = 0
    bytes: int = 0
    examples: list[tuple[int, str]] = field(default_factory=list)  #: (number, name)

    def add(self, number: int, name: str, size: int) -> None:
        self.number += 1
        self.bytes += size
        if len(self.examples) < EXAMPLES:
            self.examples.append((number, name))


class Extremes:
    """The few items with the largest value: (value, number of the item)."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, str, str]] = []

    def add(self, value: float, number: int, package: str, path: str = "") -> None:
        item = (value, -number, package, path)  # the first of equals stays
        if len(self._heap) < EXTREMES:
            heapq.heappush(self._heap, item)
        elif item > self._heap[0]:
            heapq.heapreplace(self._heap, item)

    def rows(self) -> list[list[Any]]:
        """Return [value, number, package, path] of each, the largest first."""
        return [[value, -number, package, path] for value, number, package, path in sorted(self._heap, reverse=True)]


class FleetFigures:
    """Sums over a whole run: its totals, and what only the page has."""

    def __init__(self) -> None:
        self.totals = RunTotals()
        self.rewritten = [0, 0, 0]  #: packages, their bytes, and those of the new ones
        self.package_growth = [0] * len(GROWTH)  #: packages in each class
        self.steps: dict[str, list[float]] = {}  #: kind of package -> bytes, packages, seconds of each step
        self.peak_memory = 0
        self.all = Sums()
        self.by: dict[str, defaultdict[str, Sums]] = {
            name: defaultdict(Sums) for name in ("language", "compiler", "machine", "kind", "size")
        }
        self.coverage = [[0, 0, 0] for _ in COVERAGE]  #: files, bytes with CFI, those of them left out
        self.ratios: dict[int, list[int]] = {}  #: in twentieths -> files, bytes of .eh_frame + .eh_frame_hdr
        self.growth = [0] * len(GROWTH)  #: ELF files in each class
        self.reasons: dict[tuple[str, str, str], ReasonFigures] = {}  #: file or package, outcome, reason
        self.extremes = {
            name: Extremes()
            for name in (
                "slowestPackages",
                "largestPackages",
                "slowest",
                "largestSections",
                "leastCovered",
                "highestRatio",
                "mostCode",
            )
        }

    def add_package(self, number: int, row: PackageRow) -> None:
        self.totals.add_package(row)
        self.peak_memory = max(self.peak_memory, row.peak_memory_bytes)
        seconds = [getattr(row, f"seconds_{step}") for step in STEPS]
        if row.new_package_bytes and row.package_bytes:
            self.package_growth[_growth_class(row.package_bytes, row.new_package_bytes)] += 1
            for place, value in enumerate((1, row.package_bytes, row.new_package_bytes)):
                self.rewritten[place] += value
        if row.reason:
            self._reason("package", row, number, row.package, row.package_bytes)
        steps = self.steps.setdefault(row.kind or "unknown", [0.0] * (2 + len(STEPS)))
        for place, value in enumerate((row.package_bytes, 1, *seconds)):
            steps[place] += value
        self.extremes["slowestPackages"].add(sum(seconds), number, row.package)
        self.extremes["largestPackages"].add(row.package_bytes, number, row.package)

    def add_file(self, number: int, row: FileRow, kind: str) -> None:
        """Count a file; `kind` is its package's."""
        self.totals.add_file(row)
        self.all.add(row)
        for name, key in (
            ("language", row.language or "unknown"),
            ("compiler", compiler(row)),
            ("machine", row.machine or "unknown"),
            ("kind", kind or "unknown"),
        ):
            self.by[name][bounded(key, self.by[name], OTHER)].add(row)
        self.extremes["slowest"].add(row.seconds, number, row.package, row.path)
        if row.outcome in WITH_SECTION:
            self._add_section(number, row)
        else:
            self._reason("file", row, number, f"{row.package}: {row.path}", row.file_bytes)

    def _add_section(self, number: int, row: FileRow) -> None:
        if row.code_bytes:
            share = 100 * row.covered_bytes / row.code_bytes
            place = next(place for place, least in enumerate(COVERAGE) if share >= least)
            for column, value in enumerate((1, row.code_bytes, row.code_bytes - row.covered_bytes)):
                self.coverage[place][column] += value
            if row.covered_bytes < row.code_bytes:
                self.extremes["leastCovered"].add(-share, number, row.package, row.path)
            self.extremes["mostCode"].add(row.code_bytes, number, row.package, row.path)
        self.extremes["largestSections"].add(row.section_bytes, number, row.package, row.path)
        ratio = size_ratio(row)
        if ratio is not None:
            self.extremes["highestRatio"].add(ratio, number, row.package, row.path)
            here = self.ratios.setdefault(min(int(ratio * 20), 40), [0, 0])
            here[0] += 1
            here[1] += eh_frame_bytes(row)
            self.by["size"][str(eh_frame_bytes(row).bit_length() - 1)].add(row)
        if row.file_bytes and row.new_file_bytes:
            self.growth[_growth_class(row.file_bytes, row.new_file_bytes)] += 1

    def _reason(self, what: str, row: FileRow | PackageRow, number: int, name: str, size: int) -> None:
        """A reason without its numbers: files that differ only in an address or a size count together."""
        key = (what, str(row.outcome), NUMBER.sub("…", row.reason))
        reason = bounded(key, self.reasons, (what, str(row.outcome), OTHER))
        self.reasons.setdefault(reason, ReasonFigures()).add(number, name, size)


def _growth_class(before: int, after: int) -> int:
    percent = 100 * (after / before - 1)
    return max(bisect_right(GROWTH, percent) - 1, 0)


def compiler(row: FileRow) -> str:
    """Return the compiler and its major version, if the file names them."""
    major = row.producer_version.partition(".")[0]
    return f"{row.producer} {major}".strip() or "unknown"
