"""Compares a section with the call frame information as pyelftools reads it, for every byte of code that both describe.

The section shares the faults of sframegen's own reader, which it was made with: this comparison finds them. Each range of code
has a row of the CFI (pyelftools_cfi.py) and the section's claim: its rule, and marks for a signal frame and key B. Row and claim
agree if they give the same values (meaning.py). A finding is about code where the two readers of the CFI disagree. A Track
(tracks.py) has ascending ranges with the number of a row or claim; in an intersection of tracks, NO_CLAIM stands for none.
"""

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


class ComparedCode(NamedTuple):
    """Code for which the CFI has `row`, and the section `claim`, or None for no rule. `size`: its bytes.

    If the rules depend on the address, there is one of these for each address modulo LONGEST_PLT_ENTRY.
    """

    start: int
    size: int
    row: CfiRow
    claim: RuleClaim | None


@dataclass
class ComparedRanges:
    """The code that findings of one kind are about: the first ranges, and the bytes of the others."""

    listed: list[ComparedCode] = field(default_factory=list)
    unlisted_bytes: int = 0

    def add(self, code: ComparedCode) -> None:
        if len(self.listed) < MAX_FINDINGS:
            self.listed.append(code)
        else:
            self.unlisted_bytes += code.size


@dataclass
class SecondReading:
    """The result of the comparison: bytes of code by Agreement, and the findings."""

    code: dict[str, int] = field(default_factory=lambda: dict.fromkeys(map(str, Agreement), 0))
    findings: list[Finding] = field(default_factory=list)


def compare_second_reading(
    elf: ElfFile, section: SframeSection, sources: Sources, own_comparison: CfiComparison, abi: Abi, progress: Progress | None
) -> SecondReading:
    """Compare the section with pyelftools' reading of the CFI.

    `own_comparison`: that with sframegen's own reading. A rule that is wrong by both readings is reported only there.
    """
    fdes = _read_cfi(sources, abi, progress)
    claims: dict[RuleClaim, int] = {}
    section_track = new_track()
    for start, end, claim in claim_spans(section.table):
        section_track.add(start, end, claims.setdefault(claim, len(claims)))
    comparison = _Comparison(list(fdes.states), list(claims), section_track, abi, signal=section.layout.signal)
    result = SecondReading()
    differs_by_second, differs_by_own, left_out = ComparedRanges(), ComparedRanges(), ComparedRanges()
    own_table = own_comparison.table
    described_by_own = _make_track((start, start + size) for start, size in zip(own_table.start, own_table.size, strict=True))
    wrong_by_own = _make_track(own_comparison.wrong_ranges or [])
    tracks = fdes.make_track(elf.executable_ranges()), section_track, described_by_own, wrong_by_own
    for start, end, (row, claim_number, in_described, in_wrong) in intersect_tracks(*tracks):
        for agreement, code in comparison.compare_range(start, end, row, claim_number):
            is_right_by_own, is_right_by_second = in_wrong == NO_CLAIM, agreement is Agreement.SAME
            if agreement is Agreement.LEFT_OUT:
                if in_described != NO_CLAIM:
                    continue
                left_out.add(code)
            elif own_comparison.wrong_ranges is not None and is_right_by_own != is_right_by_second:
                (differs_by_second if is_right_by_own else differs_by_own).add(code)
            result.code[agreement] += code.size
    judged = result.code[Agreement.SAME] + result.code[Agreement.OTHER]
    unjudged = result.code[Agreement.UNJUDGED] = max(0, own_comparison.compared_bytes - judged)
    result.findings += _make_findings(elf, "second-reader", ONLY_SECOND_DIFFERS, differs_by_second, abi)
    result.findings += _make_findings(elf, "second-reader", ONLY_FIRST_DIFFERS, differs_by_own, abi)
    result.findings += _make_findings(elf, "second-reader-left-out", ONLY_SECOND_READS, left_out, abi)
    if unjudged:
        reasons = "".join(f"; {format_count(count, 'FDE')}: {reason}" for reason, count in fdes.unread.most_common())
        message = f"{unjudged:,} bytes of code are not judged by pyelftools{reasons}"
        result.findings.append(Finding("second-reader-unjudged", Severity.NOTE, message))
    return result


def _read_cfi(sources: Sources, abi: Abi, progress: Progress | None) -> FdeColumns:
    """Read all sections with pyelftools. Sections of one list of FDEs get the same number, because they are equally trusted."""
    fdes = FdeColumns()
    total_bytes, bytes_before = sum(len(section.data) for section in sources.sections), 0
    list_number = -1
    for section in sources.sections:
        if not section.continues:  # else its FDEs belong to the list of the section before it
            list_number += 1
        for bytes_read in read_fdes(section, list_number, abi, fdes):
            if progress:
                progress(bytes_before + bytes_read, total_bytes)
        bytes_before += len(section.data)
    return fdes


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
        self.reads_pc = [depends_on_pc(row, abi) for row in rows]  # by row number, as `expressible`
        self.skips_pc_rows = sum(self.reads_pc) > MAX_PC_ROWS
        self.expressible = [is_surely_expressible(row, abi) for row in rows]
        self.agreements: dict[tuple[int, int, RuleClaim], Agreement] = {}

    def compare_range(self, start: int, end: int, row: int, claim_number: int) -> Iterator[tuple[Agreement, ComparedCode]]:
        """Compare code that has one row in the CFI and one claim in the section. Yields nothing for code that is unjudged."""
        if row < 0 or (self.skips_pc_rows and self.reads_pc[row]):
            return
        if claim_number == NO_CLAIM:
            if self.expressible[row]:
                yield Agreement.LEFT_OUT, ComparedCode(start, end - start, self.rows[row], None)
            return
        claim = self.claims[claim_number]
        if not self.reads_pc[row] and not isinstance(claim.rule, RepeatedRules):
            agreement = self._compare(row, claim, 0)
            if agreement is not Agreement.UNJUDGED:
                yield agreement, ComparedCode(start, end - start, self.rows[row], claim)
            return
        # Rules depend on the address only modulo LONGEST_PLT_ENTRY, so one address for each residue stands for all others.
        for address in range(start, min(end, start + LONGEST_PLT_ENTRY)):
            at_address = self._rule_at(claim, address)
            agreement = self._compare(row, at_address, address % 16) if at_address else Agreement.UNJUDGED
            if agreement is not Agreement.UNJUDGED:
                count = (end - address + LONGEST_PLT_ENTRY - 1) // LONGEST_PLT_ENTRY
                yield agreement, ComparedCode(address, count, self.rows[row], at_address)

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
        if key not in self.agreements:
            row = self.rows[number]
            marks_differ = (self.signal and row.signal != claim.signal) or (row.signed and row.key_b != claim.key_b)
            assert isinstance(claim.rule, Rule)
            agreement = compare_rule(row, claim.rule, self.abi, residue)
            self.agreements[key] = Agreement.OTHER if marks_differ and agreement is Agreement.SAME else agreement
        return self.agreements[key]


def _make_findings(elf: ElfFile, rule: str, text: str, ranges: ComparedRanges, abi: Abi) -> Iterator[Finding]:
    names = name_addresses(elf, [code.start for code in ranges.listed])
    for start, size, row, claim in ranges.listed:
        message = text.format(claim=_format_claim(claim, abi), row=_format_row(row, abi))
        yield Finding(rule, Severity.ERROR, f"{names[start]}, {format_count(size, 'byte')}: {message}", address=start)
    if ranges.unlisted_bytes:
        yield Finding(rule, Severity.ERROR, f"{format_count(ranges.unlisted_bytes, 'byte')} more, about which the readers disagree")


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
