"""Compares the rules of a section and of the CFI with the frame states that the instructions prove.

The instructions are analysed twice if need be: the first time shows which functions are only fragments of others, which are entered
with another frame; the second time takes these into account. Then each rule is judged wherever a state is proven.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from sframegen.checks.contradictions import CONTRADICTED, DOUBTFUL, RIGHT, UNDECIDED, ContradictedRange, Contradictions, judge_rule
from sframegen.checks.tracks import NO_CLAIM, Claim, Track, intersect_tracks, make_track, new_track, track_of_table
from sframegen.code.context.file_context import Assumptions
from sframegen.code.context.function_starts import find_starts
from sframegen.code.isa.machines import isa_of
from sframegen.code.whole_file.passes import Survey, survey
from sframegen.elf.code_bytes.padding import MAX_PADDING, padding_size, padding_states
from sframegen.elf.ranges import index_of_containing_range, is_within, merge_ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from sframegen.checks.contradictions import VerdictCounts
    from sframegen.checks.finding import Finding
    from sframegen.code.isa.effects import FrameState
    from sframegen.conversion.convert import Converted
    from sframegen.elf.file import ElfFile
    from sframegen.elf.ranges import Range
    from sframegen.format.abi import Abi
    from sframegen.format.model import FunctionTable
    from sframegen.program.workers import Progress


def find_fragments(
    survey_result: Survey, proven: Track, functions: Sequence[Range], enters: Callable[[int], bool], entry: FrameState
) -> set[Range]:
    """Return the functions that are fragments: parts of other functions, with FDEs of their own, that are only jumped to.

    `enters`: returns True if the CFI has an entry's rule there. `entry`: the state at an entry.
    """
    jumps = survey_result.jumps
    tail_called = {jump.target for jump in jumps if jump.as_entered}
    jumped_to = {jump.target for jump in jumps if not jump.as_entered}
    suspects = jumped_to - tail_called - survey_result.referred - survey_result.certain
    ranges = {start: (start, end) for start, end in functions if start in suspects and enters(start)}
    if not ranges or entry.sp is None:
        return set()

    def sp_at(address: int) -> int | None:
        number = proven.claim_at(address)
        return None if number == NO_CLAIM else survey_result.states[number].sp

    fragments = set()
    for start, function in ranges.items():
        jumps_in = [jump for jump in jumps if jump.target == start]
        sps = {sp_at(jump.source) for jump in jumps_in}
        sp = sps.pop() if len(sps) == 1 else None
        if sp is None or sp == entry.sp or survey_result.certain.isdisjoint(jump.function for jump in jumps_in):
            continue
        jumps_out = [jump for jump in jumps if jump.function == start and not enters(jump.target)]
        sps_out = [(sp_at(jump.source), sp_at(jump.target)) for jump in jumps_out]
        known = [(own, other) for own, other in sps_out if own is not None and other is not None]
        # The fragment's states were proven from an entry's frame: its SP differs from the real one by the same number everywhere.
        is_consistent = known and all(own != other == own + sp - entry.sp for own, other in known)
        if is_consistent or start in survey_result.contradicting:
            fragments.add(function)
    return fragments


def assume_fragments(assumptions: Assumptions, fragments: Collection[Range]) -> Assumptions:
    """Return the assumptions with these ranges as fragments: they do not begin a function, and jumps lead into and out of them."""
    starts = {start for start, _ in fragments}

    def enters(address: int) -> bool:
        return address not in starts and assumptions.enters(address)

    def continues(source: int, target: int) -> bool:
        leaves = any(start <= source < end and not start <= target < end for start, end in fragments)
        return target in starts or leaves or assumptions.continues(source, target)

    return Assumptions(enters, continues)


COUNTED_VERDICTS = (RIGHT, CONTRADICTED, UNDECIDED)
SOURCES = ("section", "cfi")  # of the claims, as keys of the report


@dataclass
class InstructionVerdicts:
    """The result of the comparison. `code`: for section and CFI, the bytes of the code that they describe, by verdict."""

    code: dict[str, dict[str, int]]
    findings: list[Finding] = field(default_factory=list)


def find_functions(elf: ElfFile, converted: Converted, table: FunctionTable | None = None) -> list[Range]:
    """Return the ranges of FDEs, and of the section's functions where there is no FDE. PLT stubs are left out.

    Functions of an object are also left out if a symbol that they refer to could not be resolved.
    """
    headers = (section.header for section in elf.sections if section.name.startswith((".plt", ".iplt")))
    stubs = merge_ranges((header.sh_addr, header.sh_addr + header.sh_size) for header in headers)
    fdes = converted.coverage.fde_ranges
    spans = list(zip(fdes.start, fdes.end, strict=True))
    if table is not None:
        known_starts = sorted(find_starts(elf, converted.encoded.abi))
        for start, size in sorted(zip(table.start, table.size, strict=True)):
            fde = bisect_right(fdes.start, start) - 1  # the last one that does not begin later
            end = min(start + size, fdes.start[fde + 1]) if fde + 1 < len(fdes.start) else start + size
            if size and (fde < 0 or fdes.end[fde] <= start):
                # The section may have joined several functions into one.
                spans += pairwise([start, *known_starts[bisect_right(known_starts, start) : bisect_left(known_starts, end)], end])
    functions: list[Range] = []
    code = elf.executable_ranges()
    unresolved = sorted(elf.externals.unresolved)
    for start, end in sorted(spans):
        is_plt, inside = index_of_containing_range(stubs, start) is not None, is_within((start, end), code)
        if bisect_left(unresolved, start) != bisect_left(unresolved, end):
            continue
        if inside and not is_plt and (not functions or functions[-1][1] <= start):
            functions.append((start, end))
    return functions


def compare_with_instructions(
    elf: ElfFile, abi: Abi, converted: Converted, table: FunctionTable | None, jobs: int = 1, progress: Progress | None = None
) -> InstructionVerdicts:
    """Compare the file's CFI (`converted`) and its section (`table`) with the instructions.

    Raises FormatError for an ABI whose instructions are not supported.
    """
    claim_numbers: dict[Claim, int] = {}
    cfi = track_of_table(converted.table, claim_numbers, converted.coverage.uncovered)
    section = track_of_table(table, claim_numbers) if table is not None else new_track()
    claims = list(claim_numbers)
    functions = find_functions(elf, converted, table)
    assumptions = _make_assumptions(elf, abi, cfi, section, claims)
    found, proven = _survey_functions(elf, functions, assumptions, jobs, progress)
    fragments = find_fragments(found, proven, functions, assumptions.enters, isa_of(abi).entry)
    if fragments:
        found, proven = _survey_functions(elf, functions, assume_fragments(assumptions, fragments), jobs, progress)
    counts: VerdictCounts = (Counter(), Counter())
    ranges = _find_contradicted_ranges(section, cfi, proven, found.states, claims, abi, counts)
    findings = Contradictions(elf, abi, functions, found.certain, proven, found.states, counts).findings(ranges)
    code = {source: {key: count[key] for key in COUNTED_VERDICTS} for source, count in zip(SOURCES, counts, strict=True)}
    return InstructionVerdicts(code, findings)


def _survey_functions(
    elf: ElfFile, functions: list[Range], assumptions: Assumptions, jobs: int, progress: Progress | None
) -> tuple[Survey, Track]:
    """Analyse the functions' instructions; return the results, and a track of the states that they prove."""
    found = survey(elf, functions, {start for start, _ in functions if assumptions.enters(start)}, jobs, progress, assumptions)
    return found, make_track(found.start, found.end, found.state)


def _make_assumptions(elf: ElfFile, abi: Abi, cfi: Track, section: Track, claims: Sequence[Claim]) -> Assumptions:
    """Return the assumptions about entries and control flow that keep the analysis from contradicting CFI without good reason.

    A function begins only where the CFI, or else the section, has the rule of an entry. Other code, such as a landing pad after
    a no-op, is entered with the rule of its first row. Neither a call nor a jump changes the frame, so if the rule changes after
    one, the call does not return, or the jump does not lead there.
    """
    isa = isa_of(abi)
    states = padding_states(elf.header.e_machine)
    code = elf.executable_ranges()

    def claims_at(address: int) -> tuple[int, int]:
        """Return the claims of the CFI and, only where that has none, of the section."""
        by_cfi = cfi.claim_at(address)
        return by_cfi, section.claim_at(address) if by_cfi == NO_CLAIM else NO_CLAIM

    def padding_at(address: int, limit: int) -> int:
        """Return how many bytes of padding there are from the address on, before the limit."""
        number = index_of_containing_range(code, address)
        size = 0 if number is None else min(limit, code[number][1]) - address
        return padding_size(states, elf.at(address, size), 0, size, True)

    def enters(address: int) -> bool:
        claims_here = claims_at(address)
        number = max(claims_here)
        if number == NO_CLAIM or _judge_claim(claims[number], isa.entry, abi) != RIGHT:
            return False
        # The no-ops of -fpatchable-function-entry have the same rule as the code after them; one before a landing pad has another.
        return claims_at(address + padding_at(address, address + MAX_PADDING)) == claims_here

    def continues(source: int, target: int) -> bool:
        if cfi.reaches(source, target + MAX_PADDING):
            return True
        before = claims_at(source)
        if claims_at(target) != before:
            return False
        edge = (cfi if before[0] != NO_CLAIM else section).next_start(target)
        return not target < edge <= target + MAX_PADDING or claims_at(edge) == before or padding_at(target, edge) < edge - target

    return Assumptions(enters, continues)


def _judge_claim(claim: Claim, state: FrameState, abi: Abi) -> str:
    return UNDECIDED if claim.rule is None else judge_rule(claim.rule, claim.key_b, state, abi.sp, abi.fp)


def _find_contradicted_ranges(
    section: Track, cfi: Track, proven: Track, states: Sequence[FrameState], claims: Sequence[Claim], abi: Abi,
    counts: VerdictCounts,
) -> Iterator[ContradictedRange]:  # fmt: skip
    """Yield the contradicted ranges, and add the bytes of each verdict to `counts`."""
    known_verdicts: dict[tuple[int, int], str] = {}
    for start, end, (by_section, by_cfi, state) in intersect_tracks(section, cfi, proven):
        contradicted: list[Claim | None] = [None, None]
        unless = ["", ""]
        for source, claim in enumerate((by_section, by_cfi)):
            if claim == NO_CLAIM:
                continue
            verdict = UNDECIDED
            if claim > NO_CLAIM and state != NO_CLAIM:
                if (claim, state) not in known_verdicts:
                    known_verdicts[claim, state] = _judge_claim(claims[claim], states[state], abi)
                verdict = known_verdicts[claim, state]
            if verdict not in COUNTED_VERDICTS:  # it names the contradicted part of the rule
                contradicted[source] = claims[claim]
                unless[source] = DOUBTFUL.get(verdict, "")
                verdict = CONTRADICTED
            counts[source][verdict] += end - start
        if any(contradicted):
            yield ContradictedRange(start, end, state, (contradicted[0], contradicted[1]), (unless[0], unless[1]))
