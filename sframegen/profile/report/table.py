"""Formats a profile as a table for the terminal: the hottest functions, stacks and lines, groups, totals, and lost samples."""

from __future__ import annotations

import textwrap
from array import array
from collections import Counter
from heapq import nlargest
from itertools import groupby, islice
from typing import TYPE_CHECKING, NamedTuple

from sframegen.base.columns import zeros
from sframegen.base.text import cut_middle, format_count, printable, sort_by_count
from sframegen.profile.collected import Unit
from sframegen.profile.report.formats.row_kinds import NumberedItems
from sframegen.profile.report.label_trees import LabelTrees, count_samples_by_group, rows_with_samples
from sframegen.profile.report.named import FrameKind, NamedProfile
from sframegen.stack.walking.frames import COMPLETE

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_FUNCTIONS, MAX_STACKS, MAX_LINES, MAX_GROUPS = 20, 5, 5, 10
MAX_TIES = 1000  # stacks to compare that have as many samples as the last one of the table
MIN_WIDTH = 40
SHARE_COLUMNS, PERCENTAGE_COLUMNS = 10, 19  # one percentage, and both, with the spaces after them
CALLER_ARROW = " < "  # before each caller
NO_FRAMES = "[no user stack]"


class FunctionCost(NamedTuple):
    """Samples of a function: `self` without, `total` with those of the functions that it called. Recursion counts once."""

    function: str
    object: str
    self: int
    total: int


def function_costs(named: NamedProfile) -> list[FunctionCost]:
    """Return the costs of all functions, sorted by their own samples, largest first."""
    functions: NumberedItems[tuple[str, str] | None] = NumberedItems(None)  # None: callers that are unknown
    keys = (None if site.kind is FrameKind.MISSING else (site.function, site.object) for site in named.locations.sites)
    label_of = array("I", map(functions.number_of, keys))
    own, total = zeros("Q", len(functions.items)), zeros("Q", len(functions.items))
    named.count_labels(label_of, own, total)
    costs = [FunctionCost(*key, *counts) for key, *counts in zip(functions.items, own, total, strict=True) if key and counts[1]]
    return sorted(costs, key=lambda cost: (-cost.self, -cost.total, cost.function, cost.object))


def count_samples_by_line(named: NamedProfile) -> list[tuple[str, int]]:
    """Return (source line, samples) of the lines that ran, sorted by samples, largest first."""
    lines: NumberedItems[tuple[str, int]] = NumberedItems()
    label_of = array("I", [lines.number_of((site.source, site.line)) for site in named.locations.sites])
    own, total = zeros("Q", len(lines.items)), zeros("Q", len(lines.items))
    named.count_labels(label_of, own, total)
    counts = [(f"{source}:{line}", count) for (source, line), count in zip(lines.items, own, strict=True) if line and count]
    return sorted(counts, key=lambda item: (-item[1], item[0]))


def format_table(named: NamedProfile, width: int = 100) -> Iterator[str]:
    """Yield the lines of the table. Lines other than the totals have at most `width` characters, and at most 40 if it is less."""
    width = max(width, MIN_WIDTH)
    if len(named.locations):
        yield from _format_functions(named, width)
        yield from _format_stacks(named, width)
        yield from _format_lines(named, width)
        yield from _format_groups(named, width)
        yield ""
    yield from format_totals(named)


def _format_functions(named: NamedProfile, width: int) -> Iterator[str]:
    rows = function_costs(named)[:MAX_FUNCTIONS]
    objects = min(max([len("OBJECT"), *(len(row.object) for row in rows)]), width // 4)
    names = min(max([len("FUNCTION"), *(len(row.function) for row in rows)]), width - PERCENTAGE_COLUMNS - objects - 2)
    yield f"{'SELF %':>8} {'TOTAL %':>8}  {'FUNCTION':<{names}}  OBJECT"
    for row in rows:
        numbers = f"{_format_percent(row.self, named):>8} {_format_percent(row.total, named):>8}"
        yield f"{numbers}  {cut_to_width(row.function, names):<{names}}  {cut_to_width(row.object, objects)}".rstrip()


def _format_stacks(named: NamedProfile, width: int) -> Iterator[str]:
    yield ""
    yield cut_to_width(f"{'%':>8}  HOTTEST STACKS, the innermost function first", width)
    for labels, count in find_hottest_stacks(named):
        stack = CALLER_ARROW.join(_join_repeated(labels)) or NO_FRAMES
        yield f"{_format_percent(count, named):>8}  {cut_to_width(stack, width - SHARE_COLUMNS)}"


def _format_lines(named: NamedProfile, width: int) -> Iterator[str]:
    lines = count_samples_by_line(named)
    if lines:
        yield ""
        yield f"{'%':>8}  HOTTEST LINES"
    for location, count in lines[:MAX_LINES]:
        room = width - SHARE_COLUMNS  # the end of a long path tells more than its beginning
        yield f"{_format_percent(count, named):>8}  {location if len(location) <= room else '…' + location[1 - room :]}"


def find_hottest_stacks(named: NamedProfile) -> list[tuple[tuple[str, ...], int]]:
    """Return (labels, samples) of the hottest stacks of all groups, the innermost label first."""
    trees = LabelTrees(named, named.label)
    with rows_with_samples(named) as rows:
        tree = trees.merge_rows(rows)
    samples = tree.samples
    minimum = min(nlargest(MAX_STACKS, samples[: tree.rows.count]), default=0)
    hot_rows = [row for row in range(tree.rows.count) if samples[row] > minimum]  # fewer than MAX_STACKS
    hot_rows += islice((row for row in range(tree.rows.count) if samples[row] == minimum), MAX_TIES)
    stacks = [(tuple(reversed(tree.list_path(tree.node_of(row), trees.labels))), samples[row]) for row in hot_rows]
    return sorted(stacks, key=lambda item: (-item[1], item[0]))[:MAX_STACKS]


def _join_repeated(labels: tuple[str, ...]) -> Iterator[str]:
    """Yield the labels; equal neighbours, as in a recursion, become one with their number: `f x3`."""
    for label, same in groupby(labels):
        times = len([*same])
        yield f"{label} x{times:,}" if times > 1 else label


def _format_groups(named: NamedProfile, width: int) -> Iterator[str]:
    counts = sort_by_count(count_samples_by_group(named))
    if len(counts) < 2:
        return
    yield ""
    yield f"{'%':>8}  BY {named.by.upper()}"
    for name, count in counts[:MAX_GROUPS]:
        yield f"{_format_percent(count, named):>8}  {cut_to_width(name, width - SHARE_COLUMNS)}"
    if counts[MAX_GROUPS:]:
        others = sum(count for _, count in counts[MAX_GROUPS:])
        yield f"{_format_percent(others, named):>8}  {cut_to_width(f'{len(counts) - MAX_GROUPS:,} more', width - SHARE_COLUMNS)}"


def format_totals(named: NamedProfile) -> Iterator[str]:
    """Yield lines with the number of samples, the reasons why stacks are incomplete, and lost samples."""
    samples = named.samples
    rate = f", {named.frequency:,} Hz" if named.frequency else ""
    yield f"{named.unit.describe(samples)} of {named.event}{rate} in {named.seconds:.1f} s{named.backend and f'; {named.backend}'}"
    if samples:
        whole = count_complete(named)
        yield f"complete: {_format_amount(whole, named)} ({_format_percent(whole, named)} %)"
        if named.guessed:
            yield f"with guessed frames: {_format_amount(named.guessed, named)} ({_format_percent(named.guessed, named)} %)"
    elif not named.lost:
        reason = "the event did not happen, or less often than it is sampled"
        if named.frequency:
            period = f"{1000 / named.frequency:.1f} ms"
            reason = f"the processes waited, or ended before they had used the CPU for a sampling period ({period})"
        yield f"nothing was sampled: {reason}"
    for reason, count in sort_by_count(count_incomplete(named)):
        yield f"incomplete: {_format_amount(count, named)} ({_format_percent(count, named)} %): {reason}"
    for reason, count in sort_by_count(named.lost):
        yield f"lost: {format_count(count, 'sample')}: {reason}"


def format_notes(named: NamedProfile, width: int) -> Iterator[str]:
    """Yield the notes below a heading, without duplicates, wrapped to `width` characters."""
    if named.notes:
        yield "notes:"
    for note in dict.fromkeys(named.notes):
        yield from textwrap.wrap(
            cut_middle(printable(note)), max(width, MIN_WIDTH), initial_indent="  - ", subsequent_indent="    ",
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip


def _format_amount(number: int, named: NamedProfile) -> str:
    return f"{number:,}" if named.unit is Unit.SAMPLES else named.unit.describe(number)


def count_complete(named: NamedProfile) -> int:
    """Return the number of samples whose walk reached the outermost frame."""
    return sum(count for end, count in named.ends.items() if end in COMPLETE)


def count_incomplete(named: NamedProfile) -> Counter[str]:
    """Return the number of samples whose walk did not reach the outermost frame, by reason."""
    return Counter({end.words: count for end, count in named.ends.items() if end not in COMPLETE})


def _format_percent(count: int, named: NamedProfile) -> str:
    """Return a share in percent, with two decimals if one decimal would round it to 0.0 or 100.0."""
    share = 100 * count / named.samples
    return f"{share:.2f}" if 0 < share < 0.05 or 99.95 <= share < 100 else f"{share:.1f}"


def cut_to_width(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
