"""Counts the bytes of each category in coverage.py: in functions, in uncovered ranges, and in gaps between FDEs. Compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    import cython
except ImportError:
    from sframegen.base import cython_shadow as cython  # type: ignore[no-redef]

if TYPE_CHECKING:
    from sframegen.base.columns import Bytes, Column
    from sframegen.conversion.resolve import FdeRanges
    from sframegen.conversion.split import UncoveredRanges
    from sframegen.elf.columns import Areas, Spans
    from sframegen.format.columns import Functions


@cython.locals(
    kind_category="const unsigned char[::1]", rule_category="const unsigned char[::1]", category_bytes="unsigned long long[::1]",
    range_start="const unsigned long long[::1]", range_end="const unsigned long long[::1]",
    uncovered_start="const unsigned long long[::1]", uncovered_size="const unsigned int[::1]",
    uncovered_reason="const unsigned char[::1]",
)  # fmt: skip
def count_function_bytes(
    fde_ranges: FdeRanges, functions: Functions, kind_category: Bytes, rule_category: Bytes, uncovered: UncoveredRanges,
    first_reason: cython.Py_ssize_t, category_bytes: Column,
) -> None:  # fmt: skip
    """Adds to `category_bytes` the bytes of each category in the FDE ranges.

    Functions outside of all FDE ranges are not counted. FDE ranges, functions and uncovered ranges ascend, and each uncovered range
    lies within one FDE range. A row gets the greater of its kind's and its rule's categories. `first_reason`: category of reason 0.
    """
    _, range_start, range_end = fde_ranges
    uncovered_start, uncovered_size, uncovered_reason = uncovered
    fde_range: cython.Py_ssize_t = 0
    i: cython.Py_ssize_t
    row: cython.Py_ssize_t
    category: cython.Py_ssize_t
    high: cython.ulonglong
    for i in range(len(functions.start)):
        while fde_range < len(range_end) and range_end[fde_range] <= functions.start[i]:
            fde_range += 1
        if fde_range == len(range_end) or functions.start[i] < range_start[fde_range]:
            continue
        for row in range(functions.first_row[i], functions.first_row[i + 1]):
            high = functions.size[i]
            if row + 1 < functions.first_row[i + 1]:
                high = functions.row_start[row + 1]
            category = max(kind_category[functions.kind[i]], rule_category[functions.row_rule[row]])
            category_bytes[category] += high - functions.row_start[row]
    for i in range(len(uncovered_start)):
        category_bytes[first_reason + uncovered_reason[i]] += uncovered_size[i]


@cython.locals(
    range_start="const unsigned long long[::1]", range_end="const unsigned long long[::1]", category_bytes="unsigned long long[::1]"
)
def count_gap_bytes(
    areas: Areas, fde_ranges: FdeRanges, code_category: cython.Py_ssize_t, padding_category: cython.Py_ssize_t,
    category_bytes: Column, gaps: Spans,
) -> int:  # fmt: skip
    """Adds to `category_bytes` the bytes of the gaps between FDE ranges, and returns the number of ranges recorded in `gaps`.

    A gap counts for its area's category. If that is code, the padding that the gap begins with counts as padding, and the rest is
    recorded while `gaps` has room. The last no-op may end in the next FDE range, as before glibc's __restore_rt.
    """
    gap_count: cython.Py_ssize_t = 0
    fde_range: cython.Py_ssize_t = 0
    area: cython.Py_ssize_t
    padding_bytes: cython.ulonglong
    low: cython.ulonglong
    high: cython.ulonglong
    _, range_start, range_end = fde_ranges
    for area in range(len(areas.start)):
        low = areas.start[area]
        while low < areas.end[area]:
            while fde_range < len(range_end) and range_end[fde_range] <= low:
                fde_range += 1
            high = areas.end[area]
            if fde_range < len(range_end) and range_start[fde_range] < high:
                high = range_start[fde_range]
            if high <= low:
                low = range_end[fde_range]
                continue
            padding_bytes = 0
            if areas.category[area] == code_category:
                padding_bytes = areas.padding_end(area, low, high, False) - low
            category_bytes[padding_category] += padding_bytes
            category_bytes[areas.category[area]] += high - low - padding_bytes
            if areas.category[area] == code_category and padding_bytes < high - low and gap_count < len(gaps.start):
                gaps.start[gap_count] = low + padding_bytes
                gaps.end[gap_count] = high
                gap_count += 1
            low = high
    return gap_count
