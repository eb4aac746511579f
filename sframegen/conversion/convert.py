"""Converts a file's call frame information to SFrame functions, and accounts for every byte of code that it describes."""

from __future__ import annotations

from array import array
from operator import add

from cfi import reader
from cfi.expression import PC_PERIOD
from sframegen.base.columns import is_ascending, make_columns, sort_indexes, zeros
from sframegen.base.errors import FormatError
from sframegen.base.quick_typing import TYPE_CHECKING, NamedTuple
from sframegen.base.text import format_count
from sframegen.conversion.cfi_sections import Sources, find_sources
from sframegen.conversion.coverage import Coverage
from sframegen.conversion.final_calls import symbol_places
from sframegen.conversion.resolve import IGNORED, Pieces, resolve
from sframegen.conversion.split import Cies, Fate, RuleFates, Splitter, Unsaid, bounds, split
from sframegen.conversion.translate import RepeatedPattern, Translator
from sframegen.elf.columns import spans_of
from sframegen.elf.ranges import START, Range, count_contained, find_uncovered_ranges, merge_ranges, subtract_ranges
from sframegen.format.layouts import V3, Layout
from sframegen.format.model import FdeType, FunctionTable, Kind, Rule
from sframegen.format.words import EncodedRules, Reason, RuleWords
from sframegen.tables.narrow import narrow
from sframegen.tables.optimize import Borders, encoder_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cfi.rules import CfiRule, FdeTable
    from cfi.section import CfiSection
    from sframegen.elf.file import ElfFile
    from sframegen.format.abi import Abi
    from sframegen.format.encode import Encoder
    from sframegen.tables.levels import Level

REASONS = tuple(Reason)
NOT_BARRED = 255
OUTSIDE = IGNORED[1]
UNWALKED = "in code that the kernel frees or runs at another address"
FLAVOURS = range(4)  # signal + 2 * key B
KINDS = [
    *(Kind(fde_type, signal=bool(flavour & 1), key_b=bool(flavour & 2)) for flavour in FLAVOURS for fde_type in FdeType),
    *(Kind(rep_size=PC_PERIOD, mask=True, signal=bool(flavour & 1), key_b=bool(flavour & 2)) for flavour in FLAVOURS),
]


class Converted(NamedTuple):
    """The result of `convert`: the functions, the fate of the code, and the rules of the table as bytes."""

    table: FunctionTable
    coverage: Coverage
    encoded: EncodedRules

    def encoder(self, elf: ElfFile, level: Level) -> Encoder:
        """Return the encoder for the table at that level. Padding after a call that ends a function gets the call's rule.

        Raises FormatError as `Coverage.fates` does.
        """
        coverage = self.coverage
        calls = coverage.final_calls(elf)
        borders = Borders(calls.places, coverage.unsaid.start, merge_ranges(coverage.ignored_ranges))
        return encoder_of(elf, calls.covering(self.table), self.encoded, level, borders)


def convert(
    sections: Iterable[CfiSection], code: list[Range], abi: Abi, layout: Layout = V3, floating: Sequence[Range] = ()
) -> Converted:
    """Return the functions of all sections that lie in `code`, by address.

    `code`: (start, end) addresses of executable ranges, ascending. `floating`: as in Sources.
    """
    fdes = reader.read(sections, abi.followed)
    ignored = zeros("Q", len(IGNORED))
    lost: list[int] = []
    pieces = _resolve_pieces(fdes, code, ignored, lost)
    words = RuleWords(abi, layout)
    rules = _Rules(fdes.rules, words)
    encoded = EncodedRules(rules.numbers, words)
    table, unsaid, whole = _split_pieces(fdes, pieces, rules, encoded, floating)
    table = narrow(table, encoded)
    coverage = Coverage(
        table=table,
        pieces=pieces,
        unsaid=unsaid,
        functions_covered=whole,
        ignored_fdes={what: count for what, count in zip(IGNORED, ignored, strict=True) if count},
        ignored_ranges=[(fdes.start[fde], fdes.start[fde] + fdes.size[fde]) for fde in lost],
        faulty_fdes=fdes.faulty,
        faults=fdes.faults,
    )
    return Converted(table, coverage, encoded)


def convert_sources(sources: Sources, code: list[Range], abi: Abi, layout: Layout = V3) -> Converted:
    """Convert all sections of a file. If a section that is not required cannot be read, add a warning, and use the required ones.

    FDEs that cannot be read are a warning, too; those of code that a kernel's unwinder does not look up are counted as ignored.
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
        fdes, first = format_count(converted.coverage.faulty_fdes, "FDE"), converted.coverage.faults[0]
        sources.warnings.append(f"{fdes} cannot be read, the code is left out: for {first.start:#x}, {first}")
    coverage = converted.coverage
    unwalked = count_contained(sources.unwalked, map(START, coverage.ignored_ranges))
    if unwalked:
        coverage.ignored_fdes[UNWALKED] = unwalked
        coverage.ignored_fdes[OUTSIDE] -= unwalked
        if not coverage.ignored_fdes[OUTSIDE]:
            del coverage.ignored_fdes[OUTSIDE]
    return converted


def borders_of(elf: ElfFile, table: FunctionTable, abi: Abi) -> Borders:
    """Return the borders between functions of an existing section, which may leave out code that the CFI describes.

    No-ops between functions are padding only if the CFI does not describe them. Raises FormatError if the CFI cannot be read.
    """
    said = merge_ranges(zip(table.start, map(add, table.start, table.size), strict=True))
    unsaid = array("Q", (start for start, _ in subtract_ranges(_code_of_fdes(elf, abi), said)))
    return Borders(symbol_places(elf), unsaid)


def _code_of_fdes(elf: ElfFile, abi: Abi) -> list[Range]:
    """Return the code of all FDEs; all executable code if the file has no FDEs, or FDEs that cannot be read."""
    fdes = reader.read(find_sources(elf).sections, abi.followed)
    if not len(fdes) or fdes.faulty:
        return elf.executable_ranges()
    return merge_ranges(zip(fdes.start, map(add, fdes.start, fdes.size), strict=True))


class _Rules:
    """The fate of each CFI rule, in columns as in RuleFates, and the SFrame rules that they translate to."""

    def __init__(self, cfi_rules: list[CfiRule], words: RuleWords) -> None:
        self.numbers: dict[Rule, int] = {}
        self.fate = bytearray()
        self.value = array("I")
        self.pattern_at = array("I", [0])
        self.pattern_start = array("I")
        self.pattern_rule = array("I")
        translator = Translator(words)
        for cfi_rule in cfi_rules:
            self._add(translator.translate(cfi_rule))

    def _add(self, result: Rule | RepeatedPattern | Reason) -> None:
        if isinstance(result, Rule):
            fate, value = Fate.ROW, self._number(result)
        elif isinstance(result, RepeatedPattern):
            fate, value = Fate.REPEATED, len(self.pattern_at) - 1
            self.pattern_start.extend(offset for offset, _ in result.rows)
            self.pattern_rule.extend(self._number(rule) for _, rule in result.rows)
            self.pattern_at.append(len(self.pattern_start))
        else:
            fate, value = Fate.LEFT_OUT, REASONS.index(result)
        self.fate.append(fate)
        self.value.append(value)

    def _number(self, rule: Rule) -> int:
        return self.numbers.setdefault(rule, len(self.numbers))


def _resolve_pieces(fdes: FdeTable, code: list[Range], ignored: array[int], lost: list[int]) -> Pieces:
    """Return the code that each FDE describes. FDEs of an earlier list take precedence over those of a later one.

    `ignored` and `lost` are filled as in `resolve`.
    """
    spans = spans_of(code)
    taken = Pieces(array("I"), array("Q"), array("Q"))
    begin = 0
    for list_end in fdes.list_ends:
        count = list_end - begin
        if count == 0:
            continue
        start, end, fde, found_lost = make_columns("QQII", count)
        known = sum(ignored[1:])
        is_ordered = count == len(fdes) and is_ascending(fdes.start)
        order = array("I") if is_ordered else sort_indexes(fdes.start, begin, list_end)
        kept = resolve(order, fdes.columns(), spans, Pieces(fde, start, end), ignored, found_lost)
        lost += found_lost[: sum(ignored[1:]) - known]
        found = Pieces(fde[:kept], start[:kept], end[:kept])
        taken = _add_remaining(taken, found) if begin else found
        begin = list_end
    return taken


def _add_remaining(taken: Pieces, found: Pieces) -> Pieces:
    """Return `taken`, and the code of `found` that `taken` does not describe, by address."""
    ranges = zip(found.start, found.end, strict=True)
    rest = find_uncovered_ranges(ranges, [*zip(taken.start, taken.end, strict=True)])
    both = [*zip(*taken, strict=True), *((found.fde[number], start, end) for number, start, end in rest)]
    both.sort(key=lambda piece: piece[1])
    return Pieces(
        array("I", [fde for fde, _, _ in both]),
        array("Q", [start for _, start, _ in both]),
        array("Q", [end for *_, end in both]),
    )


def _split_pieces(
    fdes: FdeTable, pieces: Pieces, rules: _Rules, encoded: EncodedRules, floating: Sequence[Range]
) -> tuple[FunctionTable, Unsaid, int]:
    """Return (functions, code that is left out, number of pieces covered from first byte to last)."""
    cies = Cies(
        bytes(cie.signal + 2 * cie.key_b for cie in fdes.cies),
        bytes(REASONS.index(Reason.SIGNAL) if cie.signal > encoded.layout.signal else NOT_BARRED for cie in fdes.cies),
    )
    fates = RuleFates(rules.fate, rules.value, encoded.flexible(), rules.pattern_at, rules.pattern_start, rules.pattern_rule)
    described = (fdes.columns(), fdes.rows(), cies, fates)
    counts = zeros("q", 4)
    bounds(pieces, *described, counts)
    functions, rows, ranges, _ = counts
    table = FunctionTable.with_room(functions, rows, KINDS, list(rules.numbers))
    unsaid = Unsaid(*make_columns("QIB", ranges))
    unaligned = REASONS.index(Reason.CFA_EXPRESSION_UNALIGNED)
    split(pieces, Splitter(described, table.columns(), unsaid, spans_of(floating), unaligned), counts)
    functions, rows, ranges, whole = counts
    table.shrink(functions, rows)
    return table, Unsaid(*(column[:ranges] for column in unsaid)), whole
