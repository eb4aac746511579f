"""The fate of every executable byte of a file: covered, left out, without CFI, or synthesized. docs/coverage.md defines them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

from sframegen.base.columns import zeros
from sframegen.base.text import format_count, sort_by_count
from sframegen.conversion.final_calls import FinalCalls, find_final_calls
from sframegen.conversion.tally import tally, tally_gaps
from sframegen.elf.code_areas import CodeArea, areas_of, code_segments
from sframegen.elf.columns import Areas, Spans
from sframegen.elf.ranges import Range, index_of_containing_range, merge_ranges
from sframegen.elf.records import SHF, SHT
from sframegen.format.model import OUTERMOST, FdeType, FunctionTable
from sframegen.format.words import Reason

if TYPE_CHECKING:
    from array import array
    from collections.abc import Iterable, Mapping, Sequence

    from cfi.rules import FdeFault
    from sframegen.conversion.resolve import Pieces
    from sframegen.conversion.split import Unsaid
    from sframegen.elf.file import ElfFile

Fates = dict[str, dict[str, int]]  # group -> fate -> bytes of code

# Sources of proof for the rows of code without CFI.
SYNTHESIZED = ("PLT", "program entry", "instructions")
# All fates, as (group, fate). Compiled code identifies a fate by its index here.
FATES = (
    ("covered", "default"),
    ("covered", "flex"),
    ("covered", "outermost"),
    ("covered", "signal"),
    *(("left_out", reason.value) for reason in Reason),
    ("left_out", "described only by FDEs that are ignored"),
    ("no_cfi", "padding"),
    ("no_cfi", "padding after a final call"),
    ("no_cfi", "code"),
    ("no_cfi", "not code"),
    *(("synthesized", what) for what in SYNTHESIZED),
)
COVERED_OUTERMOST, COVERED_SIGNAL, FIRST_REASON = 2, 3, 4
IGNORED, PADDING, AFTER_CALL, CODE, NOT_CODE, FIRST_SYNTHESIZED = range(
    FIRST_REASON + len(Reason), len(FATES) - len(SYNTHESIZED) + 1
)
ALWAYS = {"covered", "no_cfi"}  # groups whose fates are reported even if they are 0


def why_empty(functions: int, ignored_fdes: Mapping[str, int]) -> str:
    """Say why no section can be made. `functions`: how many the CFI describes."""
    if functions:
        return "SFrame can express none of its call frame information"
    ignored = (f"{format_count(number, 'FDE')} {reason}" for reason, number in sort_by_count(ignored_fdes))
    return "; ".join(ignored) or "no call frame information"


@dataclass
class Coverage:
    """The fates of the code that the CFI describes. Bytes are bytes of code."""

    table: FunctionTable
    pieces: Pieces
    unsaid: Unsaid
    functions_covered: int  # number of functions covered from first byte to last
    ignored_fdes: dict[str, int]
    ignored_ranges: list[Range]  # of FDEs that are ignored or cut short, unordered; other FDEs may describe the same code
    faulty_fdes: int = 0  # FDEs whose instructions cannot be read
    faults: Sequence[FdeFault] = ()  # the first of these FDEs' faults
    synthesized: tuple[Sequence[Range], ...] = ((),) * len(
        SYNTHESIZED
    )  # in the order of SYNTHESIZED: code that the table describes, but no piece
    proven: Sequence[Range] = ()  # of the synthesized code: functions, or parts of them, whose rules were proven, ascending
    _final_calls: FinalCalls | None = field(default=None, init=False, repr=False)  # cached

    @property
    def functions(self) -> int:
        return len(self.pieces.start)

    @property
    def code_bytes(self) -> int:
        return sum(self.pieces.end) - sum(self.pieces.start)

    @property
    def covered_bytes(self) -> int:
        return sum(self._described[:FIRST_REASON])

    @property
    def left_out(self) -> dict[Reason, int]:
        counts = self._described[FIRST_REASON:IGNORED]
        return {reason: count for reason, count in zip(Reason, counts, strict=True) if count}

    def fates(self, elf: ElfFile) -> Fates:
        """Return the bytes of each fate in the file's executable ranges. Raises FormatError if these overlap or leave the file."""
        counts = self._described[:]
        self._tally_gaps(elf, counts, 0)
        after_calls = sum(self.final_calls(elf).padded_size) - sum(self.table.size)
        counts[PADDING] -= after_calls
        counts[AFTER_CALL] += after_calls
        return _by_group(counts)

    def final_calls(self, elf: ElfFile) -> FinalCalls:
        """Return the functions of the table that end with a call. Pass the same `elf` each time: the result is cached.

        Raises FormatError as `fates` does.
        """
        if self._final_calls is None:
            areas = _divide_into_areas(elf, self.ignored_ranges, self.synthesized)
            self._final_calls = find_final_calls(elf, self.table, self.pieces, areas, CODE)
        return self._final_calls

    def silent(self, elf: ElfFile) -> list[Range]:
        """Return the ranges of code without a description, whose fate is `code`, ascending. Raises FormatError as `fates` does."""
        areas = 2 * (len(elf.sections) + len(elf.segments) + len(self.ignored_ranges)) + 1
        gaps = self._tally_gaps(elf, zeros("Q", len(FATES)), areas + len(self.pieces.start))
        return list(zip(*gaps, strict=True))

    def _tally_gaps(self, elf: ElfFile, counts: array[int], room: int) -> tuple[array[int], array[int]]:
        """Return (starts, ends) of at most `room` ranges of code without FDE. Adds the bytes of all gaps to `counts`, by fate."""
        starts, ends = zeros("Q", room), zeros("Q", room)
        areas = _divide_into_areas(elf, self.ignored_ranges, self.synthesized)
        found = tally_gaps(areas, self.pieces, CODE, PADDING, counts, Spans(starts, ends))
        return starts[:found], ends[:found]

    @cached_property
    def _described(self) -> array[int]:
        """The bytes of each fate in the code that FDEs describe."""
        table = self.table
        counts = zeros("Q", len(FATES))
        by_kind = bytes(COVERED_SIGNAL if kind.signal else int(kind.fde_type is FdeType.FLEX) for kind in table.kinds)
        by_rule = bytes(COVERED_OUTERMOST * (rule == OUTERMOST) for rule in table.rules)
        tally(self.pieces, table.columns(), by_kind, by_rule, self.unsaid, FIRST_REASON, counts)
        return counts


def _by_group(counts: Iterable[int]) -> Fates:
    """Return the counts by group. Reasons and synthesized fates are included only if not 0, all other fates always."""
    groups: Fates = {group: {} for group in ("covered", "left_out", "no_cfi")}
    for (group, fate), count in zip(FATES, counts, strict=True):
        if count or group in ALWAYS:
            groups.setdefault(group, {})[fate] = count
    return groups


def _divide_into_areas(elf: ElfFile, ignored: list[Range], synthesized: tuple[Sequence[Range], ...]) -> Areas:
    segments = code_segments(elf)
    code = [(segment.start, segment.end) for segment in segments]
    sections = (
        merge_ranges(
            (header.sh_addr, header.sh_addr + header.sh_size)
            for header in (section.header for section in elf.sections)
            if header.sh_type != SHT.NOBITS and header.sh_flags & SHF.ALLOC and header.sh_flags & SHF.EXECINSTR
        )
        or code
    )
    ignored = merge_ranges(ignored)
    by_fate = [
        (IGNORED, ignored),
        *((FIRST_SYNTHESIZED + n, merge_ranges(ranges)) for n, ranges in enumerate(synthesized) if ranges),
    ]
    edges = {at for ranges in (code, sections, *(ranges for _, ranges in by_fate)) for one in ranges for at in one}
    areas = []
    for start, end in pairwise(sorted(edges)):
        number = index_of_containing_range(code, start)
        if number is not None:
            fate = next((fate for fate, ranges in by_fate if index_of_containing_range(ranges, start) is not None), CODE)
            if fate == CODE and index_of_containing_range(sections, start) is None:
                fate = NOT_CODE
            areas.append(CodeArea(segments[number], start, end, fate))
    return areas_of(elf, areas)
