"""Counts a file's executable bytes by category, which users know as `fates`. docs/coverage.md defines the categories."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

from sframegen.base.columns import zeros
from sframegen.base.text import format_count, sort_by_count
from sframegen.conversion.byte_counts import count_function_bytes, count_gap_bytes
from sframegen.conversion.final_calls import FinalCalls, find_final_calls
from sframegen.elf.code_areas import CodeArea, build_areas, code_segments, is_code
from sframegen.elf.columns import Areas, Spans
from sframegen.elf.ranges import Range, index_of_containing_range, merge_ranges
from sframegen.format.model import OUTERMOST, FdeType, FunctionTable
from sframegen.format.words import Reason

if TYPE_CHECKING:
    from array import array
    from collections.abc import Iterable, Mapping, Sequence

    from cfi.rules import FdeFault
    from sframegen.conversion.resolve import FdeRanges
    from sframegen.conversion.split import UncoveredRanges
    from sframegen.elf.file import ElfFile

CategoryBytes = dict[str, dict[str, int]]  # group -> category -> bytes of code

# Sources of proof for the rows of code without CFI.
SYNTHESIZED = ("PLT", "program entry", "instructions")
# All categories, as (group, category). Compiled code identifies a category by its index here.
CATEGORIES = (
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
    *(("synthesized", source) for source in SYNTHESIZED),
)
COVERED_DEFAULT, COVERED_FLEX, COVERED_OUTERMOST, COVERED_SIGNAL, FIRST_REASON = range(5)
IGNORED, PADDING, AFTER_CALL, CODE, NOT_CODE, FIRST_SYNTHESIZED = range(
    FIRST_REASON + len(Reason), len(CATEGORIES) - len(SYNTHESIZED) + 1
)
ALWAYS_REPORTED = {"covered", "no_cfi"}  # groups whose categories are reported even if they have no bytes


def explain_empty_section(functions: int, ignored_fdes: Mapping[str, int]) -> str:
    """Return the reason why a file gets no section. `functions`: how many the CFI describes."""
    if functions:
        return "SFrame can express none of its call frame information"
    ignored = (f"{format_count(number, 'FDE')} {reason}" for reason, number in sort_by_count(ignored_fdes))
    return "; ".join(ignored) or "no call frame information"


@dataclass
class Coverage:
    """What a conversion covers. Bytes are bytes of code."""

    table: FunctionTable
    fde_ranges: FdeRanges
    uncovered: UncoveredRanges
    functions_covered: int  # number of functions covered from first byte to last
    ignored_fdes: dict[str, int]
    ignored_ranges: list[Range]  # of FDEs that are ignored or cut short, unordered; other FDEs may describe the same code
    faulty_fdes: int = 0  # FDEs whose instructions cannot be read
    faults: Sequence[FdeFault] = ()  # the first of these FDEs' faults
    # In the order of SYNTHESIZED: code that the table describes, but no FDE.
    synthesized: tuple[Sequence[Range], ...] = ((),) * len(SYNTHESIZED)
    proven: Sequence[Range] = ()  # the functions, or parts of them, in synthesized code whose rules were proven, ascending
    _final_calls: FinalCalls | None = field(default=None, init=False, repr=False)  # cached

    @property
    def functions(self) -> int:
        return len(self.fde_ranges.start)

    @property
    def code_bytes(self) -> int:
        return sum(self.fde_ranges.end) - sum(self.fde_ranges.start)

    @property
    def covered_bytes(self) -> int:
        return sum(self._described[:FIRST_REASON])

    @property
    def left_out(self) -> dict[Reason, int]:
        counts = self._described[FIRST_REASON:IGNORED]
        return {reason: count for reason, count in zip(Reason, counts, strict=True) if count}

    def bytes_by_category(self, elf: ElfFile) -> CategoryBytes:
        """Count the bytes of each category in all executable ranges. Raises FormatError if these overlap or leave the file."""
        counts = self._described[:]
        self._count_gaps(elf, counts, room=0)  # only for the counts: the ranges are not needed
        after_calls = sum(self.final_calls(elf).padded_size) - sum(self.table.size)
        counts[PADDING] -= after_calls
        counts[AFTER_CALL] += after_calls
        return _group_counts(counts)

    def final_calls(self, elf: ElfFile) -> FinalCalls:
        """Return the functions of the table that end with a call. Pass the same `elf` each time: the result is cached.

        Raises FormatError as `bytes_by_category` does.
        """
        if self._final_calls is None:
            areas = _divide_into_areas(elf, self.ignored_ranges, self.synthesized)
            self._final_calls = find_final_calls(elf, self.table, self.fde_ranges, areas, CODE)
        return self._final_calls

    def ranges_without_cfi(self, elf: ElfFile) -> list[Range]:
        """Return the ranges of category `code`, ascending. Raises FormatError as `bytes_by_category` does."""
        most_areas = 2 * (len(elf.sections) + len(elf.segments) + len(self.ignored_ranges)) + 1  # areas lie between their edges
        gaps = self._count_gaps(elf, zeros("Q", len(CATEGORIES)), most_areas + len(self.fde_ranges.start))
        return list(zip(*gaps, strict=True))

    def _count_gaps(self, elf: ElfFile, counts: array[int], room: int) -> tuple[array[int], array[int]]:
        """Return (starts, ends) of at most `room` ranges of code without FDE. Add the bytes of all gaps to `counts`."""
        starts, ends = zeros("Q", room), zeros("Q", room)
        areas = _divide_into_areas(elf, self.ignored_ranges, self.synthesized)
        gap_count = count_gap_bytes(areas, self.fde_ranges, CODE, PADDING, counts, Spans(starts, ends))
        return starts[:gap_count], ends[:gap_count]

    @cached_property
    def _described(self) -> array[int]:
        """The bytes of each category in the code that FDEs describe."""
        table = self.table
        counts = zeros("Q", len(CATEGORIES))
        # A row counts for the greater of its kind's and its rule's categories.
        category_of_type = {FdeType.DEFAULT: COVERED_DEFAULT, FdeType.FLEX: COVERED_FLEX}
        by_kind = bytes(COVERED_SIGNAL if kind.signal else category_of_type[kind.fde_type] for kind in table.kinds)
        by_rule = bytes(COVERED_OUTERMOST if rule == OUTERMOST else COVERED_DEFAULT for rule in table.rules)
        count_function_bytes(self.fde_ranges, table.columns(), by_kind, by_rule, self.uncovered, FIRST_REASON, counts)
        return counts


def _group_counts(counts: Iterable[int]) -> CategoryBytes:
    """Return the counts by group. Counts of 0 are left out, except in groups that are always reported."""
    groups: CategoryBytes = {group: {} for group in ("covered", "left_out", "no_cfi")}
    for (group, category), count in zip(CATEGORIES, counts, strict=True):
        if count or group in ALWAYS_REPORTED:
            groups.setdefault(group, {})[category] = count
    return groups


def _divide_into_areas(elf: ElfFile, ignored: list[Range], synthesized: tuple[Sequence[Range], ...]) -> Areas:
    """Divide the executable segments into areas. An area's category is that of its bytes outside of FDE ranges."""
    segments = code_segments(elf)
    code = [(segment.start, segment.end) for segment in segments]
    headers = [section.header for section in elf.sections if is_code(section)]
    sections = merge_ranges((header.sh_addr, header.sh_addr + header.sh_size) for header in headers) or code
    by_category = [(IGNORED, merge_ranges(ignored))]
    by_category += [(FIRST_SYNTHESIZED + source, merge_ranges(ranges)) for source, ranges in enumerate(synthesized) if ranges]
    edges = {edge for ranges in (code, sections, *(ranges for _, ranges in by_category)) for pair in ranges for edge in pair}
    areas = []
    for start, end in pairwise(sorted(edges)):
        number = index_of_containing_range(code, start)
        if number is not None:
            in_code_section = index_of_containing_range(sections, start) is not None
            categories = (category for category, ranges in by_category if index_of_containing_range(ranges, start) is not None)
            areas.append(CodeArea(segments[number], start, end, next(categories, CODE if in_code_section else NOT_CODE)))
    return build_areas(elf, areas)
