"""Compares a section with the call frame information of its file, for every byte of executable code."""

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
SIGNAL, KEY_B = 1, 2  # flavours
GIVEN = 4  # bits by which the section's flavours are shifted, beside the CFI's
SHOWN = 1000  # functions that get a finding each
NAMED = 3  # functions that a note names
# Registers that rules may name here. Another check tells whether stack tracers have the register.
ALL_REGISTERS = range(32)
ROOM = 1 << 16  # ranges that are recorded; for further ranges only the bytes are counted


@dataclass
class Truth:
    """The result of the comparison: bytes of executable code by verdict, and the findings.

    `table`: the part of the CFI that SFrame can express. `wrong`: ranges of code where the section is wrong, ascending; None if
    there are too many to record.
    """

    code: dict[Verdict, int]
    table: FunctionTable
    wrong: list[tuple[int, int]] | None = None
    findings: list[Finding] = field(default_factory=list)

    @property
    def compared_bytes(self) -> int:
        """Bytes of code that both the section and the CFI describe."""
        return self.code[Verdict.EQUAL] + self.code[Verdict.WRONG]


def compare(elf: ElfFile, section: SframeSection | AllSections, sources: Sources, abi: Abi) -> Truth:
    """Compare a section with the CFI on all executable code of its file, which is for that ABI.

    Raises FormatError if the section or the CFI cannot be read, or executable segments overlap or are not in the file.
    """
    code = _find_code(elf)
    table, coverage, _ = convert_sources(sources, elf.executable_ranges(), abi._replace(base_registers=ALL_REGISTERS))
    rules: dict[Rule, Rule] = {}
    truth, left_out = _rule_walker(table, abi, rules), _reason_walker(_readable(coverage.uncovered))
    given = _rule_walker(section.table, abi, rules)
    marks = SIGNAL if section.layout.signal else 0
    expressible = bytes(map(any, map(RuleWords(abi, section.layout).of, rules.values())))
    compared = bytes(marks | (KEY_B if rule.ra_signed else 0) for rule in rules)

    terms = sweep.Terms(expressible, compared, SIGNAL & ~marks)

    def run(wanted: Verdict, code: Spans = code) -> tuple[array[int], Ranges, bool]:
        """Return (bytes of each verdict, ranges of the wanted verdict, True if these are all of them)."""
        totals = zeros("Q", len(VERDICTS))
        found = Ranges(zeros("Q", ROOM), zeros("Q", ROOM), zeros("I", ROOM), zeros("i", ROOM), zeros("i", ROOM), zeros("B", ROOM))
        ranges = sweep.VerdictRanges(*found)
        sweep.sweep(code, truth(), left_out(), given(), terms, VERDICTS.index(wanted), ranges, totals)
        count, total = ranges.count, ranges.total
        del ranges  # it borrows the columns, which could not shrink
        for column in found:
            del column[count:]
        return totals, found, count == total

    totals, found, is_all = run(Verdict.WRONG)
    recorded = list(zip(found.start, found.end, strict=True))
    result = Truth(dict(zip(Verdict, totals, strict=True)), table, recorded if is_all else None)
    if result.code[Verdict.WRONG]:
        ranges = list(by_fde(found, coverage.fde_ranges))
        result.findings += wrong(elf, section, abi, list(rules.values()), ranges, result.code[Verdict.WRONG])
    if result.code[Verdict.ABSENT]:
        _, found, _ = run(Verdict.ABSENT)
        result.findings.append(absent(elf, list(by_fde(found, coverage.fde_ranges)), result.code[Verdict.ABSENT]))
    if result.code[Verdict.UNDESCRIBED]:
        silent = coverage.ranges_without_cfi(elf)
        totals, found, _ = run(Verdict.UNDESCRIBED, build_spans(silent))
        count = totals[VERDICTS.index(Verdict.UNDESCRIBED)]
        if count:
            result.findings.append(undescribed(elf, found, count))
    names = place_names(elf, [fault.start for fault in coverage.faults])
    result.findings += [
        Finding("cfi-fde", Severity.NOTE, f"{names[fault.start]}: its CFI cannot be read: {fault}", address=fault.start)
        for fault in coverage.faults
    ]
    if coverage.faulty_fdes > len(coverage.faults):
        rest = coverage.faulty_fdes - len(coverage.faults)
        result.findings.append(Finding("cfi-fde", Severity.NOTE, f"{rest:,} more FDEs cannot be read"))
    if not sources.sections:
        result.findings.append(Finding("cfi-none", Severity.NOTE, "no call frame information to compare it with"))
    return result


def _find_code(elf: ElfFile) -> Spans:
    """Return the executable ranges. Raises FormatError if they overlap, or are larger than the file."""
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


def _rule_walker(table: FunctionTable, abi: Abi, rules: dict[Rule, Rule]) -> Callable[[], sweep.RuleWalker]:
    """Return the maker of a walker along the table. Adds its rules to `rules`: plain form -> rule to print, numbered in order."""
    order = array("I") if is_ascending(table.start) else sort_indexes(table.start, 0, len(table))
    plain = [_plain(rule, abi) for rule in [OUTERMOST, *table.rules]]
    for form, rule in zip(plain, [OUTERMOST, *table.rules], strict=True):
        rules.setdefault(form, rule)
    place = {form: number for number, form in enumerate(rules)}
    outermost, *said = (place[form] for form in plain)
    return partial(
        sweep.RuleWalker,
        order, table.columns(), array("i", said),
        bytes(SIGNAL * kind.signal + KEY_B * kind.key_b for kind in table.kinds),
        bytes(kind.rep_size if kind.mask else 0 for kind in table.kinds),
        array("i", [-1 if kind.fde_type is FdeType.FLEX else outermost for kind in table.kinds]),
    )  # fmt: skip


def _readable(left_out: UncoveredRanges) -> UncoveredRanges:
    """Return the ranges without the code of FDEs that cannot be read, for which SFrame may or may not have a rule."""
    unreadable = REASONS.index(Reason.UNREADABLE)
    if unreadable not in left_out.reason:
        return left_out
    kept = [reason != unreadable for reason in left_out.reason]
    return UncoveredRanges(*(array(code, compress(column, kept)) for code, column in zip("QIB", left_out, strict=True)))


def _reason_walker(left_out: UncoveredRanges) -> Callable[[], sweep.RuleWalker]:
    """Return the maker of a walker along the ranges that are left out. Its rules are the numbers of the reasons."""
    count = len(left_out.start)
    functions = Functions(
        left_out.start, left_out.size, zeros("H", count), array("I", range(count + 1)), zeros("I", count),
        array("I", list(left_out.reason)),
    )  # fmt: skip
    return partial(
        sweep.RuleWalker,
        array("I"), functions, array("i", range(len(REASONS))), bytes(1), bytes(1), array("i", [-1]),
    )  # fmt: skip


def _plain(rule: Rule, abi: Abi) -> Rule:
    """Return the common form of all rules that give the same values: `*(cfa - 8)` with CFA = rsp + 16 is `*(rsp + 8)`."""
    cfa = rule.cfa
    if cfa is None:
        return OUTERMOST

    def plain(where: Where | None, own: int) -> Where | None:
        if where is not None and where.register is None and not cfa.deref:
            where = Where(cfa.register, where.offset + cfa.offset, where.deref)
        return None if where == (own, 0, False) else where

    return rule._replace(ra=plain(rule.ra, abi.ra), fp=plain(rule.fp, abi.fp))


class AllSections(NamedTuple):
    """The functions of all sections of an object, which do not have a common index."""

    table: FunctionTable
    layout: Layout
    index_at: None = None


class Ranges(NamedTuple):
    """The ranges that a sweep records, as columns."""

    start: array[int]
    end: array[int]
    function: array[int]
    expected: array[int]
    given: array[int]
    flavours: array[int]


class Stretch(NamedTuple):
    """The part of one range that FDE number `fde` describes."""

    fde: int
    start: int
    end: int
    function: int
    expected: int
    given: int
    flavours: int


def wrong(
    elf: ElfFile, section: SframeSection | AllSections, abi: Abi, rules: Sequence[Rule], found: list[Stretch], code: int
) -> list[Finding]:
    """Return a finding for each function of the CFI and each kind of error. `code`: wrong bytes, recorded or not."""
    groups: dict[tuple[int, str], list[Stretch]] = {}
    for one in found:
        groups.setdefault((one.fde, _describe_fault(one, section, abi, rules)[0]), []).append(one)
    shown = list(groups.items())[:SHOWN]
    names = place_names(elf, [group[0].start for _, group in shown])
    findings = []
    for (_, rule), group in shown:
        first = group[0]
        given = equation(rules[first.given], abi)
        message = f"{names[first.start]}, {_bytes(group[:1])}: {given}{_describe_fault(first, section, abi, rules)[1]}"
        if len(group) > 1:
            message += f"; {_bytes(group)} of the function in {len(group):,} ranges"
        offset = None if section.index_at is None else section.index_at + first.function * section.layout.index_size
        findings.append(Finding(rule, Severity.ERROR, message, offset=offset, address=first.start))
    rest = code - sum(one.end - one.start for _, group in shown for one in group)
    if rest:
        findings.append(Finding("cfi-more", Severity.ERROR, f"{rest:,} bytes of other functions are also wrong"))
    return findings


def absent(elf: ElfFile, found: list[Stretch], code: int) -> Finding:
    """Return the finding about code that the section lacks. `code`: its bytes, recorded or not."""
    first = {one.fde: one.start for one in reversed(found)}
    return _note(elf, "cfi-absent", f"{code:,} bytes of code have CFI that SFrame could express, but are not covered", first)


def undescribed(elf: ElfFile, found: Ranges, code: int) -> Finding:
    """Return the finding about code without CFI. `code`: bytes that only the section describes, without padding."""
    first = dict(zip(reversed(found.function), reversed(found.start), strict=True))
    return _note(elf, "cfi-silent", f"{code:,} bytes of code are covered, but have no CFI", first)


def _note(elf: ElfFile, rule: str, says: str, functions: dict[int, int]) -> Finding:
    """Return a note that names some functions. `functions`: function -> address of its first range, the last function first."""
    first = [*functions.values()][::-1]
    names = place_names(elf, first[:NAMED])
    message = f"{says}: {', '.join(names.values())}" + (", ..." if len(first) > NAMED else "")
    return Finding(rule, Severity.NOTE, message, address=first[0])


def by_fde(ranges: Ranges, pieces: FdeRanges) -> Iterator[Stretch]:
    """Yield the ranges, cut at the borders between FDEs."""
    for start, end, *said in zip(*ranges, strict=True):
        fde = bisect_right(pieces.start, start) - 1
        here = start
        while here < end:
            limit = min(end, pieces.end[fde])
            yield Stretch(fde, here, limit, *said)
            here = limit
            fde += 1


def _describe_fault(one: Stretch, section: SframeSection | AllSections, abi: Abi, rules: Sequence[Rule]) -> tuple[str, str]:
    """Return (the finding's rule, text about what the CFI says instead)."""
    if one.expected < 0:
        return "cfi-inexpressible", f"; SFrame cannot express the CFI: {REASONS[-1 - one.expected].value}"
    if one.expected != one.given:
        return "cfi-rule", f"; the CFI says {equation(rules[one.expected], abi)}"
    if section.layout.signal and (one.flavours ^ one.flavours >> GIVEN) & SIGNAL:
        is_signal = one.flavours & SIGNAL
        return (
            "cfi-signal",
            f", {'not ' if is_signal else ''}marked as a signal frame; the CFI {'does' if is_signal else 'does not'}",
        )
    keys = ("A", "B") if one.flavours & KEY_B else ("B", "A")
    return "cfi-key", f" with key {keys[0]}; the CFI says key {keys[1]}"


def _bytes(ranges: Sequence[Stretch]) -> str:
    return format_count(sum(one.end - one.start for one in ranges), "byte")


def place_names(elf: ElfFile, addresses: Sequence[int]) -> dict[int, str]:
    """Return address -> its name: `main+0x4`, or without a symbol `.plt.got+0x8`."""
    names = FunctionNames(last_functions_before(elf, addresses))
    sections = sorted((s.header.sh_addr, s.header.sh_size, s.name) for s in elf.sections if s.header.sh_flags & SHF.EXECINSTR)

    def place(address: int) -> str:
        number = bisect_right(sections, address, key=lambda section: section[0]) - 1
        start, size, name = sections[number] if number >= 0 else (0, 0, "")
        return f"{printable(name)}+{address - start:#x}" if address < start + size else f"{address:#x}"

    return {address: names.at(address) or place(address) for address in addresses}
