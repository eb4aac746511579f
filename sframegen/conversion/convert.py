"""Converts a file's call frame information to SFrame functions, and accounts for every byte of code that it describes.

`convert` reads the FDEs (cfi/reader.py), decides which FDE counts for which code (resolve.py), translates each distinct CFI rule
(translate.py), splits the FDEs' code into functions (split.py), and cuts flexible functions where that saves bytes (narrow.py).
"""

from __future__ import annotations

from array import array
from operator import add, itemgetter

from cfi import reader
from cfi.expression import PC_PERIOD
from sframegen.base.columns import is_ascending, make_columns, sort_indexes, zeros
from sframegen.base.errors import FormatError
from sframegen.base.quick_typing import TYPE_CHECKING, NamedTuple
from sframegen.base.text import format_count
from sframegen.conversion.cfi_sections import Sources, find_sources
from sframegen.conversion.coverage import Coverage
from sframegen.conversion.final_calls import read_symbol_addresses
from sframegen.conversion.resolve import IGNORE_REASONS, FdeRanges, resolve_overlaps
from sframegen.conversion.split import CieColumns, RuleColumns, RuleOutcome, Splitter, UncoveredRanges, count_maxima, split_ranges
from sframegen.conversion.translate import RepeatedPattern, Translator
from sframegen.elf.columns import build_spans
from sframegen.elf.ranges import START, Range, count_contained, find_uncovered_ranges, merge_ranges, subtract_ranges
from sframegen.format.layouts import V3, Layout
from sframegen.format.model import FdeType, FunctionTable, Kind, Rule
from sframegen.format.words import EncodedRules, Reason, RuleWords
from sframegen.tables.narrow import narrow_table
from sframegen.tables.optimize import Borders, build_optimized_encoder

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cfi.rules import CfiRule, FdeTable
    from cfi.section import CfiSection
    from sframegen.elf.file import ElfFile
    from sframegen.format.abi import Abi
    from sframegen.format.encode import Encoder
    from sframegen.tables.levels import Level

REASONS = tuple(Reason)
NO_REASON = 255  # in CieColumns
OUTSIDE_REASON = IGNORE_REASONS[1]
UNWALKED = "in code that the kernel frees or runs at another address"
# By number, as in CieColumns: (is a signal frame, has key B).
FRAME_FLAGS = [(False, False), (True, False), (False, True), (True, True)]
KINDS = [  # by number, as in split.py
    *(Kind(fde_type, signal=signal, key_b=key_b) for signal, key_b in FRAME_FLAGS for fde_type in FdeType),
    *(Kind(rep_size=PC_PERIOD, mask=True, signal=signal, key_b=key_b) for signal, key_b in FRAME_FLAGS),
]


class Converted(NamedTuple):
    """The result of `convert`: the functions, the coverage of the code, and the rules of the table as bytes."""

    table: FunctionTable
    coverage: Coverage
    encoded: EncodedRules

    def make_encoder(self, elf: ElfFile, level: Level) -> Encoder:
        """Return the encoder for the table at that level. Padding after a call that ends a function gets the call's rule.

        Raises FormatError as `Coverage.bytes_by_category` does.
        """
        coverage = self.coverage
        calls = coverage.final_calls(elf)
        borders = Borders(calls.symbols, coverage.uncovered.start, merge_ranges(coverage.ignored_ranges))
        return build_optimized_encoder(elf, calls.cover_padding(self.table), self.encoded, level, borders)


def convert(
    sections: Iterable[CfiSection], code: list[Range], abi: Abi, layout: Layout = V3, floating: Sequence[Range] = ()
) -> Converted:
    """Convert the FDEs of all sections that lie in `code`; the functions ascend.

    `code`: (start, end) addresses of executable ranges, ascending. `floating`: as in Sources.
    """
    fdes = reader.read_cfi_sections(sections, abi.followed)
    reason_counts = zeros("Q", len(IGNORE_REASONS))
    ignored_fdes: list[int] = []
    fde_ranges = _resolve_fde_ranges(fdes, code, reason_counts, ignored_fdes)
    words = RuleWords(abi, layout)
    rules = _RuleTranslations(fdes.rules, words)
    encoded = EncodedRules(rules.numbers, words)
    table, uncovered, functions_covered = _split_into_functions(fdes, fde_ranges, rules, encoded, floating)
    table = narrow_table(table, encoded)
    coverage = Coverage(
        table=table, fde_ranges=fde_ranges, uncovered=uncovered, functions_covered=functions_covered,
        ignored_fdes={reason: count for reason, count in zip(IGNORE_REASONS, reason_counts, strict=True) if count},
        ignored_ranges=[(fdes.start[fde], fdes.start[fde] + fdes.size[fde]) for fde in ignored_fdes], faulty_fdes=fdes.faulty,
        faults=fdes.faults,
    )  # fmt: skip
    return Converted(table, coverage, encoded)


def convert_sources(sources: Sources, code: list[Range], abi: Abi, layout: Layout = V3) -> Converted:
    """Convert all sections of a file. If a section that is not required cannot be read, add a warning, and use the required ones.

    Also add a warning if FDEs cannot be read. FDEs of code that a kernel's unwinder does not look up count as ignored.
    Raises FormatError for a required section that cannot be read.
    """
    code = subtract_ranges(code, sources.unwalked)
    try:
        converted = convert(sources.sections, code, abi, layout, sources.floating)
    except FormatError as error:
        if sources.required == len(sources.sections):
            raise
        converted = convert(sources.sections[: sources.required], code, abi, layout, sources.floating)
        sources.warnings.append(f"{error}; not used")
    if converted.coverage.faulty_fdes:
        fdes, fault = format_count(converted.coverage.faulty_fdes, "FDE"), converted.coverage.faults[0]
        sources.warnings.append(f"{fdes} cannot be read, the code is left out: for {fault.start:#x}, {fault}")
    coverage = converted.coverage
    unwalked = count_contained(sources.unwalked, map(START, coverage.ignored_ranges))
    if unwalked:
        coverage.ignored_fdes[UNWALKED] = unwalked
        coverage.ignored_fdes[OUTSIDE_REASON] -= unwalked
        if not coverage.ignored_fdes[OUTSIDE_REASON]:
            del coverage.ignored_fdes[OUTSIDE_REASON]
    return converted


def find_borders(elf: ElfFile, table: FunctionTable, abi: Abi) -> Borders:
    """Return the borders between functions of an existing section, which may leave out code that the CFI describes.

    No-ops between functions are padding only if the CFI does not describe them. Raises FormatError if the CFI cannot be read.
    """
    covered = merge_ranges(zip(table.start, map(add, table.start, table.size), strict=True))
    uncovered = array("Q", (start for start, _ in subtract_ranges(_read_fde_code(elf, abi), covered)))
    return Borders(read_symbol_addresses(elf), uncovered)


def _read_fde_code(elf: ElfFile, abi: Abi) -> list[Range]:
    """Return the code of all FDEs; all executable code if the file has no FDEs, or FDEs that cannot be read."""
    fdes = reader.read_cfi_sections(find_sources(elf).sections, abi.followed)
    if not len(fdes) or fdes.faulty:
        return elf.executable_ranges()
    return merge_ranges(zip(fdes.start, map(add, fdes.start, fdes.size), strict=True))


class _RuleTranslations:
    """The translation of each CFI rule, in columns as in RuleColumns, and the numbers of the SFrame rules."""

    def __init__(self, cfi_rules: list[CfiRule], words: RuleWords) -> None:
        self.numbers: dict[Rule, int] = {}
        self.outcome = bytearray()
        self.value = array("I")
        self.pattern_at = array("I", [0])
        self.pattern_start = array("I")
        self.pattern_rule = array("I")
        translator = Translator(words)
        for cfi_rule in cfi_rules:
            self._add_translation(translator.translate(cfi_rule))

    def _add_translation(self, result: Rule | RepeatedPattern | Reason) -> None:
        if isinstance(result, Rule):
            outcome, value = RuleOutcome.ROW, self._number_rule(result)
        elif isinstance(result, RepeatedPattern):
            outcome, value = RuleOutcome.REPEATED, len(self.pattern_at) - 1
            self.pattern_start.extend(offset for offset, _ in result.rows)
            self.pattern_rule.extend(self._number_rule(rule) for _, rule in result.rows)
            self.pattern_at.append(len(self.pattern_start))
        else:
            outcome, value = RuleOutcome.LEFT_OUT, REASONS.index(result)
        self.outcome.append(outcome)
        self.value.append(value)

    def _number_rule(self, rule: Rule) -> int:
        return self.numbers.setdefault(rule, len(self.numbers))


def _resolve_fde_ranges(fdes: FdeTable, code: list[Range], reason_counts: array[int], ignored_fdes: list[int]) -> FdeRanges:
    """Return the code that each FDE describes. FDEs of an earlier list take precedence over those of a later one.

    `reason_counts` and `ignored_fdes` are filled as in `resolve_overlaps`.
    """
    spans = build_spans(code)
    merged = FdeRanges(array("I"), array("Q"), array("Q"))
    begin = 0
    for list_end in fdes.list_ends:
        count = list_end - begin
        if count == 0:
            continue
        start, end, fde, list_ignored = make_columns("QQII", count)
        ignored_before = sum(reason_counts[1:])  # without the first reason: empty FDEs are only counted
        is_ordered = count == len(fdes) and is_ascending(fdes.start)
        order = array("I") if is_ordered else sort_indexes(fdes.start, begin, list_end)
        count = resolve_overlaps(order, fdes.columns(), spans, FdeRanges(fde, start, end), reason_counts, list_ignored)
        ignored_fdes += list_ignored[: sum(reason_counts[1:]) - ignored_before]
        list_ranges = FdeRanges(fde[:count], start[:count], end[:count])
        merged = _add_remaining(merged, list_ranges) if begin else list_ranges
        begin = list_end
    return merged


def _add_remaining(merged: FdeRanges, later: FdeRanges) -> FdeRanges:
    """Return the ranges of `merged`, and the parts of those of `later` that `merged` does not contain, ascending."""
    ranges = zip(later.start, later.end, strict=True)
    remaining = find_uncovered_ranges(ranges, [*zip(merged.start, merged.end, strict=True)])
    triples = [*zip(*merged, strict=True), *((later.fde[number], start, end) for number, start, end in remaining)]
    triples.sort(key=itemgetter(1))
    return FdeRanges(
        array("I", [fde for fde, _, _ in triples]),
        array("Q", [start for _, start, _ in triples]),
        array("Q", [end for *_, end in triples]),
    )


def _split_into_functions(
    fdes: FdeTable, fde_ranges: FdeRanges, rules: _RuleTranslations, encoded: EncodedRules, floating: Sequence[Range]
) -> tuple[FunctionTable, UncoveredRanges, int]:
    """Return (functions, uncovered ranges, number of FDE ranges covered from first byte to last)."""
    cies = CieColumns(
        bytes(cie.signal + 2 * cie.key_b for cie in fdes.cies),
        bytes(REASONS.index(Reason.SIGNAL) if cie.signal > encoded.layout.signal else NO_REASON for cie in fdes.cies),
    )
    patterns = (rules.pattern_at, rules.pattern_start, rules.pattern_rule)
    columns = (fdes.columns(), fdes.rows(), cies, RuleColumns(rules.outcome, rules.value, encoded.flexible(), *patterns))
    counts = zeros("q", 4)
    count_maxima(fde_ranges, *columns, counts)
    functions, rows, ranges, _ = counts  # upper limits
    table = FunctionTable.with_room(functions, rows, KINDS, list(rules.numbers))
    uncovered = UncoveredRanges(*make_columns("QIB", ranges))
    unaligned = REASONS.index(Reason.CFA_EXPRESSION_UNALIGNED)
    split_ranges(fde_ranges, Splitter(columns, table.columns(), uncovered, build_spans(floating), unaligned), counts)
    functions, rows, ranges, functions_covered = counts
    table.shrink(functions, rows)
    return table, UncoveredRanges(*(column[:ranges] for column in uncovered)), functions_covered
