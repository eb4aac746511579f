"""A section against the call frame information as pyelftools reads it, at every byte of code that both describe."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from elftools.dwarf.callframe import RegisterRule

from sframegen.base.text import count_of
from sframegen.checks.against_cfi.differences import place_names
from sframegen.checks.finding import Finding, Severity
from sframegen.checks.second.meaning import Outcome, depends_on_pc, is_plain, verdict
from sframegen.checks.second.pyelftools_cfi import FdeColumns, read
from sframegen.checks.second.spans import LONGEST, NOTHING, UNJUDGED, function_spans, section_spans
from sframegen.elf.ranges import Range, gaps
from sframegen.format.equations import equation, register_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sframegen.checks.against_cfi.comparison import Truth
    from sframegen.checks.second.pyelftools_cfi import CfiRow, RegisterRow
    from sframegen.checks.second.spans import SectionRule, SectionSpans
    from sframegen.conversion.sources import Sources
    from sframegen.elf.file import ElfFile
    from sframegen.format.abi import Abi
    from sframegen.format.decode import SframeSection

SHOWN = 20  # findings of one rule; of others the bytes are counted
ROOM = 1 << 16  # places that are recorded
MOST_BY_PC = 64  # states: each is run for every place in a period. Linkers write one or two
BOTH = "the section says {given}; pyelftools, unlike sframegen, reads {state} from the CFI"
FIRST = "the section says {given}, as pyelftools reads the CFI, but sframegen reads it differently"
LEFT_OUT = "the section says nothing; pyelftools, unlike sframegen, reads {state} from the CFI"


class Disagreement(NamedTuple):
    """Code that has `given` in the section (None: nothing) and `state` in the CFI. `size`: bytes, repetitions included."""

    start: int
    end: int
    size: int
    state: CfiRow
    given: SectionRule | None

    def outside(self, ranges: list[Range]) -> Iterator[Disagreement]:
        for start, end in gaps(ranges, self.start, self.end):
            whole = (start, end) == (self.start, self.end)
            yield self._replace(start=start, end=end, size=self.size if whole else end - start)


@dataclass
class SecondReading:
    """Bytes of code by outcome of the comparison, and bytes that only one reader describes."""

    code: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("same", "other", "left_out", "unjudged"), 0))
    findings: list[Finding] = field(default_factory=list)


def second_reading(
    elf: ElfFile, section: SframeSection, sources: Sources, truth: Truth, abi: Abi, progress: Callable[[int, int], object] | None
) -> SecondReading:
    """`truth`: the comparison with the first reader of the CFI. A rule that both call wrong is reported once."""
    functions = _read(sources, abi, progress)
    spans = function_spans(functions, elf.executable_ranges())
    compared = _Compared(list(functions.states), section_spans(section.table), abi, signal=section.layout.signal)
    result = SecondReading()
    found: dict[str, list[Disagreement]] = {"other": [], "left_out": []}
    described = [(start, start + size) for start, size in zip(truth.table.start, truth.table.size, strict=True)]
    for start, end, said in spans:
        for what, place in compared.places(start, end, said):
            for part in place.outside(described) if what == "left_out" else [place]:
                result.code[what] += part.size
                if what in found and len(found[what]) < ROOM:
                    found[what].append(part)
    result.code["unjudged"] = max(0, truth.compared_bytes - result.code["same"] - result.code["other"])
    wrong = truth.wrong
    if wrong is not None:
        only_first = [
            place
            for low, high in wrong
            for start, end, said in spans.within(low, high)
            if said >= 0
            for what, place in compared.places(start, end, said)
            if what == "same"
        ]
        only_second = [one for place in found["other"] for one in place.outside(wrong)]
        result.findings += _findings(elf, "second-reader", BOTH, only_second, abi)
        result.findings += _findings(elf, "second-reader", FIRST, only_first, abi)
    result.findings += _findings(elf, "second-reader-left-out", LEFT_OUT, found["left_out"], abi)
    if result.code["unjudged"]:
        why = "".join(f"; {count_of(count, 'FDE')}: {reason}" for reason, count in functions.unread.most_common())
        message = f"{result.code['unjudged']:,} bytes of code are not judged by pyelftools{why}"
        result.findings.append(Finding("second-reader-unjudged", Severity.NOTE, message))
    return result


def _read(sources: Sources, abi: Abi, progress: Callable[[int, int], object] | None) -> FdeColumns:
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


class _Compared:
    """Rows of the CFI against what a section gives. `signal`: whether the section's version marks signal frames."""

    def __init__(self, states: list[CfiRow], section: SectionSpans, abi: Abi, *, signal: bool) -> None:
        self.states = states
        self.section = section
        self.abi = abi
        self.signal = signal
        self.by_pc = [depends_on_pc(state, abi) for state in states]
        self.skips_by_pc = sum(self.by_pc) > MOST_BY_PC
        self.plain = [is_plain(state, abi) for state in states]
        self.known: dict[tuple[int, int, SectionRule], Outcome] = {}

    def places(self, start: int, end: int, state: int) -> Iterator[tuple[str, Disagreement]]:
        """Compare all code from `start` to `end`, where the CFI has one row."""
        if state == UNJUDGED or (self.skips_by_pc and self.by_pc[state]):
            return
        for low, high, said in self.section.spans.within(start, end):
            if said == NOTHING:
                if self.plain[state]:
                    yield "left_out", Disagreement(low, high, high - low, self.states[state], None)
            elif said >= 0 and not self.by_pc[state]:
                given = self.section.given[said]
                what = self._verdict(state, given, 0)
                if what is not Outcome.UNJUDGED:
                    yield what.name.lower(), Disagreement(low, high, high - low, self.states[state], given)
            else:
                yield from self._by_address(low, high, state, said)

    def _by_address(self, low: int, high: int, state: int, said: int) -> Iterator[tuple[str, Disagreement]]:
        """Whatever depends on the address does so modulo LONGEST: one of those with each residue stands for them."""
        for address in range(low, min(high, low + LONGEST)):
            given = self.section.at(said, address)
            what = self._verdict(state, given, address % 16) if given else Outcome.UNJUDGED
            if given and what is not Outcome.UNJUDGED:
                count = (high - address + LONGEST - 1) // LONGEST
                yield what.name.lower(), Disagreement(address, address + 1, count, self.states[state], given)

    def _verdict(self, state: int, given: SectionRule, residue: int) -> Outcome:
        key = state, residue, given
        if key not in self.known:
            row = self.states[state]
            marks = (self.signal and row.signal != given.signal) or (row.signed and row.key_b != given.key_b)
            found = verdict(row, given.rule, self.abi, residue)
            self.known[key] = Outcome.OTHER if marks and found is Outcome.SAME else found
        return self.known[key]


def _findings(elf: ElfFile, rule: str, says: str, places: list[Disagreement], abi: Abi) -> Iterator[Finding]:
    shown = places[:SHOWN]
    names = place_names(elf, [place.start for place in shown])
    for place in shown:
        given = _given(place.given, abi) if place.given else ""
        message = f"{names[place.start]}, {count_of(place.size, 'byte')}: {says.format(given=given, state=_row(place.state, abi))}"
        yield Finding(rule, Severity.ERROR, message, address=place.start)
    rest = sum(place.size for place in places[SHOWN:])
    if rest:
        yield Finding(rule, Severity.ERROR, f"{count_of(rest, 'byte')} more, about which the readers disagree")


def _given(given: SectionRule, abi: Abi) -> str:
    return equation(given.rule, abi) + _marks(given.signal, given.rule.ra_signed and given.key_b)


def _row(state: CfiRow, abi: Abi) -> str:
    places = (_place(state.cfa, abi.sp, abi), _place(state.ra, state.ra_column, abi), _place(state.fp, abi.fp, abi))
    text = f"(cfa, ra, fp) = ({', '.join(places)})" + " signed" * state.signed + _marks(state.signal, state.signed and state.key_b)
    return text + f", sp = {_place(state.sp, abi.sp, abi)}" * (state.sp.kind != "")


def _marks(signal: bool, key_b: bool) -> str:
    return ", a signal frame" * signal + ", with key B" * key_b


def _place(said: RegisterRow, own: int, abi: Abi) -> str:
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
