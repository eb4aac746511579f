"""Compares a section with the call frame information as pyelftools reads it, for every byte of code that both describe."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from elftools.dwarf.callframe import RegisterRule

from sframegen.base.text import format_count
from sframegen.checks.against_cfi import CfiComparison, name_addresses
from sframegen.checks.finding import Finding, Severity
from sframegen.checks.second.meaning import Agreement, compare_rule, depends_on_pc, is_surely_expressible
from sframegen.checks.second.pyelftools_cfi import CfiRow, FdeColumns, RegisterRow, read_fdes
from sframegen.checks.tracks import NO_CLAIM, Track, intersect_tracks, new_track
from sframegen.format.equations import equation, register_name
from sframegen.format.model import Rule
from sframegen.tables.compare import RepeatedRules, RuleClaim, claim_spans

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sframegen.conversion.cfi_sections import Sources
    from sframegen.elf.file import ElfFile
    from sframegen.elf.ranges import Range
    from sframegen.format.abi import Abi
    from sframegen.format.decode import SframeSection
    from sframegen.program.workers import Progress

MAX_FINDINGS = 20  # findings of one kind; of further disagreements only the bytes are counted
MAX_PC_ROWS = 64  # if more rows depend on the PC, all of these stay unjudged, because each residue costs; linkers write one or two
LONGEST_PLT_ENTRY = 64  # bytes; the sizes of shorter PLT entries divide it
ONLY_SECOND_DIFFERS = "the section says {claim}; pyelftools, unlike sframegen, reads {row} from the CFI"
ONLY_FIRST_DIFFERS = "the section says {claim}, as pyelftools reads the CFI, but sframegen reads it differently"
ONLY_SECOND_READS = "the section says nothing; pyelftools, unlike sframegen, reads {row} from the CFI"


class Disagreement(NamedTuple):
    """Code for which the CFI has `row`, and the section `claim` or no rule. `size`: bytes of it, also of its repetitions."""

    start: int
    size: int
    row: CfiRow
    claim: RuleClaim | None


@dataclass
class Disagreements:
    """The first disagreements of a kind, and the bytes of the others."""

    first: list[Disagreement] = field(default_factory=list)
    rest: int = 0

    def add(self, one: Disagreement) -> None:
        if len(self.first) < MAX_FINDINGS:
            self.first.append(one)
        else:
            self.rest += one.size


@dataclass
class SecondReading:
    """The result of the comparison: bytes of code by Agreement, and the findings."""

    code: dict[str, int] = field(default_factory=lambda: dict.fromkeys(map(str, Agreement), 0))
    findings: list[Finding] = field(default_factory=list)


def compare_second_reading(
    elf: ElfFile, section: SframeSection, sources: Sources, first: CfiComparison, abi: Abi, progress: Progress | None
) -> SecondReading:
    """Compare the section with pyelftools' reading of the CFI.

    `first`: the comparison with sframegen's own reading. A rule that is wrong by both readings is reported only there.
    """
    fdes = _read_cfi(sources, abi, progress)
    claims: dict[RuleClaim, int] = {}
    section_track = new_track()
    for start, end, claim in claim_spans(section.table):
        section_track.add(start, end, claims.setdefault(claim, len(claims)))
    comparison = _Comparison(list(fdes.states), list(claims), section_track, abi, signal=section.layout.signal)
    result = SecondReading()
    only_second, only_first, left_out = Disagreements(), Disagreements(), Disagreements()
    described, wrong = _make_track(_find_described_ranges(first)), _make_track(first.wrong_ranges or [])
    tracks = fdes.make_track(elf.executable_ranges()), section_track, described, wrong
    for start, end, (row, claim_number, is_described, is_wrong) in intersect_tracks(*tracks):
        for agreement, one in comparison.compare_range(start, end, row, claim_number):
            if agreement is Agreement.LEFT_OUT:
                if is_described != NO_CLAIM:
                    continue
                left_out.add(one)
            elif first.wrong_ranges is not None and (is_wrong == NO_CLAIM) != (agreement is Agreement.SAME):
                # The readings disagree: where both contradict the section, the first comparison has reported it.
                (only_second if agreement is Agreement.OTHER else only_first).add(one)
            result.code[agreement] += one.size
    judged = result.code[Agreement.SAME] + result.code[Agreement.OTHER]
    unjudged = result.code[Agreement.UNJUDGED] = max(0, first.compared_bytes - judged)
    result.findings += _make_findings(elf, "second-reader", ONLY_SECOND_DIFFERS, only_second, abi)
    result.findings += _make_findings(elf, "second-reader", ONLY_FIRST_DIFFERS, only_first, abi)
    result.findings += _make_findings(elf, "second-reader-left-out", ONLY_SECOND_READS, left_out, abi)
    if unjudged:
        reasons = "".join(f"; {format_count(count, 'FDE')}: {reason}" for reason, count in fdes.unread.most_common())
        message = f"{unjudged:,} bytes of code are not judged by pyelftools{reasons}"
        result.findings.append(Finding("second-reader-unjudged", Severity.NOTE, message))
    return result


def _read_cfi(sources: Sources, abi: Abi, progress: Progress | None) -> FdeColumns:
    """Read all sections with pyelftools. Sections of one list of FDEs get the same number, because they are equally trusted."""
    fdes = FdeColumns()
    total, before = sum(len(section.data) for section in sources.sections), 0
    number = -1
    for section in sources.sections:
        number += not section.continues
        for done in read_fdes(section, number, abi, fdes):
            if progress:
                progress(before + done, total)
        before += len(section.data)
    return fdes


def _find_described_ranges(comparison: CfiComparison) -> Iterator[Range]:
    """Return the ranges of code for which sframegen's own reader finds a rule."""
    return ((start, start + size) for start, size in zip(comparison.table.start, comparison.table.size, strict=True))


def _make_track(ranges: Iterable[Range]) -> Track:
    found = new_track()
    for start, end in ranges:
        found.add(start, end, 0)
    return found


class _Comparison:
    """Compares rows of the CFI with a section's claims. `signal`: True if the section's version marks signal frames."""

    def __init__(self, rows: list[CfiRow], claims: list[RuleClaim], section: Track, abi: Abi, *, signal: bool) -> None:
        self.rows = rows
        self.claims = claims
        self.section = section
        self.abi = abi
        self.signal = signal
        self.by_pc = [depends_on_pc(row, abi) for row in rows]
        self.skips_by_pc = sum(self.by_pc) > MAX_PC_ROWS
        self.expressible = [is_surely_expressible(row, abi) for row in rows]
        self.known: dict[tuple[int, int, RuleClaim], Agreement] = {}

    def compare_range(self, start: int, end: int, row: int, claim_number: int) -> Iterator[tuple[Agreement, Disagreement]]:
        """Compare code that has one row in the CFI and one claim in the section. Yields nothing for code that is unjudged."""
        if row < 0 or (self.skips_by_pc and self.by_pc[row]):
            return
        if claim_number == NO_CLAIM:
            if self.expressible[row]:
                yield Agreement.LEFT_OUT, Disagreement(start, end - start, self.rows[row], None)
            return
        claim = self.claims[claim_number]
        if not self.by_pc[row] and not isinstance(claim.rule, RepeatedRules):
            agreement = self._compare(row, claim, 0)
            if agreement is not Agreement.UNJUDGED:
                yield agreement, Disagreement(start, end - start, self.rows[row], claim)
            return
        # Rules depend on the address only modulo LONGEST_PLT_ENTRY, so one address for each residue stands for all others.
        for address in range(start, min(end, start + LONGEST_PLT_ENTRY)):
            at_address = self._rule_at(claim, address)
            agreement = self._compare(row, at_address, address % 16) if at_address else Agreement.UNJUDGED
            if agreement is not Agreement.UNJUDGED:
                count = (end - address + LONGEST_PLT_ENTRY - 1) // LONGEST_PLT_ENTRY
                yield agreement, Disagreement(address, count, self.rows[row], at_address)

    def _rule_at(self, claim: RuleClaim, address: int) -> RuleClaim | None:
        """Return the claim at one address of its range; None if its rules repeat with a period that no PLT has."""
        if not isinstance(claim.rule, RepeatedRules):
            return claim
        period, rows = claim.rule
        if not period or LONGEST_PLT_ENTRY % period:
            return None
        offset = (address - self.section.range_start(address)) % period
        return claim._replace(rule=rows[bisect_right(rows, offset, key=itemgetter(0)) - 1][1])

    def _compare(self, number: int, claim: RuleClaim, residue: int) -> Agreement:
        """Compare a row with a claim. `residue`: the PC modulo 16, the size of PLT entries; 0 if the row does not use it."""
        key = number, residue, claim
        if key not in self.known:
            row = self.rows[number]
            marks_differ = (self.signal and row.signal != claim.signal) or (row.signed and row.key_b != claim.key_b)
            assert isinstance(claim.rule, Rule)
            agreement = compare_rule(row, claim.rule, self.abi, residue)
            self.known[key] = Agreement.OTHER if marks_differ and agreement is Agreement.SAME else agreement
        return self.known[key]


def _make_findings(elf: ElfFile, rule: str, text: str, found: Disagreements, abi: Abi) -> Iterator[Finding]:
    names = name_addresses(elf, [one.start for one in found.first])
    for start, size, row, claim in found.first:
        message = text.format(claim=_format_claim(claim, abi), row=_format_row(row, abi))
        yield Finding(rule, Severity.ERROR, f"{names[start]}, {format_count(size, 'byte')}: {message}", address=start)
    if found.rest:
        yield Finding(rule, Severity.ERROR, f"{format_count(found.rest, 'byte')} more, about which the readers disagree")


def _format_claim(claim: RuleClaim | None, abi: Abi) -> str:
    if claim is None or not isinstance(claim.rule, Rule):
        return ""
    return equation(claim.rule, abi) + _format_marks(claim.signal, claim.rule.ra_signed and claim.key_b)


def _format_row(row: CfiRow, abi: Abi) -> str:
    places = (row.cfa, abi.sp), (row.ra, row.ra_column), (row.fp, abi.fp)
    text = f"(cfa, ra, fp) = ({', '.join(_format_place(place, own, abi) for place, own in places)})"
    text += " signed" * row.signed + _format_marks(row.signal, row.signed and row.key_b)
    return text + f", sp = {_format_place(row.sp, abi.sp, abi)}" * (row.sp.kind != "")


def _format_marks(signal: bool, key_b: bool) -> str:
    return ", a signal frame" * signal + ", with key B" * key_b


def _format_place(rule: RegisterRow, own: int, abi: Abi) -> str:
    """Return where the rule finds the caller's value. `own`: the register that has it if there is no rule."""
    number = f"{rule.number:+d}".replace("+", "+ ").replace("-", "- ")
    match rule.kind:
        case "CFA":
            return f"{register_name(rule.number, abi)} + {rule.offset}"
        case RegisterRule.OFFSET:
            return f"*(cfa {number})"
        case RegisterRule.VAL_OFFSET:
            return f"cfa {number}"
        case RegisterRule.REGISTER:
            return register_name(rule.number, abi)
        case "" | RegisterRule.SAME_VALUE:
            return register_name(own, abi)
        case RegisterRule.EXPRESSION | RegisterRule.VAL_EXPRESSION:
            return f"{'*' * (rule.kind == RegisterRule.EXPRESSION)}(expression {rule.code.hex()})"
    return "undefined"
