"""Rows for code on which a file's call frame information is silent, by its instructions: what is not proven is not emitted."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from sframegen.code.analysis import Surroundings
from sframegen.code.entry import entry_range
from sframegen.code.functions import Finder
from sframegen.code.isa import ISAS
from sframegen.code.plt import plt_entries, plt_functions
from sframegen.code.starts import starts
from sframegen.code.surroundings import Outside
from sframegen.conversion import Converted
from sframegen.flexible import narrow
from sframegen.format.words import FDE_TYPES, EncodedRules, encode_rule
from sframegen.model import OUTERMOST, FunctionTable, Kind, Rule
from sframegen.resolve import subtract

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from sframegen.abi import Abi
    from sframegen.elf import ElfFile
    from sframegen.format.layouts import Layout

MAX_SIZE = 1 << 30  # bytes of a function
MAX_PADDING = 64  # bytes before code
Range = tuple[int, int]  # [start, end)


class Function(NamedTuple):
    """Rows (offset from `start`, rule) of one range of code."""

    start: int
    size: int
    kind: Kind
    rows: list[tuple[int, Rule]]


def synthesize(elf: ElfFile, converted: Converted) -> Converted:
    """With functions for code of which no CFI speaks. Raises FormatError where executable segments overlap."""
    coverage, encoded = converted.coverage, converted.encoded
    edges = [*coverage.pieces.end, *(end for _, end in coverage.ignored_ranges), *(start for start, _ in elf.executable_ranges())]
    begins = starts(elf, encoded.abi)
    silent = _from_begins(coverage.silent(elf), begins, sorted(edges))
    added: list[Function] = []
    ranges: list[list[Range]] = []
    for find in FINDERS:
        said = (_sayable(function, encoded.abi, encoded.layout) for function in find(elf, encoded.abi, silent, begins))
        found = [function for function in said if function is not None]
        ranges.append([(one.start, one.start + one.size) for one in found])
        added += found
        silent = _without(silent, ranges[-1])
    if not added:
        return converted
    table = _with(converted.table, sorted(added, key=lambda function: function.start))
    encoded = EncodedRules(table.rules, encoded.abi, encoded.layout)
    table = narrow(table, encoded)
    return Converted(table, replace(coverage, table=table, synthesized=tuple(ranges)), encoded)


def _from_begins(silent: list[Range], begins: set[int], edges: list[int]) -> list[Range]:
    """The ranges, each from the function on that begins with what was taken for padding before it, as AArch64's .init does.

    `edges`: where padding before them cannot reach farther back.
    """
    found = []
    behind = 0  # the range before
    for start, end in silent:
        low = max(behind, start - MAX_PADDING, edges[bisect_right(edges, start) - 1])
        found.append((min([begin for begin in range(low, start) if begin in begins], default=start), end))
        behind = end
    return found


def _plt(elf: ElfFile, abi: Abi, silent: list[Range], _begins: set[int]) -> Iterator[Function]:
    table = plt_functions(elf, abi, silent)
    for number, (start, size, kind) in enumerate(zip(table.start, table.size, table.kind, strict=True)):
        yield Function(start, size, table.kinds[kind], table.rows(number))


def _entry(elf: ElfFile, abi: Abi, silent: list[Range], _begins: set[int]) -> Iterator[Function]:
    found = entry_range(elf, abi, silent)
    if found is not None:
        start, end = found
        yield Function(start, end - start, Kind(), [(0, OUTERMOST)])


def _functions(elf: ElfFile, abi: Abi, silent: list[Range], begins: set[int]) -> Iterator[Function]:
    """One for each stretch of proven rows; the FDE type that the rules need is found later."""
    if abi.name not in ISAS or not silent:
        return
    stubs = plt_entries(elf, abi)
    known = (begins | stubs) - {elf.header.e_entry}  # which has no caller
    outside = Outside(elf, ISAS[abi.name], stubs)
    around = Surroundings(outside.returns, outside.table)
    open_rows: list[tuple[int, int, Rule]] = []
    for row in Finder(elf, abi, silent, known, around).rows():
        if open_rows and (open_rows[-1][1] != row[0] or row[1] - open_rows[0][0] > MAX_SIZE):
            yield _function(open_rows)
            open_rows = []
        open_rows.append(row)
    if open_rows:
        yield _function(open_rows)


def _function(rows: list[tuple[int, int, Rule]]) -> Function:
    start = rows[0][0]
    return Function(start, rows[-1][1] - start, Kind(), [(begin - start, rule) for begin, _, rule in rows])


# In the order of SYNTHESIZED.
FINDERS: tuple[Callable[[ElfFile, Abi, list[Range], set[int]], Iterable[Function]], ...] = (_plt, _entry, _functions)


def _sayable(function: Function, abi: Abi, layout: Layout) -> Function | None:
    """With the FDE type that says all of its rules; None where there is none."""
    for fde_type in FDE_TYPES:
        if all(encode_rule(rule, fde_type, abi, layout) is not None for _, rule in function.rows):
            return function._replace(kind=function.kind._replace(fde_type=fde_type))
    return None


def _without(silent: list[Range], taken: list[Range]) -> list[Range]:
    """What of the one the other does not hold; both ascend."""
    rest = [array("I", bytes(4 * len(silent))), array("Q", [low for low, _ in silent]), array("Q", [high for _, high in silent])]
    subtract(rest, [array("I"), array("Q", [low for low, _ in taken]), array("Q", [high for _, high in taken])])
    return list(zip(rest[1], rest[2], strict=True))


def _with(table: FunctionTable, added: list[Function]) -> FunctionTable:
    """Both, by address."""
    kinds = {kind: number for number, kind in enumerate(table.kinds)}
    rules = {rule: number for number, rule in enumerate(table.rules)}
    out = FunctionTable()
    done = 0
    for function in added:
        place = bisect_left(table.start, function.start)
        _copy(table, out, done, place)
        done = place
        out.start.append(function.start)
        out.size.append(function.size)
        out.kind.append(kinds.setdefault(function.kind, len(kinds)))
        for offset, rule in function.rows:
            out.row_start.append(offset)
            out.row_rule.append(rules.setdefault(rule, len(rules)))
        out.first_row.append(len(out.row_start))
    _copy(table, out, done, len(table))
    out.kinds, out.rules = list(kinds), list(rules)
    return out


def _copy(table: FunctionTable, out: FunctionTable, first: int, end: int) -> None:
    """Functions first .. end - 1 as they are."""
    rows = slice(table.first_row[first], table.first_row[end])
    moved = len(out.row_start) - table.first_row[first]
    out.start += table.start[first:end]
    out.size += table.size[first:end]
    out.kind += table.kind[first:end]
    out.first_row += array("I", [row + moved for row in table.first_row[first + 1 : end + 1]])
    out.row_start += table.row_start[rows]
    out.row_rule += table.row_rule[rows]
