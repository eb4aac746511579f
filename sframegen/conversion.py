"""A file's call frame information -> SFrame functions, and what became of every byte of code that it describes."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from cfi import reader
from cfi.expression import PC_PERIOD
from cfi.section import Registers
from sframegen.coverage import Coverage, Pieces, Unsaid
from sframegen.flexible import narrow
from sframegen.format.layouts import V3
from sframegen.format.words import encode_rule
from sframegen.model import FdeType, FunctionTable, Kind, Rule
from sframegen.resolve import IGNORED, ascends, resolve, subtract
from sframegen.split import LEFT_OUT, REPEATED, ROW, split
from sframegen.translate import Reason, Repeated, translate_rule

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cfi.rules import CfiRule, FdeTable
    from cfi.section import CfiSection
    from sframegen.abi import Abi
    from sframegen.format.layouts import Layout

REASONS = tuple(Reason)
NOT_BARRED = 255
FLAVOURS = range(4)  # signal + 2 * key B
KINDS = [
    *(Kind(fde_type, signal=bool(flavour & 1), key_b=bool(flavour & 2)) for flavour in FLAVOURS for fde_type in FdeType),
    *(Kind(rep_size=PC_PERIOD, mask=True, signal=bool(flavour & 1), key_b=bool(flavour & 2)) for flavour in FLAVOURS),
]


def convert(
    sections: Iterable[CfiSection], code: list[tuple[int, int]], abi: Abi, layout: Layout = V3
) -> tuple[FunctionTable, Coverage]:
    """The functions of all sections that lie in `code` ((start, end) addresses of executable ranges, ascending), by address."""
    fdes = reader.read(sections, Registers(abi.fp, abi.sp))
    ignored = array("Q", bytes(8 * len(IGNORED)))
    lost = array("I")
    pieces = _pieces(fdes, code, ignored, lost)
    rules = _Rules(fdes.rules, abi, layout)
    table, unsaid, whole = _split(fdes, pieces, rules, layout)
    table = narrow(table, abi, layout)
    coverage = Coverage(
        table=table,
        pieces=pieces,
        unsaid=unsaid,
        functions_covered=whole,
        ignored_fdes={what: count for what, count in zip(IGNORED, ignored, strict=True) if count},
        ignored_ranges=[(fdes.start[fde], fdes.start[fde] + fdes.size[fde]) for fde in lost],
    )
    return table, coverage


class _Rules:
    """The fate of each CFI rule, by columns, and the SFrame rules that come of them."""

    def __init__(self, cfi_rules: list[CfiRule], abi: Abi, layout: Layout) -> None:
        self.abi = abi
        self.layout = layout
        self.numbers: dict[Rule, int] = {}
        self.fate = bytearray()
        self.value = array("I")
        self.fde_type = bytearray()
        self.pattern_at = array("I", [0])
        self.pattern_start = array("I")
        self.pattern_rule = array("I")
        for cfi_rule in cfi_rules:
            self._add(translate_rule(cfi_rule, abi, layout))

    def _add(self, result: Rule | Repeated | Reason) -> None:
        fde_type = FdeType.DEFAULT
        if isinstance(result, Reason):
            fate, value = LEFT_OUT, REASONS.index(result)
        elif isinstance(result, Repeated):
            fate, value = REPEATED, len(self.pattern_at) - 1
            for offset, rule in result.rows:
                self.pattern_start.append(offset)
                self.pattern_rule.append(self._number(rule))
            self.pattern_at.append(len(self.pattern_start))
        else:
            fate, value = ROW, self._number(result)
            if encode_rule(result, FdeType.DEFAULT, self.abi, self.layout) is None:
                fde_type = FdeType.FLEX
        self.fate.append(fate)
        self.value.append(value)
        self.fde_type.append(fde_type)

    def _number(self, rule: Rule) -> int:
        return self.numbers.setdefault(rule, len(self.numbers))


def _pieces(fdes: FdeTable, code: list[tuple[int, int]], ignored: array[int], lost: array[int]) -> Pieces:
    """The code that each FDE describes; an earlier section's FDEs take precedence over a later one's. `lost`: see resolve."""
    range_start, range_end = array("Q", [start for start, _ in code]), array("Q", [end for _, end in code])
    taken = Pieces(array("I"), array("Q"), array("Q"))
    begin = 0
    for section_end in fdes.section_ends:
        count = section_end - begin
        found = Pieces(array("I", bytes(4 * count)), array("Q", bytes(8 * count)), array("Q", bytes(8 * count)))
        found_lost = array("I", bytes(4 * count))
        known = sum(ignored[1:])
        numbers: Iterable[int] = range(begin, section_end)
        if not (begin == 0 and ascends(fdes.start)):
            numbers = sorted(numbers, key=fdes.start.__getitem__)
        kept = resolve(array("I", numbers), fdes.start, fdes.size, range_start, range_end, *found, ignored, found_lost)
        lost += found_lost[: sum(ignored[1:]) - known]
        for column in found:
            del column[kept:]
        if begin:
            subtract(found, taken)
            taken = _merged(taken, found)
        else:
            taken = found
        begin = section_end
    return taken


def _merged(one: Pieces, other: Pieces) -> Pieces:
    """Both, by address."""
    both = sorted([*zip(*one, strict=True), *zip(*other, strict=True)], key=lambda piece: piece[1])
    return Pieces(
        array("I", [fde for fde, _, _ in both]),
        array("Q", [start for _, start, _ in both]),
        array("Q", [end for *_, end in both]),
    )


def _split(fdes: FdeTable, pieces: Pieces, rules: _Rules, layout: Layout) -> tuple[FunctionTable, Unsaid, int]:
    """(functions, what is left out, pieces covered from first byte to last)."""
    table = FunctionTable(kinds=KINDS, rules=list(rules.numbers))
    unsaid = Unsaid(array("Q"), array("I"), bytearray())
    counts = array("q", bytes(32))
    flavour = bytes(cie.signal + 2 * cie.key_b for cie in fdes.cies)
    barred = bytes(REASONS.index(Reason.SIGNAL) if cie.signal > layout.signal else NOT_BARRED for cie in fdes.cies)
    for write in (False, True):
        split(
            *pieces, fdes.start, flavour, barred, fdes.cie, fdes.first_row, fdes.row_start, fdes.row_rule,
            rules.fate, rules.value, rules.fde_type, rules.pattern_at, rules.pattern_start, rules.pattern_rule,
            PC_PERIOD, REASONS.index(Reason.CFA_EXPRESSION_UNALIGNED),
            table.start, table.size, table.kind, table.first_row, table.row_start, table.row_rule, *unsaid, counts, write,
        )  # fmt: skip
        if not write:
            functions, rows, ranges, _ = counts
            unsaid = Unsaid(array("Q", bytes(8 * ranges)), array("I", bytes(4 * ranges)), bytearray(ranges))
            table.start, table.size, table.kind = (
                array("Q", bytes(8 * functions)),
                array("I", bytes(4 * functions)),
                array("H", bytes(2 * functions)),
            )
            table.first_row = array("I", bytes(4 * (functions + 1)))
            table.row_start, table.row_rule = array("I", bytes(4 * rows)), array("I", bytes(4 * rows))
    return table, unsaid, counts[3]
