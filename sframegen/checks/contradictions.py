"""Makes findings of code whose instructions certainly contradict the section or the CFI."""

from __future__ import annotations

import re
from bisect import bisect_right
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from sframegen.base.text import format_count
from sframegen.checks.against_cfi import SHOWN, place_names
from sframegen.checks.finding import Finding, Instruction, Severity
from sframegen.checks.lines_of_objects import source_lines
from sframegen.checks.tracks import SILENT, Claim, Track
from sframegen.code.decoding.decoded_code import DecodedCode, decode
from sframegen.code.function.analysis import rule_of_state
from sframegen.code.function.hazards import count_copies, may_call_clone
from sframegen.code.isa.effects import CALLERS, Flow, FrameState, Mark
from sframegen.code.isa.machines import isa_of
from sframegen.format.equations import equation, register_name

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator

    from sframegen.elf.file import ElfFile
    from sframegen.elf.ranges import Range
    from sframegen.format.abi import Abi
    from sframegen.format.model import Rule, Where


RIGHT, UNDECIDED = "right", "undecided"
NOWHERE, ELSEWHERE = "", "?"  # NOWHERE: the value is not there. ELSEWHERE: it is in another place, unless it is in two
UNLESS_COPIED = {"RA?": "RA", "FP?": "FP"}  # the part that is contradicted if the function copies the caller's value only once


@lru_cache(1 << 12)
def verdict(rule: Rule, key_b: bool, state: FrameState, sp: int, fp: int) -> str:
    """Return RIGHT, UNDECIDED, or the contradicted part: CFA, RA, FP, signature, RA?, FP?.

    A rule is undecided if it names other registers or an outermost frame, or if the state lacks a value. `sp`, `fp`: DWARF numbers.
    """
    cfa = rule.cfa
    if cfa is None or cfa.deref or cfa.register not in (sp, fp):
        return UNDECIDED
    base = state.sp if cfa.register == sp else state.fp
    if base is None:
        return UNDECIDED
    if base != -cfa.offset:
        return "CFA"
    found = RIGHT
    for name, place, register, at in (("RA", rule.ra, state.ra, state.ra_at), ("FP", rule.fp, state.fp, state.fp_at)):
        what = _judge_place(place, register, at, state.sp)
        if what == NOWHERE:
            return name
        if what == ELSEWHERE:
            found = name + what
        elif what == UNDECIDED and found == RIGHT:
            found = what
    if found == RIGHT and (rule.ra_signed != state.signed or (rule.ra_signed and key_b != state.key_b)):
        return "signature" if None not in (state.signed, state.key_b) else UNDECIDED
    return found


def _judge_place(place: Where | None, register: int | None, at: int | None, sp: int | None) -> str:
    """Return RIGHT, UNDECIDED, NOWHERE or ELSEWHERE for a claim that the caller's value is at `place`.

    The instructions prove that its register holds `register`, and that the stack has the value at `at`.
    """
    if place is None:
        if register is not None:
            return RIGHT if register == CALLERS else NOWHERE
        return UNDECIDED if at is None else ELSEWHERE
    if place.register is not None or not place.deref:
        return UNDECIDED
    if at == place.offset:
        return RIGHT
    below = sp is not None and place.offset < sp  # nothing was pushed there yet
    return ELSEWHERE if at is not None or (below and register == CALLERS) else UNDECIDED


CONTRADICTED = "contradicted"
RULES = ("instructions-section", "instructions-cfi", "instructions-both")
ADDRESS = re.compile("0x[0-9a-f]+")  # in operands
UNKNOWN = ".byte"  # for bytes that capstone does not decode
AROUND = 3  # instructions to list before and after a place


class ContradictedRange(NamedTuple):
    """A range whose claims are contradicted. `claims`: the contradicted claim of the section, and of the CFI."""

    start: int
    end: int
    state: int
    claims: tuple[Claim | None, Claim | None]
    unless: tuple[str, str]  # for each claim, RA or FP: it may hold if the function copies the caller's value


class Contradictions:
    """The contradictions of one file. `counts`: bytes of section and CFI by verdict, corrected for claims that are dropped."""

    def __init__(
        self,
        elf: ElfFile,
        abi: Abi,
        functions: list[Range],
        certain: set[int],
        proven: Track,
        states: list[FrameState],
        counts: tuple[Counter[str], Counter[str]],
    ) -> None:
        self.elf = elf
        self.abi = abi
        self.isa = isa_of(abi)
        self.functions = functions
        self.certain = certain
        self.proven = proven
        self.states = states
        self.counts = counts
        self.decoded: DecodedCode | None = None
        self.known: dict[tuple[int, str], bool] = {}  # (function, question) -> answer

    def findings(self, parts: Iterator[ContradictedRange]) -> list[Finding]:
        """Return a finding for each stretch of code in which the same claims are contradicted."""
        shown: list[ContradictedRange] = []  # stretches, with the claims of their first part
        rest = 0  # bytes of other contradicted code
        last: ContradictedRange | None = None
        after = 0  # end of the last part, with its padding
        for part in filter(None, map(self._drop_uncertain, parts)):
            for piece in self._without_padding(part):
                goes_on = last and piece.start <= after and _rule_of(last) == _rule_of(piece)
                goes_on = last and goes_on and self._function(last.start) == self._function(piece.start)
                if goes_on and not rest:
                    shown[-1] = shown[-1]._replace(end=piece.end)
                elif not goes_on and len(shown) < SHOWN:
                    shown.append(piece)
                else:
                    rest += piece.end - piece.start
                last, after = piece, part.end
        places = [stretch.start for stretch in shown]
        lines = source_lines(self.elf, places) if self.elf.relocated is not None else {}  # of objects
        names = {
            place: f"{lines[place]}: {name}" if place in lines else name for place, name in place_names(self.elf, places).items()
        }
        findings = [self._finding(stretch, names) for stretch in shown]
        if rest:
            findings.append(
                Finding("instructions-more", Severity.ERROR, f"{format_count(rest, 'byte')} of other code are contradicted")
            )
        return findings

    def _drop_uncertain(self, part: ContradictedRange) -> ContradictedRange | None:
        """Return the part without claims that may hold, or None: values may be in several places, stack or entry may differ."""
        doubtful = self.functions[self._function(part.start)][0] not in self.certain or self._clones(part.start)
        claims = [
            None if doubtful or (unless and self._copied(part.start, unless)) else claim
            for claim, unless in zip(part.claims, part.unless, strict=True)
        ]
        for counts, before, now in zip(self.counts, part.claims, claims, strict=True):
            if before != now:
                counts[CONTRADICTED] -= part.end - part.start
                counts[UNDECIDED] += part.end - part.start
        return part._replace(claims=(claims[0], claims[1])) if any(claims) else None

    def _copied(self, address: int, what: str) -> bool:
        """True if the function may have the caller's FP or RA in several places, as a function in pieces may."""
        key = self._function(address), what
        if key not in self.known:
            piece = self._piece(address)
            found = map(piece.instruction, range(len(piece)))
            self.known[key] = (
                self._is_in_pieces(piece) or count_copies(((one, self._state(one[0])) for one in found), what, self.isa) > 1
            )
        return self.known[key]

    def _clones(self, address: int) -> bool:
        key = self._function(address), ""
        if key not in self.known:
            self.known[key] = may_call_clone(self._piece(address), self.isa)
        return self.known[key]

    def _is_in_pieces(self, piece: DecodedCode) -> bool:
        """True if the piece is entered or left with a frame other than an entry's."""
        left_to = (point.target for point in piece.flow_points() if point.flow in (Flow.JUMP, Flow.BRANCH))
        outside = {target for target in left_to if target is not None and not piece.start <= target < piece.end}
        entry = self.isa.entry
        return self._state(piece.start) != entry or any(self._state(address) not in (None, entry) for address in outside)

    def _state(self, address: int) -> FrameState | None:
        number = self.proven.at(address)
        return None if number == SILENT else self.states[number]

    def _without_padding(self, part: ContradictedRange) -> Iterator[ContradictedRange]:
        """Yield the range without padding, which may never run, and count padding as undecided."""
        piece = self._piece(part.start)
        begin = at = part.start - piece.start
        end = part.end - piece.start
        while at < end:
            pads = piece.marks[piece.instruction_start(piece.start + at) - piece.start] == Mark.PADDING
            after = min(end, next((place for place in range(at + 1, end) if piece.marks[place]), end))
            if pads:
                for counts, claim in zip(self.counts, part.claims, strict=True):
                    if claim is not None:
                        counts[CONTRADICTED] -= after - at
                        counts[UNDECIDED] += after - at
                if begin < at:
                    yield part._replace(start=piece.start + begin, end=piece.start + at)
                begin = after
            at = after
        if begin < end:
            yield part._replace(start=piece.start + begin)

    def _function(self, address: int) -> int:
        return bisect_right(self.functions, address, key=lambda one: one[0]) - 1

    def _piece(self, address: int) -> DecodedCode:
        """Return the decoded function that holds the address."""
        number = self._function(address)
        if self.decoded is None or self.decoded.start != self.functions[number][0]:
            start, end = self.functions[number]
            self.decoded = decode(self.elf.at(start, end - start), start, self.isa)
        return self.decoded

    def _finding(self, first: ContradictedRange, names: dict[int, str]) -> Finding:
        """Return the finding of a stretch, with the claims of its first part."""
        count = format_count(first.end - first.start, "byte")
        by_section, by_cfi = (claim and self._claim_text(claim) for claim in first.claims)
        if by_section == by_cfi:
            says = f"section and CFI say {by_section}"
        elif by_section and by_cfi:
            says = f"the section says {by_section}, the CFI {by_cfi}"
        else:
            says = f"the section says {by_section}" if by_section else f"the CFI says {by_cfi}"
        claim = next(claim for claim in first.claims if claim is not None)
        state = self._proven_text(self.states[first.state], claim)
        message = f"{names[first.start]}, {count}: {says}; the instructions say {state}"
        return Finding(_rule_of(first), Severity.ERROR, message, address=first.start, instructions=self._listing(first.start))

    def _claim_text(self, claim: Claim) -> str:
        rule = claim.rule
        if rule is None:
            return ""
        return equation(rule, self.abi) + (" with key B" if rule.ra_signed and claim.key_b else "")

    def _proven_text(self, state: FrameState, claim: Claim) -> str:
        """Return the proven frame as an equation, with the CFA counted from the claim's register if that is known."""
        fp = register_name(self.abi.fp, self.abi)
        rule = rule_of_state(state, self.abi.sp, self.abi.fp, self.abi.fixed_ra_offset)
        cfa = self._cfa(state, claim)
        if rule is not None:
            key = " with key B" if rule.ra_signed and state.key_b else ""
            return equation(rule if cfa is None else rule._replace(cfa=cfa), self.abi) + key
        known = [f"cfa = {register_name(cfa.register or 0, self.abi)} + {cfa.offset}"] if cfa else []
        if state.fp is not None:
            known.append(f"{fp} is the caller's" if state.fp == CALLERS else f"{fp} = cfa - {-state.fp}")
        return ", ".join(known)

    def _cfa(self, state: FrameState, claim: Claim) -> Where | None:
        base = claim.rule.cfa if claim.rule is not None else None
        if base is None:
            return None
        value = state.sp if base.register == self.abi.sp else state.fp
        return None if value is None or value == CALLERS else base._replace(offset=-value)

    def _listing(self, address: int) -> tuple[Instruction, ...]:
        piece = self._piece(address)
        here = piece.number_at(piece.instruction_start(address))
        listing, stubs = [], self.elf.externals.stubs
        for number in range(max(here - AROUND, 0), min(here + AROUND + 1, len(piece))):
            at, _, mnemonic, operands = piece.instruction(number)
            operands = ADDRESS.sub(lambda found: stubs.get(int(found[0], 16), found[0]), operands)
            listing.append(Instruction(at, f"{mnemonic} {operands}".rstrip(), number == here))
            if mnemonic == UNKNOWN and number >= here:  # later instructions may be wrong, too
                break
        return tuple(listing)


def _rule_of(part: ContradictedRange) -> str:
    return RULES[2] if all(part.claims) else RULES[0] if part.claims[0] else RULES[1]
