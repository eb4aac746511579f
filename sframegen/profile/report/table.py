"""The table on the terminal: the hottest functions and stacks, groups, totals, and what was lost."""

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
from sframegen.profile.report.formats.row_kinds import TableNumbers
from sframegen.profile.report.label_trees import LabelTrees, all_rows, counts_of_groups
from sframegen.profile.report.named import FrameKind, Named
from sframegen.stack.walking.frames import COMPLETE

if TYPE_CHECKING:
    from collections.abc import Iterator


ROWS, STACKS, LINES, GROUPS = 20, 5, 5, 10
MAX_TIES = 1000  # stacks with as many samples as the last that is shown
MIN_WIDTH = 40
NUMBERS = 19  # columns of both percentages
ARROW = " < "  # before each caller
NO_FRAMES = "[no user stack]"


class Cost(NamedTuple):
    """Samples of a function: its own, and those with the functions it called. In a recursion, each sample counts once."""

    function: str
    object: str
    self: int
    total: int


def costs(named: Named) -> list[Cost]:
    """Return the costs of all functions, most samples of their own first."""
    functions: TableNumbers[tuple[str, str] | None] = TableNumbers(None)  # None: not a function
    label_of = array(
        "I",
        [functions.of(None if site.kind is FrameKind.MISSING else (site.function, site.object)) for site in named.places.sites],
    )
    own, total = zeros("Q", len(functions.items)), zeros("Q", len(functions.items))
    named.count_labels(label_of, own, total)
    found = [Cost(*key, *counts) for key, *counts in zip(functions.items, own, total, strict=True) if key and counts[1]]
    return sorted(found, key=lambda cost: (-cost.self, -cost.total, cost.function, cost.object))


def lines_of(named: Named) -> list[tuple[str, int]]:
    """Return (source line, samples) of the lines that ran, most samples first."""
    lines: TableNumbers[tuple[str, int]] = TableNumbers()
    label_of = array("I", [lines.of((site.source, site.line)) for site in named.places.sites])
    own, total = zeros("Q", len(lines.items)), zeros("Q", len(lines.items))
    named.count_labels(label_of, own, total)
    found = [(f"{source}:{line}", count) for (source, line), count in zip(lines.items, own, strict=True) if line and count]
    return sorted(found, key=lambda item: (-item[1], item[0]))


def table(named: Named, width: int = 100) -> Iterator[str]:
    """Yield the table's lines, of at most `width` (at least 40) characters, except totals, which end with reasons."""
    width = max(width, MIN_WIDTH)
    if len(named.places):
        yield from _functions(named, width)
        yield from _stacks(named, width)
        yield from _lines(named, width)
        yield from _groups(named, width)
        yield ""
    yield from totals(named)


def _functions(named: Named, width: int) -> Iterator[str]:
    rows = costs(named)[:ROWS]
    objects = min(max([len("OBJECT"), *(len(row.object) for row in rows)]), width // 4)
    names = min(max([len("FUNCTION"), *(len(row.function) for row in rows)]), width - NUMBERS - objects - 2)
    yield f"{'SELF %':>8} {'TOTAL %':>8}  {'FUNCTION':<{names}}  OBJECT"
    for row in rows:
        numbers = f"{_percent(row.self, named):>8} {_percent(row.total, named):>8}"
        yield f"{numbers}  {cut_to_width(row.function, names):<{names}}  {cut_to_width(row.object, objects)}".rstrip()


def _stacks(named: Named, width: int) -> Iterator[str]:
    yield ""
    yield cut_to_width(f"{'%':>8}  HOTTEST STACKS, the innermost function first", width)
    for labels, count in hottest_stacks(named):
        yield f"{_percent(count, named):>8}  {cut_to_width(ARROW.join(_runs(labels)) or NO_FRAMES, width - 10)}"


def _lines(named: Named, width: int) -> Iterator[str]:
    lines = lines_of(named)
    if lines:
        yield ""
        yield f"{'%':>8}  HOTTEST LINES"
    for place, count in lines[:LINES]:
        yield f"{_percent(count, named):>8}  {place if len(place) <= width - 10 else '…' + place[11 - width :]}"


def hottest_stacks(named: Named) -> list[tuple[tuple[str, ...], int]]:
    """Return (labels, samples) of the hottest stacks of all groups, the innermost label first."""
    trees = LabelTrees(named, named.label)
    with all_rows(named) as rows:
        tree = trees.merge(rows)
    samples = tree.samples
    least = nlargest(STACKS, samples[: tree.rows.count])[-1:]
    hot = islice((row for row in range(tree.rows.count) if samples[row] >= least[0]), MAX_TIES)
    found = [(tuple(reversed(trees.path(tree.node_of(row)))), samples[row]) for row in hot]
    return sorted(found, key=lambda item: (-item[1], item[0]))[:STACKS]


def _runs(labels: tuple[str, ...]) -> Iterator[str]:
    """Yield the labels; equal neighbours are one, with their number."""
    for label, same in groupby(labels):
        times = len([*same])
        yield f"{label} x{times:,}" if times > 1 else label


def _groups(named: Named, width: int) -> Iterator[str]:
    counts = sort_by_count(counts_of_groups(named))
    if len(counts) < 2:
        return
    yield ""
    yield f"{'%':>8}  BY {named.by.upper()}"
    for name, count in counts[:GROUPS]:
        yield f"{_percent(count, named):>8}  {cut_to_width(name, width - 10)}"
    if counts[GROUPS:]:
        rest = sum(count for _, count in counts[GROUPS:])
        yield f"{_percent(rest, named):>8}  {cut_to_width(f'{len(counts) - GROUPS:,} more', width - 10)}"


def totals(named: Named) -> Iterator[str]:
    """Yield lines with the number of samples, how their walks ended, and lost samples."""
    samples = named.samples
    rate = f", {named.frequency:,} Hz" if named.frequency else ""
    yield f"{named.unit.describe(samples)} of {named.event}{rate} in {named.seconds:.1f} s{named.backend and f'; {named.backend}'}"
    if samples:
        whole = whole_stacks(named)
        yield f"complete: {_amount(whole, named)} ({_percent(whole, named)} %)"
        if named.guessed:
            yield f"with guessed frames: {_amount(named.guessed, named)} ({_percent(named.guessed, named)} %)"
    elif not named.lost:
        why = "the event did not happen, or less often than it is sampled"
        if named.frequency:
            period = f"{1000 / named.frequency:.1f} ms"
            why = f"the processes waited, or ended before they had used the CPU for a sampling period ({period})"
        yield f"nothing was sampled: {why}"
    for reason, count in sort_by_count(incomplete(named)):
        yield f"incomplete: {_amount(count, named)} ({_percent(count, named)} %): {reason}"
    for reason, count in sort_by_count(named.lost):
        yield f"lost: {format_count(count, 'sample')}: {reason}"


def note_lines(named: Named, width: int) -> Iterator[str]:
    """Yield the notes below a heading, each once, wrapped to that width."""
    if named.notes:
        yield "notes:"
    for note in dict.fromkeys(named.notes):
        yield from textwrap.wrap(
            cut_middle(printable(note)), max(width, MIN_WIDTH), initial_indent="  - ", subsequent_indent="    ",
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip


def _amount(number: int, named: Named) -> str:
    return f"{number:,}" if named.unit is Unit.SAMPLES else named.unit.describe(number)


def whole_stacks(named: Named) -> int:
    """Return the number of samples whose walk reached the outermost frame."""
    return sum(count for end, count in named.ends.items() if end in COMPLETE)


def incomplete(named: Named) -> Counter[str]:
    """Return the numbers of samples whose walk did not reach the outermost frame, by reason."""
    return Counter({end.words: count for end, count in named.ends.items() if end not in COMPLETE})


def _percent(count: int, named: Named) -> str:
    """Return a share in percent, with a second decimal if one would round it to 0.0 or 100.0."""
    share = 100 * count / named.samples
    return f"{share:.2f}" if 0 < share < 0.05 or 99.95 <= share < 100 else f"{share:.1f}"


def cut_to_width(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
