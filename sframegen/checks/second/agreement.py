"""Compares a section with the call frame information as pyelftools reads it, for every byte of code that both describe."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from elftools.dwarf.callframe import RegisterRule

from sframegen.base.text import format_count
from sframegen.checks.against_cfi import Truth, place_names
from sframegen.checks.finding import Finding, Severity
from sframegen.checks.second.meaning import Agreement, compare_rule, depends_on_pc, is_plain
from sframegen.checks.second.pyelftools_cfi import CfiRow, FdeColumns, RegisterRow, read
from sframegen.checks.tracks import SILENT, Track, meet, new_track
from sframegen.format.equations import equation, register_name
from sframegen.format.model import Rule
from sframegen.tables.compare import RepeatedRules, RuleClaim, spans

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from sframegen.conversion.cfi_sections import Sources
    from sframegen.elf.file import ElfFile
    from sframegen.elf.ranges import Range
    from sframegen.format.abi import Abi
    from sframegen.format.decode import SframeSection

SHOWN = 20  # findings of one rule; for further ones only the bytes are counted
MOST_BY_PC = 64  # states that depend on the PC: each is run for every residue. Linkers write one or two
LONGEST = 64  # bytes of the longest PLT entries; the sizes of others divide it
BOTH = "the section says {given}; pyelftools, unlike sframegen, reads {state} from the CFI"
FIRST = "the section says {given}, as pyelftools reads the CFI, but sframegen reads it differently"
LEFT_OUT = "the section says nothing; pyelftools, unlike sframegen, reads {state} from the CFI"


class Disagreement(NamedTuple):
    """Code with rule `given` in the section (None: no rule) and row `state` in the CFI. `size`: bytes, with repetitions."""

    start: int
    size: int
    state: CfiRow
    given: RuleClaim | None


@dataclass
class Disagreements:
    """The first disagreements, and the bytes of the others."""

    first: list[Disagreement] = field(default_factory=list)
    rest: int = 0

    def add(self, one: Disagreement) -> None:
        if len(self.first) < SHOWN:
            self.first.append(one)
        else:
            self.rest += one.size


@dataclass
class SecondReading:
    """The result of the comparison: bytes of code by Agreement, and the findings."""

    code: dict[str, int] = field(default_factory=lambda: dict.fromkeys(map(str, Agreement), 0))
    findings: list[Finding] = field(default_factory=list)


def second_reading(
    elf: ElfFile, section: SframeSection, sources: Sources, truth: Truth, abi: Abi, progress: Callable[[int, int], object] | None
) -> SecondReading:
    """Compare the section with pyelftools' reading of the CFI.

    `truth`: the comparison with sframegen's reading. A rule that is wrong by both readings is reported only there.
    """
    functions = _read_cfi(sources, abi, progress)
    claims: dict[RuleClaim, int] = {}
    given = new_track()
    for span in spans(section.table):
        given.add(*span[:2], claims.setdefault(span[2], len(claims)))
    rows = functions.track(elf.executable_ranges())
    comparison = _Comparison(list(functions.states), list(claims), given, abi, signal=section.layout.signal)
    result = SecondReading()
    only_second, only_first, left_out = Disagreements(), Disagreements(), Disagreements()
    wrong = truth.wrong
    for start, end, (state, claim, is_described, is_wrong) in meet(rows, given, _track(_described(truth)), _track(wrong or [])):
        for agreement, one in comparison.parts(start, end, state, claim):
            if agreement is Agreement.LEFT_OUT:
                if is_described != SILENT:
                    continue
                left_out.add(one)
            elif wrong is not None and (is_wrong == SILENT) is (agreement is Agreement.OTHER):
                (only_second if agreement is Agreement.OTHER else only_first).add(one)
            result.code[agreement] += one.size
    judged = result.code[Agreement.SAME] + result.code[Agreement.OTHER]
    unjudged = result.code[Agreement.UNJUDGED] = max(0, truth.compared_bytes - judged)
    result.findings += _findings(elf, "second-reader", BOTH, only_second, abi)
    result.findings += _findings(elf, "second-reader", FIRST, only_first, abi)
    result.findings += _findings(elf, "second-reader-left-out", LEFT_OUT, left_out, abi)
    if unjudged:
        why = "".join(f"; {format_count(count, 'FDE')}: {reason}" for reason, count in functions.unread.most_common())
        message = f"{unjudged:,} bytes of code are not judged by pyelftools{why}"
        result.findings.append(Finding("second-reader-unjudged", Severity.NOTE, message))
    return result


def _read_cfi(sources: Sources, abi: Abi, progress: Callable[[int, int], object] | None) -> FdeColumns:
    functions = FdeColumns()
    total, before = sum(len(section.data) for section in sources.sections), 0
    number = -1
    for section in sources.sections:
        number += not section.more
        for done in read(section, number, abi, functions):
            if progress:
                progress(before + done, total)
        before += len(section.data)
    return functions


def _described(truth: Truth) -> Iterator[Range]:
    """Return the ranges of code for which sframegen's own reader finds a rule."""
    return ((start, start + size) for start, size in zip(truth.table.start, truth.table.size, strict=True))


def _track(ranges: Iterable[Range]) -> Track:
    found = new_track()
    for start, end in ranges:
        found.add(start, end, 0)
    return found


class _Comparison:
    """Compares rows of the CFI with a section's claims. `signal`: True if the section's version marks signal frames."""

    def __init__(self, states: list[CfiRow], claims: list[RuleClaim], given: Track, abi: Abi, *, signal: bool) -> None:
        self.states = states
        self.claims = claims
        self.given = given
        self.abi = abi
        self.signal = signal
        self.by_pc = [depends_on_pc(state, abi) for state in states]
        self.skips_by_pc = sum(self.by_pc) > MOST_BY_PC
        self.plain = [is_plain(state, abi) for state in states]
        self.known: dict[tuple[int, int, RuleClaim], Agreement] = {}

    def parts(self, start: int, end: int, state: int, claim: int) -> Iterator[tuple[Agreement, Disagreement]]:
        """Compare code with one row in the CFI and one claim in the section. Yields no results that are unjudged."""
        if state < 0 or (self.skips_by_pc and self.by_pc[state]):
            return
        row = self.states[state]
        if claim == SILENT:
            if self.plain[state]:
                yield Agreement.LEFT_OUT, Disagreement(start, end - start, row, None)
            return
        given = self.claims[claim]
        if not self.by_pc[state] and not isinstance(given.rule, RepeatedRules):
            agreement = self._compare(state, given, 0)
            if agreement is not Agreement.UNJUDGED:
                yield agreement, Disagreement(start, end - start, row, given)
            return
        # Rules depend on the address only modulo LONGEST: one address for each residue represents all others.
        for address in range(start, min(end, start + LONGEST)):
            at_address = self._rule_at(given, address)
            agreement = self._compare(state, at_address, address % 16) if at_address else Agreement.UNJUDGED
            if agreement is not Agreement.UNJUDGED:
                yield agreement, Disagreement(address, (end - address + LONGEST - 1) // LONGEST, row, at_address)

    def _rule_at(self, given: RuleClaim, address: int) -> RuleClaim | None:
        """Return the rule at one address of a range; None if it is repeated with a period that no PLT has."""
        if not isinstance(given.rule, RepeatedRules):
            return given
        period, rows = given.rule
        if not period or LONGEST % period:
            return None
        offset = (address - self.given.start_of(address)) % period
        return given._replace(rule=rows[bisect_right(rows, offset, key=itemgetter(0)) - 1][1])

    def _compare(self, state: int, given: RuleClaim, residue: int) -> Agreement:
        key = state, residue, given
        if key not in self.known:
            row = self.states[state]
            marks = (self.signal and row.signal != given.signal) or (row.signed and row.key_b != given.key_b)
            assert isinstance(given.rule, Rule)
            found = compare_rule(row, given.rule, self.abi, residue)
            self.known[key] = Agreement.OTHER if marks and found is Agreement.SAME else found
        return self.known[key]


def _findings(elf: ElfFile, rule: str, says: str, found: Disagreements, abi: Abi) -> Iterator[Finding]:
    names = place_names(elf, [one.start for one in found.first])
    for start, size, state, given in found.first:
        message = (
            f"{names[start]}, {format_count(size, 'byte')}: {says.format(given=_given(given, abi), state=_describe(state, abi))}"
        )
        yield Finding(rule, Severity.ERROR, message, address=start)
    if found.rest:
        yield Finding(rule, Severity.ERROR, f"{format_count(found.rest, 'byte')} more, about which the readers disagree")


def _given(given: RuleClaim | None, abi: Abi) -> str:
    if given is None or not isinstance(given.rule, Rule):
        return ""
    return equation(given.rule, abi) + _marks(given.signal, given.rule.ra_signed and given.key_b)


def _describe(state: CfiRow, abi: Abi) -> str:
    places = (_place_text(state.cfa, abi.sp, abi), _place_text(state.ra, state.ra_column, abi), _place_text(state.fp, abi.fp, abi))
    text = f"(cfa, ra, fp) = ({', '.join(places)})" + " signed" * state.signed + _marks(state.signal, state.signed and state.key_b)
    return text + f", sp = {_place_text(state.sp, abi.sp, abi)}" * (state.sp.kind != "")


def _marks(signal: bool, key_b: bool) -> str:
    return ", a signal frame" * signal + ", with key B" * key_b


def _place_text(said: RegisterRow, own: int, abi: Abi) -> str:
    number = f"{said.number:+d}".replace("+", "+ ").replace("-", "- ")
    match said.kind:
        case "CFA":
            return f"{register_name(said.number, abi)} + {said.offset}"
        case RegisterRule.OFFSET:
            return f"*(cfa {number})"
        case RegisterRule.VAL_OFFSET:
            return f"cfa {number}"
        case RegisterRule.REGISTER:
            return register_name(said.number, abi)
        case "" | RegisterRule.SAME_VALUE:
            return register_name(own, abi)
        case RegisterRule.EXPRESSION | RegisterRule.VAL_EXPRESSION:
            return f"{'*' * (said.kind == RegisterRule.EXPRESSION)}(expression {said.code.hex()})"
    return "undefined"
