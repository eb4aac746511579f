"""Merges many SFrame sections into one table of functions. docs/objects.md says which section wins where they disagree."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from dataclasses import replace
from itertools import groupby, islice
from operator import add, eq, lt
from typing import TYPE_CHECKING

from sframegen.base.errors import FormatError
from sframegen.format.decode import Decoder, SframeSection
from sframegen.format.layouts import F_FRAME_POINTER
from sframegen.format.model import FunctionTable, Kind, Rule

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sframegen.elf.ranges import Range
    from sframegen.format.abi import Abi

DROPPED_ADDRESS = (1 << 64) - 1  # the address of a function whose code a linker has dropped


class Merger:
    """Merges SFrame sections of one ABI and of any versions; the sections themselves are not kept."""

    def __init__(self) -> None:
        self.abi: Abi | None = None
        self.sections = 0
        self.flags = F_FRAME_POINTER  # header flags that all sections have
        self.versions: set[int] = set()
        self.fixed_offsets: set[tuple[int, int]] = set()  # (of FP, of RA), in bytes from the CFA
        self._decoder = Decoder()

    def add(self, section: SframeSection, starts: Sequence[int] | None = None) -> Sequence[int]:
        """Add a section, and return the sizes of its functions. Raises FormatError if it is damaged, or for another ABI.

        `starts`: the functions' addresses, or DROPPED_ADDRESS; None: the addresses in the section.
        """
        if self.abi and section.abi.sframe_id != self.abi.sframe_id:
            raise FormatError(f"SFrame section for {section.abi.name}, others are for {self.abi.name}", section.place, 4)
        self.abi = self.abi or section.abi
        self.sections += 1
        self.flags &= section.header.flags
        self.versions.add(section.header.version)
        self.fixed_offsets.add((section.abi.fixed_fp_offset, section.abi.fixed_ra_offset))
        return self._decoder.add(section, starts)

    def build_table(self, code: Sequence[Range], other_functions: FunctionTable | None = None) -> tuple[FunctionTable, int]:
        """Return (all functions by address, number of functions left out because they lie outside of the code).

        `code`: ascending ranges. Functions outside are those whose code a linker has dropped; their addresses are 0, for instance.
        `other_functions`: functions that are not in a section.
        """
        table = self._decoder.table if other_functions is None else concatenate_tables((self._decoder.table, other_functions))
        functions: Sequence[int] = range(len(table))
        if code and not _all_inside(table, code[0]):  # `code` is empty for a file that loads nothing
            starts = [start for start, _ in code]
            functions = [
                function
                for function, (start, size) in enumerate(zip(table.start, table.size, strict=True))
                if size and (index := bisect_right(starts, start) - 1) >= 0 and start + size <= code[index][1]
            ]
        dropped = len(table) - len(functions)
        if dropped == 0 and all(map(lt, table.start, islice(table.start, 1, None))):
            return table, 0
        functions = sorted(functions, key=table.start.__getitem__)
        starts = list(map(table.start.__getitem__, functions))
        if any(map(eq, starts, islice(starts, 1, None))):
            functions = _drop_repetitions(table, functions)
        return table.select(functions), dropped


def _all_inside(table: FunctionTable, code: Range) -> bool:
    """True if all functions lie in `code`, and no function is empty."""
    ends = map(add, table.start, table.size)
    return all(table.size) and min(table.start, default=code[0]) >= code[0] and max(ends, default=code[1]) <= code[1]


def _drop_repetitions(table: FunctionTable, functions: Sequence[int]) -> list[int]:
    """Return the functions without repetitions. Of several at one address the longest is last, because a search finds the last."""
    kept: list[int] = []
    for _, group in groupby(functions, table.start.__getitem__):
        at_one_start = list(group)
        if len(at_one_start) > 1:
            by_content = {(table.size[f], repr((table.kinds[table.kind[f]], table.rows(f)))): f for f in at_one_start}
            at_one_start = [by_content[content] for content in sorted(by_content)]  # ascending by size
        kept += at_one_start
    return kept


def concatenate_tables(tables: Iterable[FunctionTable]) -> FunctionTable:
    """Return one table of all functions, in the order of the tables; each kind and each rule is in it once."""
    out = FunctionTable()
    kinds: dict[Kind, int] = {}
    rules: dict[Rule, int] = {}
    for table in tables:
        kind_of = [kinds.setdefault(kind, len(kinds)) for kind in table.kinds]
        rule_of = [rules.setdefault(rule, len(rules)) for rule in table.rules]
        if kind_of != list(range(len(kind_of))) or rule_of != list(range(len(rule_of))):  # never the first table
            kind = array("H", map(kind_of.__getitem__, table.kind))
            row_rule = array("I", map(rule_of.__getitem__, table.row_rule))
            table = replace(table, kind=kind, row_rule=row_rule)  # noqa: PLW2901
        out.extend(table)
    out.kinds, out.rules = list(kinds), list(rules)
    return out
