"""The tables of packages and files that the page can search and sort: columns, texts as numbers where they repeat."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any

from sframegen.fleet.report.fleet_figures import STEPS, compiler
from sframegen.fleet.report.sums import WITH_SECTION, eh_frame_bytes
from sframegen.fleet.result_rows import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sframegen.fleet.result_rows import FileRow, PackageRow

# A page with more takes browsers seconds to open: of a larger run, those with the most code are in the page, and all in files.csv.
FILES_IN_PAGE = 100_000
WARNINGS = 20  #: of a file or package


class Texts:
    """Texts that repeat: a number for each, in the order of their first occurrence."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def of(self, text: str) -> int:
        return self._numbers.setdefault(one_line(text), len(self._numbers))

    def list(self) -> list[str]:
        return list(self._numbers)


class PackageTable:
    """Columns of packages, with the sums over their files."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, str], int] = {}
        self._kinds: list[str] = []
        self._rows: list[tuple[Any, ...]] = []
        self._sums: list[list[int]] = []
        self._texts = Texts()

    def add(self, row: PackageRow) -> int:
        """Return the package's number."""
        number = len(self._rows)
        self._numbers.setdefault((row.package, row.sha256), number)
        self._kinds.append(row.kind)
        texts = [self._texts.of(text) for text in (row.kind, row.outcome, row.reason)]
        warnings = [self._texts.of(text) for text in row.warnings[:WARNINGS]]
        sizes = (row.package_bytes, row.new_package_bytes, row.unpacked_bytes, row.entries, row.elf_files, row.peak_memory_bytes)
        seconds = [round(getattr(row, f"seconds_{step}"), 3) for step in STEPS]
        self._rows.append((one_line(row.package), *texts, *sizes, *seconds, warnings))
        self._sums.append([0] * 5)
        return number

    def number_of(self, row: FileRow) -> int | None:
        """Return the number of a file's package; None if the table of packages lacks it."""
        return self._numbers.get((row.package, row.package_sha256))

    def kind_of(self, number: int | None) -> str:
        return "" if number is None else self._kinds[number]

    def add_file(self, number: int | None, row: FileRow) -> None:
        if number is not None and row.outcome in WITH_SECTION:
            for place, value in enumerate((1, row.code_bytes, row.covered_bytes, row.section_bytes, eh_frame_bytes(row))):
                self._sums[number][place] += value

    def columns(self) -> dict[str, Any]:
        names = (
            "name",
            "kind",
            "outcome",
            "reason",
            "bytes",
            "newBytes",
            "unpacked",
            "entries",
            "elfFiles",
            "memory",
            *STEPS,
            "warnings",
        )
        sums = ("withSection", "code", "covered", "section", "ehFrame")
        return {"texts": self._texts.list(), **_transposed(names, self._rows), **_transposed(sums, self._sums)}


class FileTable:
    """Columns of files: of all, or of those FILES_IN_PAGE that have the most code."""

    NAMES = (
        *(
            "number",
            "package",
            "path",
            "outcome",
            "reason",
            "machine",
            "type",
            "compiler",
            "version",
            "language",
            "bytes",
            "newBytes",
        ),
        *("executable", "code", "covered", "functions", "functionsCovered", "rows", "section", "stored", "ehFrame", "ehFrameHdr"),
        *("leftOut", "noCfi", "warnings", "seconds"),
    )

    def __init__(self, limit: int = FILES_IN_PAGE) -> None:
        self._limit = limit
        self._heap: list[tuple[int, int, tuple[Any, ...]]] = []
        self._texts = Texts()

    def add(self, number: int, package: int | None, row: FileRow) -> None:
        key = (row.code_bytes, -number)
        if len(self._heap) < self._limit:
            heapq.heappush(self._heap, (*key, self._row(number, package, row)))
        elif key > self._heap[0][:2]:
            heapq.heapreplace(self._heap, (*key, self._row(number, package, row)))

    def _row(self, number: int, package: int | None, row: FileRow) -> tuple[Any, ...]:
        text = self._texts.of
        return (
            number,
            -1 if package is None else package,
            one_line(row.path),
            *map(text, (row.outcome, row.reason, row.machine, row.elf_type, compiler(row), row.producer_version, row.language)),
            *(row.file_bytes, row.new_file_bytes, row.executable_bytes, row.code_bytes, row.covered_bytes, row.functions),
            *(row.functions_covered, row.rows, row.section_bytes, row.stored_bytes, row.eh_frame_bytes, row.eh_frame_hdr_bytes),
            *([value for name, count in counts.items() for value in (text(name), count)] for counts in (row.left_out, row.no_cfi)),
            [text(warning) for warning in row.warnings[:WARNINGS]],
            round(row.seconds, 4),
        )

    def columns(self) -> dict[str, Any]:
        rows = sorted(row for _, _, row in self._heap)
        return {"texts": self._texts.list(), **_transposed(self.NAMES, rows)}


def _transposed(names: Iterable[str], rows: list[Any]) -> dict[str, list[Any]]:
    return {name: [row[place] for row in rows] for place, name in enumerate(names)}
