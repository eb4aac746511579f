"""Compares the rules of a section and of the CFI with the frames that the instructions prove."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from sframegen.checks.contradictions import (
    CONTRADICTED,
    RIGHT,
    UNDECIDED,
    UNLESS_COPIED,
    ContradictedRange,
    Contradictions,
    verdict,
)
from sframegen.checks.tracks import SILENT, Claim, Track, meet, new_track, track, track_of
from sframegen.code.context.file_context import Assumptions
from sframegen.code.context.function_starts import find_starts
from sframegen.code.isa.machines import isa_of
from sframegen.code.whole_file.passes import Survey, survey
from sframegen.elf.code_bytes.padding import MAX_PADDING, padding_size, padding_states
from sframegen.elf.ranges import index_of_containing_range, is_within, merge_ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from sframegen.checks.finding import Finding
    from sframegen.code.isa.effects import FrameState
    from sframegen.conversion.convert import Converted
    from sframegen.elf.file import ElfFile
    from sframegen.elf.ranges import Range
    from sframegen.format.abi import Abi
    from sframegen.format.model import FunctionTable
    from sframegen.program.workers import Progress


def fragments(
    found: Survey, proven: Track, functions: Sequence[Range], enters: Callable[[int], bool], entry: FrameState
) -> set[Range]:
    """Return the functions that are only fragments of others. `enters`: True if the CFI has an entry there; `entry`: its frame."""
    jumps = found.jumps
    as_entered = {jump.target for jump in jumps if jump.as_entered}
    otherwise = {jump.target for jump in jumps if not jump.as_entered}
    suspects = otherwise - as_entered - found.referred - found.certain
    ranges = {start: (start, end) for start, end in functions if start in suspects and enters(start)}
    if not ranges or entry.sp is None:
        return set()

    def sp_at(address: int) -> int | None:
        number = proven.at(address)
        return None if number == SILENT else found.states[number].sp

    chosen = set()
    for start, one in ranges.items():
        into = [jump for jump in jumps if jump.target == start]
        sps = {sp_at(jump.source) for jump in into}
        sp = sps.pop() if len(sps) == 1 else None
        if sp is None or sp == entry.sp or found.certain.isdisjoint(jump.function for jump in into):
            continue
        leaves = [(sp_at(jump.source), sp_at(jump.target)) for jump in jumps if jump.function == start and not enters(jump.target)]
        known = [(own, other) for own, other in leaves if own is not None and other is not None]
        fits = known and all(own != other == own + sp - entry.sp for own, other in known)
        if fits or start in found.contradicting:
            chosen.add(one)
    return chosen


def as_fragments(assumptions: Assumptions, pieces: Collection[Range]) -> Assumptions:
    """Return assumptions with these ranges as fragments: they do not begin a function, and jumps lead into and out of them."""
    starts = {start for start, _ in pieces}

    def enters(address: int) -> bool:
        return address not in starts and assumptions.enters(address)

    def continues(source: int, target: int) -> bool:
        leaves = any(start <= source < end and not start <= target < end for start, end in pieces)
        return target in starts or leaves or assumptions.continues(source, target)

    return Assumptions(enters, continues)


HELD = (RIGHT, CONTRADICTED, UNDECIDED)
WHO = ("section", "cfi")


@dataclass
class InstructionVerdicts:
    """The result of the comparison. `code`: for section and CFI, bytes of the code that they describe, by verdict."""

    code: dict[str, dict[str, int]]
    findings: list[Finding] = field(default_factory=list)


def functions_of(elf: ElfFile, converted: Converted, table: FunctionTable | None = None) -> list[Range]:
    """Return the ranges of FDEs, and elsewhere of a section's functions. PLTs are left out: their stubs are not functions.

    Functions of an object are left out, too, if what they refer to could not be resolved.
    """
    headers = (section.header for section in elf.sections if section.name.startswith((".plt", ".iplt")))
    stubs = merge_ranges((header.sh_addr, header.sh_addr + header.sh_size) for header in headers)
    pieces = converted.coverage.fde_ranges
    spans = list(zip(pieces.start, pieces.end, strict=True))
    if table is not None:
        starts = pieces.start
        begins = sorted(find_starts(elf, converted.encoded.abi))
        for start, size in sorted(zip(table.start, table.size, strict=True)):
            place = bisect_right(starts, start) - 1
            end = min(start + size, starts[place + 1]) if place + 1 < len(starts) else start + size
            if size and (place < 0 or pieces.end[place] <= start):
                edges = [start, *begins[bisect_right(begins, start) : bisect_left(begins, end)], end]  # one may have several
                spans += pairwise(edges)
    found: list[Range] = []
    code = elf.executable_ranges()
    unresolved = sorted(elf.externals.unresolved)
    for start, end in sorted(spans):
        is_plt, inside = index_of_containing_range(stubs, start) is not None, is_within((start, end), code)
        if bisect_left(unresolved, start) != bisect_left(unresolved, end):
            continue
        if inside and not is_plt and (not found or found[-1][1] <= start):
            found.append((start, end))
    return found


def hold(
    elf: ElfFile,
    abi: Abi,
    converted: Converted,
    table: FunctionTable | None,
    jobs: int = 1,
    progress: Progress | None = None,
) -> InstructionVerdicts:
    """Compare the file's CFI (`converted`) and its section (`table`) with the instructions.

    Raises FormatError for an ABI whose instructions are not supported.
    """
    numbers: dict[Claim, int] = {}
    cfi = track_of(converted.table, numbers, converted.coverage.uncovered)
    section = track_of(table, numbers) if table is not None else new_track()
    claims = list(numbers)
    functions = functions_of(elf, converted, table)
    assumptions = _assumptions(elf, abi, cfi, section, claims)
    found, proven = _survey(elf, functions, assumptions, jobs, progress)
    pieces = fragments(found, proven, functions, assumptions.enters, isa_of(abi).entry)
    if pieces:
        found, proven = _survey(elf, functions, as_fragments(assumptions, pieces), jobs, progress)
    counts: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
    parts = _contradicted_ranges(section, cfi, proven, found.states, claims, abi, counts)
    findings = Contradictions(elf, abi, functions, found.certain, proven, found.states, counts).findings(parts)
    return InstructionVerdicts({who: {what: code[what] for what in HELD} for who, code in zip(WHO, counts, strict=True)}, findings)


def _survey(
    elf: ElfFile, functions: list[Range], assumptions: Assumptions, jobs: int, progress: Progress | None
) -> tuple[Survey, Track]:
    """Survey the functions; return the results, and the states that they prove."""
    found = survey(elf, functions, {start for start, _ in functions if assumptions.enters(start)}, jobs, progress, assumptions)
    return found, track(found.start, found.end, found.state)


def _assumptions(elf: ElfFile, abi: Abi, cfi: Track, section: Track, claims: Sequence[Claim]) -> Assumptions:
    """Return the assumptions about entries and control flow, so that contradictions do not rest on what these rule out.

    A function begins only where the CFI, or else the section, has the rule of an entry. Other code has a first row that tells
    how it is entered; before a landing pad, compilers put a no-op, and the row after that. Neither a call nor a jump changes the
    frame: if the rule changes after it, the call does not return, or the jump does not lead there.
    """
    isa = isa_of(abi)
    states = padding_states(elf.header.e_machine)
    code = elf.executable_ranges()

    def said(address: int) -> tuple[int, int]:
        by_cfi = cfi.at(address)
        return by_cfi, section.at(address) if by_cfi == SILENT else SILENT

    def padding(address: int, limit: int) -> int:
        """Return the bytes of padding at the address, before the limit."""
        number = index_of_containing_range(code, address)
        most = 0 if number is None else min(limit, code[number][1]) - address
        return padding_size(states, elf.at(address, most), 0, most, True)

    def enters(address: int) -> bool:
        number = max(said(address))
        if number == SILENT or _verdict(claims[number], isa.entry, abi) != RIGHT:
            return False
        return not padding(address, address + isa.longest)

    def continues(source: int, target: int) -> bool:
        if cfi.reaches(source, target + MAX_PADDING):
            return True
        here = said(source)
        if said(target) != here:
            return False
        edge = (cfi if here[0] != SILENT else section).following(target)
        return not target < edge <= target + MAX_PADDING or said(edge) == here or padding(target, edge) < edge - target

    return Assumptions(enters, continues)


def _verdict(claim: Claim, state: FrameState, abi: Abi) -> str:
    return UNDECIDED if claim.rule is None else verdict(claim.rule, claim.key_b, state, abi.sp, abi.fp)


def _contradicted_ranges(
    section: Track,
    cfi: Track,
    proven: Track,
    states: Sequence[FrameState],
    claims: Sequence[Claim],
    abi: Abi,
    counts: tuple[Counter[str], Counter[str]],
) -> Iterator[ContradictedRange]:
    """Yield the contradicted ranges, and add the bytes of each verdict to `counts`."""
    known: dict[tuple[int, int], str] = {}
    for start, end, (by_section, by_cfi, state) in meet(section, cfi, proven):
        contradicted: list[Claim | None] = [None, None]
        unless = ["", ""]
        for number, said in enumerate((by_section, by_cfi)):
            if said == SILENT:
                continue
            what = UNDECIDED
            if said > SILENT and state != SILENT:
                if (said, state) not in known:
                    known[said, state] = _verdict(claims[said], states[state], abi)
                what = known[said, state]
            if what not in HELD:
                contradicted[number] = claims[said]
                unless[number] = UNLESS_COPIED.get(what, "")
                what = CONTRADICTED
            counts[number][what] += end - start
        if any(contradicted):
            yield ContradictedRange(start, end, state, (contradicted[0], contradicted[1]), (unless[0], unless[1]))
