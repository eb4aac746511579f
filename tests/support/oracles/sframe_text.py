"""Reads GNU `readelf --sframe` back into a table of rules."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

from .files import paragraphs, running
from .rules import OUTERMOST, Interner, OracleError, Ranges, Rule, Table, repeat_block

COUNT = re.compile(rb"    Num FDEs: (\d+)")
FIXED = re.compile(rb"    CFA fixed RA offset: (-?\d+)")
FUNCTION = re.compile(
    rb'    func idx \[(\d+)\]: pc = 0x([0-9a-f]+), size = (\d+) bytes(?:, attr = "([SF]+)")?(?:, pauth = (B) key)?'
)
COLUMNS = re.compile(rb"    STARTPC(\[m\])? +CFA +FP +RA *")
SIGNED = "[s]"
# A long cell touches the next one; the sign of -2147483648 follows another.
CELL = re.compile(r" *([a-z]\w*[+-]+\d+|\([a-z]\w*[+-]+\d+\)|[ufU])")


class SframeText(NamedTuple):
    table: Table
    functions: int
    rows: int
    empty: list[int]  # where the functions begin that have no rows


class RowMemo(dict[bytes, int]):
    """Text of a row after its address -> id of its rule."""

    def __init__(self, rules: Interner[Rule | None], fixed: str, *, signal: bool, key: str) -> None:
        self._rules = rules
        self._fixed = fixed
        self._signal = signal
        self._key = key

    def __missing__(self, text: bytes) -> int:
        self[text] = number = self._rules.id(parse_row(text.decode(), self._fixed, signal=self._signal, key=self._key))
        return number


def read(readelf: str, path: str, rules: Interner[Rule | None], block_sizes: Sequence[int]) -> SframeText:
    """The `.sframe` section of `path` as readelf prints it.

    readelf does not print the size of the block that an FDE of PC type MASK repeats: block_sizes[i] is that of
    function i. A function without rows is an outermost frame, as the specification says.
    """
    ranges = Ranges()
    header = b""
    functions = rows = 0
    empty: list[int] = []
    memos: dict[tuple[bool, str], RowMemo] = {}
    with running(readelf, "--sframe", path) as text:
        for block in paragraphs(text):
            head, *lines = block.strip(b"\n").split(b"\n")
            function = FUNCTION.fullmatch(head)
            if not function:
                if functions:
                    raise OracleError(f"readelf --sframe prints an unknown block: {block[:200]!r}")
                header += block + b"\n"
                continue
            if not functions:
                fixed = FIXED.search(header)
                fixed_ra = f"c{int(fixed[1]):+d}" if fixed else "same"
                for signal, key in product((False, True), "AB"):
                    memos[signal, key] = RowMemo(rules, fixed_ra, signal=signal, key=key)
            columns = COLUMNS.fullmatch(lines[0]) if lines else None
            if int(function[1]) != functions or not columns:
                raise OracleError(f"readelf --sframe prints as function {functions}: {block[:200]!r}")
            memo = memos[b"S" in (function[4] or b""), (function[5] or b"A").decode()]
            begin = int(function[2], 16)
            end = begin + int(function[3])
            first = len(ranges.locs)
            locs = [int(line[4:20], 16) for line in lines[1:]]
            ids = [memo[line[20:]] for line in lines[1:]]
            if columns[1]:
                if not block_sizes[functions]:
                    raise OracleError(f"function {functions} repeats a block of no bytes")
                for loc, rule in repeat_block(begin, end, block_sizes[functions], zip(locs, ids, strict=True)):
                    ranges.locs.append(loc)
                    ranges.ids.append(rule)
            else:
                ranges.locs.extend(locs)
                ranges.ids.extend(ids)
            if not locs:
                empty.append(begin)
                ranges.locs.append(begin)
                ranges.ids.append(rules.id(OUTERMOST))
            ranges.close(begin, end, first)
            functions += 1
            rows += len(locs)
    count = COUNT.search(header)
    if not count or int(count[1]) != functions:
        raise OracleError(f"readelf prints {functions} functions, its header says {count and int(count[1])}")
    return SframeText(ranges.table(), functions, rows, empty)


def parse_row(text: str, fixed_ra: str, *, signal: bool, key: str = "A") -> Rule:
    """The rule of a row: `text` is what follows the address, `fixed_ra` the RA rule where the row has none of its own."""
    if text.split() == ["RA", "undefined"]:
        return OUTERMOST
    unsigned = text.rstrip().removesuffix(SIGNED)
    cells = [cell.replace("+-", "-") for cell in CELL.findall(unsigned)]
    if len(cells) != 3 or CELL.sub("", unsigned).strip():
        raise OracleError(f"readelf --sframe prints an unknown row: {text!r}")
    # The RA rule of a flexible FDE's row that leaves it to the header is printed `U` where an FP rule follows it.
    words = {"u": "same", "f": fixed_ra, "U": fixed_ra}
    cfa, fp, ra = (words.get(cell, cell) for cell in cells)
    return Rule(cfa, fp, ra, signal, key if unsigned != text.rstrip() else "")
