"""Makes findings about code whose instructions certainly contradict the rules of the section or of the CFI.

A rule claims where the CFA and the caller's RA and FP are. `judge_rule` compares it with the frame state that the instructions
prove. A contradicted claim is dropped, so that its bytes count as undecided, if it may be right after all: the function may not be
entered as one, it may call clone, or it may keep a copy of the caller's value elsewhere. Padding is dropped, as it may never run.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from sframegen.base.text import format_count
from sframegen.checks.against_cfi import MAX_FINDINGS, name_addresses
from sframegen.checks.finding import Finding, Instruction, Severity
from sframegen.checks.lines_of_objects import source_lines
from sframegen.checks.tracks import NO_CLAIM, Claim, Track
from sframegen.code.decoding.decoded_code import DecodedCode, decode
from sframegen.code.function.hazards import count_copies, may_call_clone
from sframegen.code.function.rules_of_states import rule_of_state
from sframegen.code.isa.effects import CALLERS, Flow, FrameState, Mark
from sframegen.code.isa.machines import isa_of
from sframegen.format.equations import equation, register_name

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator

    from sframegen.code.isa.instruction_set import Isa
    from sframegen.elf.file import ElfFile
    from sframegen.elf.ranges import Range
    from sframegen.format.abi import Abi
    from sframegen.format.model import Rule, Where

    VerdictCounts = tuple[Counter[str], Counter[str]]  # bytes by verdict: of the section's rules, and of the CFI's

RIGHT, UNDECIDED = "right", "undecided"
ABSENT, ELSEWHERE = "absent", "elsewhere"  # the claimed location certainly lacks the caller's value, or does unless there is a copy
DOUBTFUL = {"RA?": "RA", "FP?": "FP"}  # contradictions only if the function keeps a single copy of the caller's value


@lru_cache(1 << 12)
def judge_rule(rule: Rule, key_b: bool, state: FrameState, sp: int, fp: int) -> str:
    """Return RIGHT, UNDECIDED, or the part of the rule that the state contradicts: CFA, RA, FP, signature, RA? or FP?.

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
    verdict_of_rule = RIGHT
    for name, location, register, saved_at in (("RA", rule.ra, state.ra, state.ra_at), ("FP", rule.fp, state.fp, state.fp_at)):
        verdict = _judge_location(location, register, saved_at, state.sp)
        if verdict == ABSENT:
            return name
        if verdict == ELSEWHERE:
            verdict_of_rule = f"{name}?"
        elif verdict == UNDECIDED and verdict_of_rule == RIGHT:
            verdict_of_rule = verdict
    if verdict_of_rule == RIGHT and (rule.ra_signed != state.signed or (rule.ra_signed and key_b != state.key_b)):
        return "signature" if None not in (state.signed, state.key_b) else UNDECIDED
    return verdict_of_rule


def _judge_location(location: Where | None, register: int | None, saved_at: int | None, sp: int | None) -> str:
    """Return RIGHT, UNDECIDED, ABSENT or ELSEWHERE for the claim that the caller's value of a register is at `location`.

    The instructions prove that the register now holds `register`, and that the value is on the stack at CFA + `saved_at`.
    """
    if location is None:  # the claim is that the register still has the value
        if register is not None:
            return RIGHT if register == CALLERS else ABSENT
        return UNDECIDED if saved_at is None else ELSEWHERE
    if location.register is not None or not location.deref:
        return UNDECIDED
    if saved_at == location.offset:
        return RIGHT
    is_below_sp = sp is not None and location.offset < sp  # nothing was pushed there yet
    return ELSEWHERE if saved_at is not None or (is_below_sp and register == CALLERS) else UNDECIDED


CONTRADICTED = "contradicted"
RULE_SECTION, RULE_CFI, RULE_BOTH = "instructions-section", "instructions-cfi", "instructions-both"
OPERAND_ADDRESS = re.compile("0x[0-9a-f]+")
UNDECODED = ".byte"  # the mnemonic of bytes that capstone cannot decode
LISTED_AROUND = 3  # instructions that a finding lists before and after its address


class ContradictedRange(NamedTuple):
    """A range of code whose rules are contradicted. `claims`: the contradicted claim of the section, and that of the CFI."""

    start: int
    end: int
    state: int
    claims: tuple[Claim | None, Claim | None]
    unless: tuple[str, str]  # for each claim: RA or FP if it may be right because the function copies that value, else ""


@dataclass
class Contradictions:
    """Makes the findings of one file. `counts`: bytes of section and CFI by verdict, corrected here for claims that are dropped."""

    elf: ElfFile
    abi: Abi
    functions: list[Range]
    certain: set[int]  # starts of functions that are certainly entered like functions
    proven: Track  # its claims are indexes into `states`
    states: list[FrameState]
    counts: VerdictCounts
    decoded: DecodedCode | None = None
    answers: dict[tuple[int, str], bool] = field(default_factory=dict)  # (function, question) -> answer

    @property
    def isa(self) -> Isa:
        return isa_of(self.abi)

    def findings(self, ranges: Iterator[ContradictedRange]) -> list[Finding]:
        """Return a finding for each stretch of adjacent ranges of a function in which the same sources are contradicted."""
        stretches: list[ContradictedRange] = []  # with the claims of their first range
        unlisted_bytes = 0  # of contradicted code in no stretch
        previous_key, previous_end = ("", -1), 0  # of the previous part; its end includes the padding after it
        for certain_range in filter(None, map(self._drop_uncertain, ranges)):
            for part in self._drop_padding(certain_range):
                key = _finding_rule(part), self._function_index(part.start)
                is_continued = key == previous_key and part.start <= previous_end
                if is_continued and not unlisted_bytes:
                    stretches[-1] = stretches[-1]._replace(end=part.end)
                elif not is_continued and len(stretches) < MAX_FINDINGS:
                    stretches.append(part)
                else:
                    unlisted_bytes += part.end - part.start
                previous_key, previous_end = key, certain_range.end
        starts = [stretch.start for stretch in stretches]
        lines = source_lines(self.elf, starts) if self.elf.relocated is not None else {}  # only objects have relocated code
        names = {at: f"{lines[at]}: {name}" if at in lines else name for at, name in name_addresses(self.elf, starts).items()}
        findings = [self._make_finding(stretch, names) for stretch in stretches]
        if unlisted_bytes:
            message = f"{format_count(unlisted_bytes, 'byte')} of other code are contradicted"
            findings.append(Finding("instructions-more", Severity.ERROR, message))
        return findings

    def _drop_uncertain(self, part: ContradictedRange) -> ContradictedRange | None:
        """Return the range without claims that may be right after all; None if none is left."""
        doubtful = self.functions[self._function_index(part.start)][0] not in self.certain or self._calls_clone(part.start)
        claims = [
            None if doubtful or (unless and self._may_be_copied(part.start, unless)) else claim
            for claim, unless in zip(part.claims, part.unless, strict=True)
        ]
        for counts, before, now in zip(self.counts, part.claims, claims, strict=True):
            if before != now:
                counts[CONTRADICTED] -= part.end - part.start
                counts[UNDECIDED] += part.end - part.start
        return part._replace(claims=(claims[0], claims[1])) if any(claims) else None

    def _may_be_copied(self, address: int, value: str) -> bool:
        """Return True if the caller's FP or RA may be in several places in the function, as it may be in a fragment."""
        key = self._function_index(address), value
        if key not in self.answers:
            code = self._decode_function(address)
            instructions = ((found, self._state_at(found[0])) for found in map(code.instruction, range(len(code))))
            self.answers[key] = self._is_fragment(code) or count_copies(instructions, value, self.isa) > 1
        return self.answers[key]

    def _calls_clone(self, address: int) -> bool:
        """Return True if the function seems to call clone directly, which returns a second time on another stack."""
        key = self._function_index(address), ""
        if key not in self.answers:
            self.answers[key] = may_call_clone(self._decode_function(address), self.isa)
        return self.answers[key]

    def _is_fragment(self, code: DecodedCode) -> bool:
        """Return True if the function is entered or left with another frame state than that of an entry."""
        targets = (point.target for point in code.flow_points() if point.flow in (Flow.JUMP, Flow.BRANCH))
        outside = {target for target in targets if target is not None and not code.start <= target < code.end}
        entry = self.isa.entry
        return self._state_at(code.start) != entry or any(self._state_at(address) not in (None, entry) for address in outside)

    def _state_at(self, address: int) -> FrameState | None:
        number = self.proven.claim_at(address)
        return None if number == NO_CLAIM else self.states[number]

    def _drop_padding(self, part: ContradictedRange) -> Iterator[ContradictedRange]:
        """Yield the parts of the range between padding, and count the padding as undecided, because it may never run."""
        code = self._decode_function(part.start)
        part_start = offset = part.start - code.start
        end = part.end - code.start
        while offset < end:
            is_padding = code.marks[code.instruction_start(code.start + offset) - code.start] == Mark.PADDING
            next_offset = min(end, next((byte for byte in range(offset + 1, end) if code.marks[byte]), end))
            if is_padding:
                for counts, claim in zip(self.counts, part.claims, strict=True):
                    if claim is not None:
                        counts[CONTRADICTED] -= next_offset - offset
                        counts[UNDECIDED] += next_offset - offset
                if part_start < offset:
                    yield part._replace(start=code.start + part_start, end=code.start + offset)
                part_start = next_offset
            offset = next_offset
        if part_start < end:
            yield part._replace(start=code.start + part_start)

    def _function_index(self, address: int) -> int:
        """Return the index of the last function that begins at or before the address."""
        return bisect_right(self.functions, address, key=lambda function: function[0]) - 1

    def _decode_function(self, address: int) -> DecodedCode:
        number = self._function_index(address)
        if self.decoded is None or self.decoded.start != self.functions[number][0]:
            start, end = self.functions[number]
            self.decoded = decode(self.elf.at(start, end - start), start, self.isa)
        return self.decoded

    def _make_finding(self, stretch: ContradictedRange, names: dict[int, str]) -> Finding:
        """Return the finding about a stretch. `names`: by the start of each stretch."""
        count = format_count(stretch.end - stretch.start, "byte")
        by_section, by_cfi = (claim and self._format_claim(claim) for claim in stretch.claims)
        if by_section == by_cfi:
            text = f"section and CFI say {by_section}"
        elif by_section and by_cfi:
            text = f"the section says {by_section}, the CFI {by_cfi}"
        else:
            text = f"the section says {by_section}" if by_section else f"the CFI says {by_cfi}"
        claim = next(claim for claim in stretch.claims if claim is not None)
        state = self._format_state(self.states[stretch.state], claim)
        message = f"{names[stretch.start]}, {count}: {text}; the instructions say {state}"
        instructions = self._list_instructions(stretch.start)
        return Finding(_finding_rule(stretch), Severity.ERROR, message, address=stretch.start, instructions=instructions)

    def _format_claim(self, claim: Claim) -> str:
        rule = claim.rule
        if rule is None:
            return ""
        return equation(rule, self.abi) + (" with key B" if rule.ra_signed and claim.key_b else "")

    def _format_state(self, state: FrameState, claim: Claim) -> str:
        """Return the proven frame as an equation, with the CFA relative to the claim's register if that is known."""
        fp = register_name(self.abi.fp, self.abi)
        rule = rule_of_state(state, self.abi.sp, self.abi.fp, self.abi.fixed_ra_offset)
        cfa = self._proven_cfa(state, claim)
        if rule is not None:
            key = " with key B" if rule.ra_signed and state.key_b else ""
            return equation(rule if cfa is None else rule._replace(cfa=cfa), self.abi) + key
        known = [f"cfa = {register_name(cfa.register or 0, self.abi)} + {cfa.offset}"] if cfa else []
        if state.fp is not None:
            known.append(f"{fp} is the caller's" if state.fp == CALLERS else f"{fp} = cfa - {-state.fp}")
        return ", ".join(known)

    def _proven_cfa(self, state: FrameState, claim: Claim) -> Where | None:
        """Return the proven CFA relative to the register that the claim uses; None if its value is not known."""
        base = claim.rule.cfa if claim.rule is not None else None
        if base is None:
            return None
        value = state.sp if base.register == self.abi.sp else state.fp
        return None if value is None or value == CALLERS else base._replace(offset=-value)

    def _list_instructions(self, address: int) -> tuple[Instruction, ...]:
        """Return the instruction at an address, and some before and after it."""
        code = self._decode_function(address)
        here = code.number_at(code.instruction_start(address))
        listing, stubs = [], self.elf.externals.stubs
        for number in range(max(here - LISTED_AROUND, 0), min(here + LISTED_AROUND + 1, len(code))):
            at, _, mnemonic, operands = code.instruction(number)
            operands = OPERAND_ADDRESS.sub(lambda found: stubs.get(int(found[0], 16), found[0]), operands)
            listing.append(Instruction(at, f"{mnemonic} {operands}".rstrip(), number == here))
            if mnemonic == UNDECODED and number >= here:  # what follows may be decoded from a wrong offset
                break
        return tuple(listing)


def _finding_rule(part: ContradictedRange) -> str:
    return RULE_BOTH if all(part.claims) else RULE_SECTION if part.claims[0] else RULE_CFI
