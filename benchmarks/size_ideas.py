"""What sections cost, what a linker can save without another format, and what another format could: docs/size.md, docs/tables.md.

usage: python -m benchmarks.size_ideas [--docs docs/size.md] [--tables docs/tables.md] FILE...

FILE is a name of the corpus or of a sample, or a path.

A saving is computed from the level's own functions, blocks and rows; nothing else of the section changes. Look-ups are of random
addresses in covered code: the quickest of several rounds. Pages: those of 4 KiB that one look-up touches, on average, in a section
that starts at a page: the index entries that a binary search reads, and the function's rows up to the one found.
"""

from __future__ import annotations

import argparse
import ctypes
import struct
import subprocess
import tempfile
from array import array
from bisect import bisect_right
from collections import Counter
from pathlib import Path
from statistics import mean
from time import process_time, process_time_ns
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.breakdown import KINDS, bytes_of
from benchmarks.figures import END, written_into
from benchmarks.lookup import random_pcs
from benchmarks.ours import ADDRESS, open_input
from benchmarks.places import CORPUS, corpus_file
from benchmarks.samples import SAMPLES, sample_file
from corpus.report_pages import measured_with
from sframegen.conversion import convert
from sframegen.format.decode import open_section
from sframegen.format.fre_bytes import words_size
from sframegen.format.layouts import DATAWORD_WIDTHS, V3
from sframegen.format.locate import sframe_of
from sframegen.profile.tables.decoded_table import ELEMENT, PAGE_BITS, RULE_ELEMENTS
from sframegen.profile.tables.make_table import make_table
from sframegen.profile.tables.table_file import HEADER, stored
from sframegen.tables.optimize import LEVELS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from benchmarks.ours import Input
    from sframegen.format.decode import SframeSection

BEGIN = "<!-- benchmarks.size_ideas writes this: begin -->"
INCLUDE = Path(__file__).parents[1] / "sframegen/integration/include"
ROUNDS = 5
PAGE = 4096
LOOKED_UP = 2000  # of the addresses, for pages
ENTRY = 16
GNU = "GNU as and ld"
SHOWN = (GNU, "none", "fast")
SHOWN_AS = {"sqlite": "SQLite"}


class Ideas(NamedTuple):
    """Bytes that a section would be smaller by, alone."""

    starts: int
    attributes: int
    deltas: int
    rules: int

    @classmethod
    def of(cls, section: SframeSection) -> Ideas:
        data, layout = section.data, section.layout
        blocks = {
            struct.unpack_from("<qII", data, entry)[2]
            for entry in range(section.index_at, section.index_at + section.header.num_fdes * ENTRY, ENTRY)
        }
        small = deltas = 0
        rules: Counter[bytes] = Counter()
        for block in blocks:
            at = section.fres_at + block
            rows, info = struct.unpack_from("<HB", data, at)
            width = DATAWORD_WIDTHS[info & 0xF]
            small += rows < 256
            pos, before = at + layout.attribute_size, 0
            for _ in range(rows):
                start = int.from_bytes(data[pos : pos + width], "little")
                size = 1 + words_size(data[pos + width])
                rules[bytes(data[pos + width : pos + width + size])] += 1
                deltas += width - _leb(start - before)
                before = start
                pos += width + size
        numbered = sum(count * _leb(number) for number, (_, count) in enumerate(rules.most_common()))
        words = sum(count * len(rule) for rule, count in rules.items())
        table = sum(4 + len(rule) for rule in rules)  # and where each begins
        return cls(4 * section.header.num_fdes, 3 * small, deltas, words - numbered - table)

    @property
    def all(self) -> int:
        return sum(self)


def _leb(number: int) -> int:
    """Bytes of a number of seven bits a byte."""
    return max(1, (number.bit_length() + 6) // 7)


class TableLookUp:
    """The header's look-up, compiled."""

    def __init__(self, scratch: Path) -> None:
        loop = scratch / "table.so"
        source = Path(__file__).with_name("look_up_table.c")
        subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-I", INCLUDE, "-o", loop, source], check=True)
        self._loop = ctypes.CDLL(str(loop)).look_up
        self._loop.restype = ctypes.c_int64

    def nanoseconds(self, table: bytes, pcs: array[int]) -> int:
        """For all addresses. Nearly each must have a rule: tables have none where handlers of exceptions are installed."""
        found = ctypes.c_int64()
        place, count = pcs.buffer_info()
        taken: int = self._loop(
            table, ctypes.c_uint64(len(table)), ctypes.c_void_p(place), ctypes.c_int64(count), ctypes.byref(found)
        )
        if found.value < 0.99 * count:
            raise ValueError(f"{found.value} of {count} addresses have a rule")
        return taken


def pages_of_section(section: SframeSection, pcs: Iterable[int]) -> float:
    starts = section.table.start
    touched = []
    for pc in pcs:
        low, high, pages = 0, len(starts), set()
        while low < high:
            middle = (low + high) // 2
            pages.add((section.index_at + ENTRY * middle) // PAGE)
            low, high = (middle + 1, high) if starts[middle] <= pc else (low, middle)
        entry = section.index_at + ENTRY * (low - 1)
        pages.add(entry // PAGE)
        at = section.fres_at + struct.unpack_from("<qII", section.data, entry)[2]
        first, end = section.table.first_row[low - 1 : low + 1]
        row = bisect_right(section.table.row_start, pc - starts[low - 1], first, end) - first
        _, info = struct.unpack_from("<HB", section.data, at)
        width = DATAWORD_WIDTHS[info & 0xF]
        last = at + section.layout.attribute_size
        for _ in range(row):
            last += width + 1 + words_size(section.data[last + width])
        pages.update(range(at // PAGE, (last - 1) // PAGE + 1))
        touched.append(len(pages))
    return mean(touched)


def pages_of_table(data: memoryview, places: tuple[int, int, int, int], pcs: Iterable[int]) -> float:
    base, index_at, rows_at, rules_at = places
    touched = []
    with data.cast("I") as numbers:
        for pc in pcs:
            page, offset = (pc - base) >> PAGE_BITS, pc - base & 0xFF
            at = 2 * index_at + page
            low, high = numbers[at], numbers[at + 1]
            pages = {4 * at // PAGE, (4 * at + 4) // PAGE}
            while low < high:
                middle = (low + high) // 2
                pages.add(4 * (2 * rows_at + middle) // PAGE)
                low, high = (middle + 1, high) if numbers[2 * rows_at + middle] & 0xFF <= offset else (low, middle)
            pages.add(4 * (2 * rows_at + low - 1) // PAGE)
            rule = numbers[2 * rows_at + low - 1] >> 16
            pages.add(ELEMENT * (rules_at + RULE_ELEMENTS * rule) // PAGE)
            touched.append(len(pages))
    return mean(touched)


class Measured(NamedTuple):
    """The rows of the tables of one file."""

    bytes_: list[str]
    linker: list[str]
    ideas: list[str]
    look_up: list[str]
    table: str


def measure(name: str, file: Path, loop: TableLookUp) -> Measured:
    source = open_input(file)
    frame = source.eh_frame_bytes + source.sources.eh_frame_hdr_bytes
    sections: dict[str, SframeSection] = {}
    linker: list[str] = []
    own = sframe_of(source.elf)
    if own:
        sections[GNU] = open_section(bytes(own[0]), own[1])
    converted = convert.convert(source.sources.sections, source.code, source.abi, V3)
    for level in LEVELS:
        began = process_time()
        encoded = memoryview(converted.encoder(source.elf, LEVELS[level]).encode(ADDRESS))
        seconds = process_time() - began
        sections[level] = open_section(encoded, ADDRESS)
        linker.append(f"| {name} | `{level}` | {sections[level].header.num_fdes:,} | {len(encoded):,} | {len(encoded) / frame:.2f} "
                      f"| {1e3 * seconds:,.0f} ms |")  # fmt: skip
    rows, ideas = [], []
    for what, section in sections.items():
        if what not in SHOWN:
            continue
        kinds, _ = bytes_of(section)
        cells = " | ".join(f"{kinds[kind]:,.0f}" for kind in KINDS)
        rows.append(f"| {name} | {what} | {section.header.num_fdes:,} | {section.end:,} | {section.end / frame:.2f} | {cells} |")
        saved = Ideas.of(section)
        shares = " | ".join(f"{100 * one / section.end:.1f} %" for one in (*saved, saved.all))
        ideas.append(f"| {name} | {what} | {shares} | {(section.end - saved.all) / frame:.2f} |")
    return Measured(rows, linker, ideas, *_looked_up(name, source, file, sections, loop, frame))


def _looked_up(
    name: str, source: Input, file: Path, sections: dict[str, SframeSection], loop: TableLookUp, frame: int
) -> tuple[list[str], str]:
    began = process_time()
    table = make_table(source.elf).table
    seconds = process_time() - began
    assert table is not None
    content = stored(table, source.elf.header.e_machine)
    converted = convert.convert(source.sources.sections, source.code, source.abi, V3)
    pcs = random_pcs(converted.table)  # sections also cover padding after calls that end a function
    some = pcs[:LOOKED_UP]
    took = min(loop.nanoseconds(content, pcs) for _ in range(ROUNDS)) / len(pcs)
    with memoryview(table.data) as view:
        pages = pages_of_table(view, (table.base, table.index_at, table.rows_at, table.rules_at), some)
    found = [f"| {name} | decoded table | {len(content):,} | {len(content) / frame:.2f} | {took:.0f} ns | {pages:.1f} |"]
    for level in LEVELS:
        section = sections[level]
        time = min(_nanoseconds(section, pcs) for _ in range(ROUNDS)) / len(pcs)
        of_some = pages_of_section(section, some)
        found.append(f"| {name} | `{level}` | {section.end:,} | {section.end / frame:.2f} | {time:.0f} ns | {of_some:.1f} |")
    megabytes = file.stat().st_size / 1e6
    row = (
        f"| {name} | {megabytes:,.0f} MB | {frame:,} | {table.rows:,} | {table.rules:,} | {len(content):,} "
        f"| {(len(content) - HEADER.size) / table.rows:.2f} | {seconds:.2f} s | {took:.0f} ns |"
    )
    return found, row


def _nanoseconds(section: SframeSection, pcs: array[int]) -> int:
    """Return the time of sframegen's compiled search in the section, for all addresses."""
    functions, rows = array("q", bytes(8 * len(pcs))), array("q", bytes(8 * len(pcs)))
    began = process_time_ns()
    section.seeker.find_all(pcs, functions, rows)
    return process_time_ns() - began


PARTS = {
    "bytes_": ("file", "section", "FDEs", "bytes", "of .eh_frame + hdr", *KINDS),
    "linker": ("file", "level", "FDEs", "bytes", "of .eh_frame + hdr", "processor time"),
    "ideas": ("file", "section", "32-bit starts", "attributes of 2 bytes", "row starts as differences", "table of rules", "all",
              "of .eh_frame + hdr, all"),
    "look_up": ("file", "form", "bytes", "of .eh_frame + hdr", "look-up", "pages touched"),
    "table": ("file", "size", ".eh_frame + hdr", "rows", "rules", "table", "bytes a row", "made in", "look-up"),
}  # fmt: skip


def _table(part: str, rows: Iterable[str]) -> str:
    head = PARTS[part]
    return "\n".join(["| " + " | ".join(head) + " |", "| " + " | ".join("---" for _ in head) + " |", *rows])


def _all_tables(found: Sequence[Measured]) -> Iterator[str]:
    for part in ("bytes_", "linker", "ideas", "look_up"):
        yield _table(part, (row for one in found for row in getattr(one, part)))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.size_ideas", description=__doc__)
    parser.add_argument("--docs", type=Path)
    parser.add_argument("--tables", type=Path)
    parser.add_argument("files", nargs="+")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        loop = TableLookUp(Path(scratch))
        files = {SHOWN_AS.get(name, Path(name).name): _file(name) for name in options.files}
        found = [measure(name, file, loop) for name, file in files.items()]
    texts = list(_all_tables(found))
    tables = f"{measured_with()}.\n\n" + _table("table", (one.table for one in found))
    print("\n\n".join([*texts, tables]))
    if options.docs:
        document = options.docs.read_text()
        for number, text in enumerate(texts):
            document = written_into_part(document, number, text)
        options.docs.write_text(document)
    if options.tables:
        options.tables.write_text(written_into(options.tables.read_text(), tables, BEGIN))


def _file(name: str) -> Path:
    if name in SAMPLES:
        return sample_file(name)
    return corpus_file(name) if name in CORPUS else Path(name)


def written_into_part(document: str, number: int, text: str) -> str:
    """The document, with a text between the marks of that number."""
    parts = document.split(BEGIN)
    _, _, after = parts[number + 1].partition(END)
    parts[number + 1] = f"\n{text}\n{END}{after}"
    return BEGIN.join(parts)


if __name__ == "__main__":
    main()
