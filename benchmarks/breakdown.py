"""Where the bytes of sections go, by kind and by the size of an FDE's code: GNU's beside each level's, and a lower bound.

usage: python -m benchmarks.breakdown [FILE...]    Without a file: the samples of both compilers, libLLVM and libxul.

The lower bound is of all sections of version 3 that have the same rules at the same addresses, whose FDEs begin where a row or a
function does, have at most the level's rows and, if of several functions, bytes of code, and cover no more padding than the level
does. Each FDE needs an index entry, for nothing else says where its code is, and an attribute before its block; row starts are as
narrow as the last one allows, words as narrow as the row's allow. The bytes of a block are divided by the number of places where it
could be: no section has it in more, so none is smaller than the sum. The sum need not be in reach: not all of these places can be
chosen at once.
"""

from __future__ import annotations

import struct
import sys
from bisect import bisect_right
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.figures import Figure, markdown
from benchmarks.ours import ADDRESS, open_input, section_of
from benchmarks.places import corpus_file
from benchmarks.samples import ALL, ALL_OLDER, sample_files
from sframegen.conversion import convert
from sframegen.elf.ranges import disjoint
from sframegen.format.decode import open_section
from sframegen.format.encode import Encoder
from sframegen.format.fre_bytes import words_size
from sframegen.format.layouts import DATAWORD_WIDTHS, HEADER_SIZE, V3
from sframegen.format.locate import sframe_of
from sframegen.tables.optimize import LEVELS, Borders, may_follow

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sframegen.format.decode import SframeSection
    from sframegen.format.model import FunctionTable
    from sframegen.format.words import EncodedRules
    from sframegen.tables.optimize import Level, LevelName

GNU = "GNU's"
MOST = 100_000_000  # blocks that a lower bound is of: they take 2 GB
MEASURED: tuple[LevelName, ...] = ("share", "fast", "size")
CLASSES = (32, 128, 512, 2048)  # bytes of code
KINDS = ("index", "attributes", "row starts", "info bytes", "data words")


def bytes_of(section: SframeSection) -> tuple[dict[str, float], dict[str, float]]:
    """(bytes of each kind, bytes of the FDEs of each size of code: an index entry, and its part of its block)."""
    layout, data = section.layout, section.data
    kinds = dict.fromkeys(KINDS, 0.0)
    users: dict[int, list[int]] = {}
    for entry in range(section.index_at, section.index_at + section.header.num_fdes * layout.index_size, layout.index_size):
        _, size, block = struct.unpack_from("<qII", data, entry)
        users.setdefault(block, []).append(size)
        kinds["index"] += layout.index_size
    classes = dict.fromkeys([*(f"code below {limit}" for limit in CLASSES), "larger"], 0.0)
    names = list(classes)
    for block, sizes in users.items():
        at = section.fres_at + block
        rows, info = struct.unpack_from("<HB", data, at)
        width = DATAWORD_WIDTHS[info & 0xF]
        words = 0
        pos = at + layout.attribute_size
        for _ in range(rows):
            row_words = words_size(data[pos + width])
            words += row_words
            pos += width + 1 + row_words
        for kind, count in zip(KINDS[1:], (layout.attribute_size, width * rows, rows, words), strict=True):
            kinds[kind] += count
        for size in sizes:
            classes[names[bisect_right(CLASSES, size)]] += layout.index_size + (pos - at) / len(sizes)
    return kinds, classes


def lower_bound(table: FunctionTable, encoded: EncodedRules, follows: bytes | bytearray, level: Level) -> int:
    """Bytes; see above."""
    places = _Places(table, encoded, follows)
    prices, ends = places.prices(level)
    best = np.zeros(len(places.start) + 1)
    index = V3.index_size
    for first in range(len(places.start) - 1, -1, -1):  # best[p]: of all that is from p on
        reach = prices[first, : ends[first]]
        best[first] = index + (reach + best[first + 1 : first + 1 + len(reach)]).min()
        whole = places.whole.get(first)
        if whole:
            end, price = whole
            best[first] = min(best[first], index + price + best[end])
    return HEADER_SIZE + int(best[0])


class _Places:
    """Where FDEs can begin: every row, and every function, though it repeats the rule before it."""

    def __init__(self, table: FunctionTable, encoded: EncodedRules, follows: bytes | bytearray) -> None:
        first = np.array(table.first_row, dtype=np.int64)
        counts = np.diff(first)
        function = np.repeat(np.arange(len(table)), counts)
        self.function = function
        self.start = np.array(table.start, dtype=np.int64)[function] + np.array(table.row_start, dtype=np.int64)
        self.rule = np.array(table.row_rule, dtype=np.int64)
        begins = np.zeros(len(self.start), dtype=bool)
        begins[first[:-1]] = True
        self.alone = begins & (np.frombuffer(bytes(follows), np.uint8)[function] == 0)  # what is before it is not of its FDE
        ends = np.array(table.start, dtype=np.int64)[function] + np.array(table.size, dtype=np.int64)[function]
        self.end = np.where(np.append(begins[1:], True), ends, np.append(self.start[1:], 0))
        kinds = np.array(table.kind, dtype=np.int64)[function]
        at = np.array(encoded.at, dtype=np.int64)
        number = 2 * self.rule + np.array([kind.fde_type for kind in table.kinds])[kinds]
        self.row_bytes = at[number + 1] - at[number]
        self.repeats = np.append(False, (self.rule[1:] == self.rule[:-1])) & ~self.alone
        self.kind = kinds
        encoder = Encoder(table, encoded.abi, V3, share=encoded.abi.shares_rows, encoded=encoded)
        users = np.bincount(np.array(encoder.owner), minlength=len(table))[np.array(encoder.owner)]
        shares = np.array(encoder.block_size) / users
        self.whole = {int(first[one]): (int(first[one + 1]), float(shares[one])) for one in range(len(table))}

    def prices(self, level: Level) -> tuple[np.ndarray, np.ndarray]:
        """([first, n]: the part of the block of places first .. first + n, how many n there are for each)."""
        count = len(self.start)
        steps = 2 * level.max_rows
        costs = np.zeros((count, steps), np.float32)
        keys = np.zeros((count, steps), np.uint64)
        reach = np.zeros(count, np.int64)
        here = np.arange(count)
        rows, words, last = np.zeros(count, np.int64), np.zeros(count, np.int64), np.zeros(count, np.int64)
        key = self.kind.astype(np.uint64)
        for step in range(steps):
            place = here + step
            here = here[place < count]
            place = here + step
            if step:
                here = here[~self.alone[place]]
            place = here + step
            new = here[~self.repeats[place]] if step else here
            last[new] = self.start[new + step] - self.start[new]
            rows[new] += 1
            words[new] += self.row_bytes[new + step]
            mixed = key[new] ^ (
                last[new].astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + self.rule[new + step].astype(np.uint64)
            )
            mixed *= np.uint64(0xFF51AFD7ED558CCD)
            key[new] = mixed ^ (mixed >> np.uint64(29))
            within = (self.end[here + step] - self.start[here] <= level.max_span) | (
                self.function[here + step] == self.function[here]
            )
            here = here[within & (rows[here] <= level.max_rows)]
            if not len(here):
                break
            width = np.where(last[here] < 0x100, 1, np.where(last[here] < 0x10000, 2, 4))
            costs[here, step] = V3.attribute_size + rows[here] * width + words[here]
            keys[here, step] = key[here]
            reach[here] = step + 1
        used = costs > 0
        _, which, uses = np.unique(keys[used], return_inverse=True, return_counts=True)
        costs[used] /= uses[which]
        return costs, reach


def measure(files: dict[str, Path]) -> Iterator[Figure]:
    for name, file in files.items():
        source = open_input(file)
        frame = source.eh_frame_bytes + source.sources.eh_frame_hdr_bytes
        sections = {str(level): open_section(section_of(source, level), ADDRESS) for level in MEASURED}
        own = sframe_of(source.elf)
        if own:
            sections = {GNU: open_section(*own), **sections}
        for what, section in sections.items():
            kinds, classes = bytes_of(section)
            of_all = section.end
            for part, figures in ((f"{name}: bytes", kinds), (f"{name}: bytes of FDEs", classes)):
                for kind, value in figures.items():
                    yield Figure(part, kind, what, value, "bytes")
            yield Figure(f"{name}: bytes", "FDEs", what, section.header.num_fdes, "")
            yield Figure(f"{name}: bytes", "section", what, of_all, "bytes")
            yield Figure(f"{name}: bytes", "part of .eh_frame + hdr", what, of_all / frame, "")
            if own:
                yield Figure(f"{name}: bytes", "part of GNU's", what, of_all / sections[GNU].end, "")
        converted = convert.convert(source.sources.sections, source.code, source.abi, V3)
        for level in MEASURED[1:]:
            if LEVELS[level].max_rows * len(converted.table.row_start) > MOST:
                continue
            coverage = converted.coverage
            calls = coverage.final_calls(source.elf)
            table = calls.covering(converted.table)
            borders = Borders(calls.places, coverage.unsaid.start, disjoint(coverage.ignored_ranges))
            bound = lower_bound(table, converted.encoded, may_follow(source.elf, table, borders), LEVELS[level])
            yield Figure(f"{name}: bytes", "lower bound", level, bound, "bytes")
            yield Figure(f"{name}: bytes", "section over the lower bound", level, sections[level].end / bound, "")


def main() -> None:
    names = [Path(one) for one in sys.argv[1:]]
    files = {one.name: one for one in names}
    if not files:
        samples = sample_files()
        files = {name: samples[name] for name in (ALL, ALL_OLDER)} | {name: corpus_file(name) for name in ("libLLVM", "libxul")}
    print(markdown(list(measure(files))))


if __name__ == "__main__":
    main()
