"""Compares a section with the call frame information of its file, for every byte of executable code.

The CFI is converted to a table of SFrame rules, and the ranges that SFrame cannot express. Rules of this table and of the section's
get a normalized form, so that equal ones get one number; sweep.py then compares the numbers. Findings name the FDEs concerned.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from dataclasses import dataclass, field
from functools import partial
from itertools import compress

from sframegen.base.columns import is_ascending, sort_indexes, zeros
from sframegen.base.quick_typing import TYPE_CHECKING, NamedTuple
from sframegen.base.text import format_count, printable
from sframegen.checks import sweep
from sframegen.checks.finding import Finding, Severity, Verdict
from sframegen.conversion.convert import convert_sources
from sframegen.conversion.split import UncoveredRanges
from sframegen.elf.columns import Spans, build_spans
from sframegen.elf.function_names import FunctionNames
from sframegen.elf.records import SHF
from sframegen.elf.symbols import last_functions_before
from sframegen.format.columns import Functions
from sframegen.format.equations import equation
from sframegen.format.model import OUTERMOST, FdeType, FunctionTable, Rule, Where
from sframegen.format.words import Reason, RuleWords

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sframegen.conversion.cfi_sections import Sources
    from sframegen.conversion.resolve import FdeRanges
    from sframegen.elf.file import ElfFile
    from sframegen.format.abi import Abi
    from sframegen.format.decode import SframeSection
    from sframegen.format.layouts import Layout

REASONS, VERDICTS = tuple(Reason), tuple(Verdict)
SIGNAL_FLAVOUR, KEY_B_FLAVOUR = 1, 2  # flavours are bits for a rule's properties: for a signal frame, signed with key B
SECTION_FLAVOURS_SHIFT = 4  # in a recorded range, the section's flavours are this many bits above the CFI's
MAX_FINDINGS = 1000  # findings about one function each; more wrong code is only counted
MAX_NAMES = 3  # functions that a note names
ALL_REGISTERS = range(32)  # rules may name any register here, because another check finds those that stack tracers do not have
MAX_RANGES = 1 << 16  # ranges that are recorded; of further ranges only the bytes are counted
RANGE_TYPES = "QQIiiB"  # array types of the columns of RangeColumns


@dataclass
class CfiComparison:
    """The result of the comparison: bytes of executable code by verdict, and the findings.

    `table`: the part of the CFI that SFrame can express. `wrong_ranges`: code where the section is wrong, ascending; None if there
    are too many ranges to record.
    """

    code: dict[Verdict, int]
    table: FunctionTable
    wrong_ranges: list[tuple[int, int]] | None = None
    findings: list[Finding] = field(default_factory=list)

    @property
    def compared_bytes(self) -> int:
        """Bytes of code that both the section and the CFI describe."""
        return self.code[Verdict.EQUAL] + self.code[Verdict.WRONG]


def compare_with_cfi(elf: ElfFile, section: SframeSection | ObjectSections, sources: Sources, abi: Abi) -> CfiComparison:
    """Compare a section with the CFI, for all executable code of their file. `abi`: that of the file.

    Raises FormatError if the section or the CFI cannot be read, or executable segments overlap or are not in the file.
    """
    code = _find_code(elf)
    table, coverage, _ = convert_sources(sources, elf.executable_ranges(), abi._replace(base_registers=ALL_REGISTERS))
    rules: dict[Rule, Rule] = {}
    walk_cfi = _rule_walker_maker(table, abi, rules)
    walk_left_out = _reason_walker_maker(_drop_unreadable(coverage.uncovered))
    walk_section = _rule_walker_maker(section.table, abi, rules)
    signal = SIGNAL_FLAVOUR if section.layout.signal else 0
    expressible = bytes(map(any, map(RuleWords(abi, section.layout).encode, rules.values())))
    compared_flavours = bytes(signal | (KEY_B_FLAVOUR if rule.ra_signed else 0) for rule in rules)
    terms = sweep.Terms(expressible, compared_flavours, SIGNAL_FLAVOUR & ~signal)

    def find_ranges(wanted: Verdict, code: Spans = code) -> tuple[array[int], RangeColumns, bool]:
        """Return (bytes of each verdict, ranges of the wanted verdict, True if these are all of them)."""
        totals = zeros("Q", len(VERDICTS))
        found = RangeColumns(*(zeros(kind, MAX_RANGES) for kind in RANGE_TYPES))
        ranges = sweep.VerdictRanges(*found)
        sweep.sweep(code, walk_cfi(), walk_left_out(), walk_section(), terms, VERDICTS.index(wanted), ranges, totals)
        count, total = ranges.count, ranges.total
        del ranges  # deleted because a column cannot shrink while it is borrowed
        for column in found:
            del column[count:]
        return totals, found, count == total

    totals, found, is_all = find_ranges(Verdict.WRONG)
    recorded = list(zip(found.start, found.end, strict=True))
    result = CfiComparison(dict(zip(Verdict, totals, strict=True)), table, recorded if is_all else None)
    if result.code[Verdict.WRONG]:
        ranges = list(split_at_fdes(found, coverage.fde_ranges))
        result.findings += report_wrong_rules(elf, section, abi, list(rules.values()), ranges, result.code[Verdict.WRONG])
    if result.code[Verdict.ABSENT]:
        _, found, _ = find_ranges(Verdict.ABSENT)
        ranges = list(split_at_fdes(found, coverage.fde_ranges))
        result.findings.append(report_uncovered_code(elf, ranges, result.code[Verdict.ABSENT]))
    if result.code[Verdict.UNDESCRIBED]:
        totals, found, _ = find_ranges(Verdict.UNDESCRIBED, build_spans(coverage.ranges_without_cfi(elf)))
        count = totals[VERDICTS.index(Verdict.UNDESCRIBED)]
        if count:
            result.findings.append(report_code_without_cfi(elf, found, count))
    names = name_addresses(elf, [fault.start for fault in coverage.faults])
    result.findings += [
        Finding("cfi-fde", Severity.NOTE, f"{names[fault.start]}: its CFI cannot be read: {fault}", address=fault.start)
        for fault in coverage.faults
    ]
    if coverage.faulty_fdes > len(coverage.faults):
        unlisted = coverage.faulty_fdes - len(coverage.faults)
        result.findings.append(Finding("cfi-fde", Severity.NOTE, f"{unlisted:,} more FDEs cannot be read"))
    if not sources.sections:
        result.findings.append(Finding("cfi-none", Severity.NOTE, "no call frame information to compare it with"))
    return result


def _find_code(elf: ElfFile) -> Spans:
    """Return the executable ranges, ascending. Raises FormatError if they overlap, or are larger than the file."""
    starts, ends = array("Q"), array("Q")
    for start, end in elf.executable_ranges():
        elf.at(start, end - start)
        if ends and start < ends[-1]:
            raise elf.error(f"executable segments overlap at {start:#x}", "program header table")
        starts.append(start)
        ends.append(end)
    if sum(ends) - sum(starts) > len(elf.data):
        raise elf.error("executable segments are larger than the file", "program header table")
    return Spans(starts, ends)


def _rule_walker_maker(table: FunctionTable, abi: Abi, rules: dict[Rule, Rule]) -> Callable[[], sweep.RuleWalker]:
    """Return a function that makes a walker along the table, and add the table's rules to `rules`.

    `rules` maps the normalized form of a rule to the rule for messages; the position of a rule in it is its number.
    """
    order = array("I") if is_ascending(table.start) else sort_indexes(table.start, 0, len(table))
    normalized = [_normalize_rule(rule, abi) for rule in [OUTERMOST, *table.rules]]
    for form, rule in zip(normalized, [OUTERMOST, *table.rules], strict=True):
        rules.setdefault(form, rule)
    number_of = {form: number for number, form in enumerate(rules)}
    outermost, *rule_numbers = (number_of[form] for form in normalized)
    return partial(
        sweep.RuleWalker,
        order, table.columns(), array("i", rule_numbers),
        bytes(SIGNAL_FLAVOUR * kind.signal + KEY_B_FLAVOUR * kind.key_b for kind in table.kinds),
        bytes(kind.rep_size if kind.mask else 0 for kind in table.kinds),
        array("i", [-1 if kind.fde_type is FdeType.FLEX else outermost for kind in table.kinds]),
    )  # fmt: skip


def _drop_unreadable(left_out: UncoveredRanges) -> UncoveredRanges:
    """Return the ranges without code whose FDE cannot be read, because nobody knows whether SFrame could express its rules."""
    unreadable = REASONS.index(Reason.UNREADABLE)
    if unreadable not in left_out.reason:
        return left_out
    kept = [reason != unreadable for reason in left_out.reason]
    return UncoveredRanges(*(array(code, compress(column, kept)) for code, column in zip("QIB", left_out, strict=True)))


def _reason_walker_maker(left_out: UncoveredRanges) -> Callable[[], sweep.RuleWalker]:
    """Return a function that makes a walker along the ranges that are left out, which gives reasons in place of rules."""
    count = len(left_out.start)
    functions = Functions(
        left_out.start, left_out.size, zeros("H", count), array("I", range(count + 1)), zeros("I", count),
        array("I", list(left_out.reason)),
    )  # fmt: skip
    return partial(
        sweep.RuleWalker,
        array("I"), functions, array("i", range(len(REASONS))), bytes(1), bytes(1), array("i", [-1]),
    )  # fmt: skip


def _normalize_rule(rule: Rule, abi: Abi) -> Rule:
    """Return the same form for all rules that give the same values: `*(cfa - 8)` with CFA = rsp + 16 becomes `*(rsp + 8)`."""
    cfa = rule.cfa
    if cfa is None:
        return OUTERMOST

    def count_from_register(term: Where | None, own_register: int) -> Where | None:
        if term is not None and term.register is None and not cfa.deref:
            term = Where(cfa.register, term.offset + cfa.offset, term.deref)
        return None if term == (own_register, 0, False) else term

    return rule._replace(ra=count_from_register(rule.ra, abi.ra), fp=count_from_register(rule.fp, abi.fp))


class ObjectSections(NamedTuple):
    """The functions of all sections of an object, which have no common index. Used like an SframeSection."""

    table: FunctionTable
    layout: Layout
    index_at: None = None


class RangeColumns(NamedTuple):
    """The ranges that a sweep records, as columns. `expected`, `given`: numbers of the CFI's rule and of the section's."""

    start: array[int]
    end: array[int]
    function: array[int]
    expected: array[int]
    given: array[int]
    flavours: array[int]


class FdeRange(NamedTuple):
    """The part of a recorded range that FDE number `fde` describes."""

    fde: int
    start: int
    end: int
    function: int
    expected: int
    given: int
    flavours: int


def report_wrong_rules(
    elf: ElfFile, section: SframeSection | ObjectSections, abi: Abi, rules: Sequence[Rule], ranges: list[FdeRange], wrong_bytes: int
) -> list[Finding]:
    """Return a finding for each FDE and each kind of error in it. `wrong_bytes`: all, also those of ranges not in `ranges`."""
    groups: dict[tuple[int, str], list[FdeRange]] = {}
    for wrong in ranges:
        groups.setdefault((wrong.fde, _describe_fault(wrong, section, abi, rules)[0]), []).append(wrong)
    shown = list(groups.items())[:MAX_FINDINGS]
    names = name_addresses(elf, [group[0].start for _, group in shown])
    findings = []
    for (_, rule), group in shown:
        first_range = group[0]
        given = equation(rules[first_range.given], abi)
        _, fault = _describe_fault(first_range, section, abi, rules)
        message = f"{names[first_range.start]}, {_count_bytes(group[:1])}: {given}{fault}"
        if len(group) > 1:
            message += f"; {_count_bytes(group)} of the function in {len(group):,} ranges"
        offset = None if section.index_at is None else section.index_at + first_range.function * section.layout.index_size
        findings.append(Finding(rule, Severity.ERROR, message, offset=offset, address=first_range.start))
    rest = wrong_bytes - sum(wrong.end - wrong.start for _, group in shown for wrong in group)
    if rest:
        findings.append(Finding("cfi-more", Severity.ERROR, f"{rest:,} bytes of other functions are also wrong"))
    return findings


def report_uncovered_code(elf: ElfFile, ranges: list[FdeRange], byte_count: int) -> Finding:
    """Return the finding about code that the section lacks. `byte_count`: its bytes, also those of ranges not in `ranges`."""
    first_starts = {uncovered.fde: uncovered.start for uncovered in reversed(ranges)}
    text = f"{byte_count:,} bytes of code have CFI that SFrame could express, but are not covered"
    return _make_note(elf, "cfi-absent", text, first_starts)


def report_code_without_cfi(elf: ElfFile, ranges: RangeColumns, byte_count: int) -> Finding:
    """Return the finding about code that the section describes, but no CFI. `byte_count`: without padding."""
    first_starts = dict(zip(reversed(ranges.function), reversed(ranges.start), strict=True))
    return _make_note(elf, "cfi-silent", f"{byte_count:,} bytes of code are covered, but have no CFI", first_starts)


def _make_note(elf: ElfFile, rule: str, text: str, first_starts: dict[int, int]) -> Finding:
    """Return a note that names the first few functions. `first_starts`: function -> start of its first range, in reverse order."""
    starts = [*first_starts.values()][::-1]
    names = name_addresses(elf, starts[:MAX_NAMES])
    message = f"{text}: {', '.join(names.values())}" + (", ..." if len(starts) > MAX_NAMES else "")
    return Finding(rule, Severity.NOTE, message, address=starts[0])


def split_at_fdes(ranges: RangeColumns, fde_ranges: FdeRanges) -> Iterator[FdeRange]:
    """Yield the ranges, cut where one FDE ends and the next begins."""
    for start, end, *rest in zip(*ranges, strict=True):
        fde = bisect_right(fde_ranges.start, start) - 1
        at = start
        while at < end:
            limit = min(end, fde_ranges.end[fde])
            yield FdeRange(fde, at, limit, *rest)
            at = limit
            fde += 1


def _describe_fault(wrong: FdeRange, section: SframeSection | ObjectSections, abi: Abi, rules: Sequence[Rule]) -> tuple[str, str]:
    """Return (the finding's rule, the end of its message, which tells what the CFI says instead)."""
    if wrong.expected < 0:
        return "cfi-inexpressible", f"; SFrame cannot express the CFI: {REASONS[-1 - wrong.expected].value}"
    if wrong.expected != wrong.given:
        return "cfi-rule", f"; the CFI says {equation(rules[wrong.expected], abi)}"
    if section.layout.signal and (wrong.flavours ^ wrong.flavours >> SECTION_FLAVOURS_SHIFT) & SIGNAL_FLAVOUR:
        if wrong.flavours & SIGNAL_FLAVOUR:
            return "cfi-signal", ", not marked as a signal frame; the CFI does"
        return "cfi-signal", ", marked as a signal frame; the CFI does not"
    section_key, cfi_key = ("A", "B") if wrong.flavours & KEY_B_FLAVOUR else ("B", "A")
    return "cfi-key", f" with key {section_key}; the CFI says key {cfi_key}"


def _count_bytes(ranges: Sequence[FdeRange]) -> str:
    return format_count(sum(counted.end - counted.start for counted in ranges), "byte")


def name_addresses(elf: ElfFile, addresses: Sequence[int]) -> dict[int, str]:
    """Return a name for each address: `main+0x4`, or `.plt.got+0x8` if no symbol is there."""
    names = FunctionNames(last_functions_before(elf, addresses))
    sections = sorted((s.header.sh_addr, s.header.sh_size, s.name) for s in elf.sections if s.header.sh_flags & SHF.EXECINSTR)

    def place_in_section(address: int) -> str:
        number = bisect_right(sections, address, key=lambda section: section[0]) - 1
        start, size, name = sections[number] if number >= 0 else (0, 0, "")
        return f"{printable(name)}+{address - start:#x}" if address < start + size else f"{address:#x}"

    return {address: names.at(address) or place_in_section(address) for address in addresses}
