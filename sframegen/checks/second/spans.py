"""Functions -> their rules along the code, as one ascending list of places where the rule changes."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

from sframegen.format.model import OUTERMOST, FdeType

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sframegen.checks.second.pyelftools_cfi import FdeColumns
    from sframegen.format.model import FunctionTable, Rule

NOTHING, UNJUDGED = -1, -2  # in place of the number of a rule
MASK = 0xFFFFFFFFFFFFFFFF
LONGEST = 64  # bytes: the longest PLT entries; others divide it


class RowSpans:
    """From places[i] to places[i + 1], said[i] holds; from the last on nothing."""

    def __init__(self) -> None:
        self.places = array("Q")
        self.said = array("i")

    def add(self, start: int, end: int, said: int) -> None:
        """`start` is not below the end of what was added before."""
        if start >= end:
            return
        if self.places and self.places[-1] == start:
            self.said[-1] = said
        else:
            self.places.append(start)
            self.said.append(said)
        self.places.append(end)
        self.said.append(NOTHING)

    def within(self, start: int, end: int) -> Iterator[tuple[int, int, int]]:
        """(start, end, said) of all of that range."""
        at = start
        number = bisect_right(self.places, start) - 1
        while at < end:
            following = min(end, self.places[number + 1]) if number + 1 < len(self.places) else end
            yield at, following, self.said[number] if number >= 0 else NOTHING
            at = following
            number += 1

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """(start, end, said), without ranges that nothing is said of."""
        for start, end, said in zip(self.places, self.places[1:], self.said, strict=False):
            if said != NOTHING:
                yield start, end, said


class SectionRule(NamedTuple):
    """A section's rule for some code, and the marks of its function."""

    rule: Rule
    signal: bool
    key_b: bool


class SectionSpans:
    """`given`: the rules that `spans` numbers; repeated blocks have a number below UNJUDGED - their function."""

    def __init__(self, spans: RowSpans, given: list[SectionRule], table: FunctionTable) -> None:
        self.spans = spans
        self.given = given
        self.table = table
        self._period: tuple[int, list[SectionRule]] = (-1, [])  # of the latest function

    def at(self, said: int, address: int) -> SectionRule | None:
        """Return the rule at an address with `said`; None if it is repeated with a period that no PLT has."""
        if said >= 0:
            return self.given[said]
        function = UNJUDGED - 1 - said
        kind = self.table.kinds[self.table.kind[function]]
        if LONGEST % kind.rep_size:
            return None
        if self._period[0] != function:
            rows = self.table.rows(function)
            given = [SectionRule(rows[0][1], kind.signal, kind.key_b)] * kind.rep_size
            for offset, rule in rows:
                given[offset:] = [SectionRule(rule, kind.signal, kind.key_b)] * len(given[offset:])
            self._period = function, given
        return self._period[1][(address - self.table.start[function]) % kind.rep_size]


def section_spans(table: FunctionTable) -> SectionSpans:
    """Find the functions as a search does: at each address, the one with the greatest start."""
    order: Sequence[int] = range(len(table))
    if any(table.start[number] > table.start[number + 1] for number in range(len(table) - 1)):
        order = sorted(order, key=table.start.__getitem__)
    spans = RowSpans()
    known: dict[SectionRule, int] = {}
    numbers: dict[tuple[int, int], int] = {}
    for place, function in enumerate(order):
        start, kind = table.start[function], table.kinds[table.kind[function]]
        limit = table.start[order[place + 1]] if place + 1 < len(order) else MASK
        end = min(start + table.size[function], limit)
        first, last = table.first_row[function], table.first_row[function + 1]
        if first == last:
            if kind.fde_type is FdeType.DEFAULT:
                spans.add(start, end, known.setdefault(SectionRule(OUTERMOST, kind.signal, kind.key_b), len(known)))
        elif kind.mask and kind.rep_size:
            spans.add(start, end, UNJUDGED - 1 - function)
        else:
            for row in range(first, last):
                key = table.row_rule[row], table.kind[function]
                if key not in numbers:
                    numbers[key] = known.setdefault(SectionRule(table.rules[key[0]], kind.signal, kind.key_b), len(known))
                following = start + table.row_start[row + 1] if row + 1 < last else end
                spans.add(min(start + table.row_start[row], end), min(following, end), numbers[key])
    return SectionSpans(spans, list(known), table)


def function_spans(functions: FdeColumns, executable: Sequence[tuple[int, int]]) -> RowSpans:
    """Spans of the functions in executable code. Code that several describe is judged only if all agree."""
    spans = RowSpans()
    starts = [low for low, _ in executable]
    order = sorted(range(len(functions.start)), key=functions.start.__getitem__)
    at = 0
    while at < len(order):
        start, end = functions.start[order[at]], functions.end[order[at]]
        following = at + 1
        while following < len(order) and functions.start[order[following]] < end:
            end = max(end, functions.end[order[following]])
            following += 1
        number = bisect_right(starts, start) - 1
        if number >= 0 and start < executable[number][1]:
            _add(spans, functions, order[at:following], min(end, executable[number][1]))
        at = following
    return spans


def _add(spans: RowSpans, functions: FdeColumns, group: list[int], end: int) -> None:
    """Functions that overlap. Earlier sections take precedence."""
    best = min(functions.section[one] for one in group)
    start = functions.start[group[0]]
    group = [one for one in group if functions.section[one] == best]
    first = group[0]
    if len(group) > 1 and len({_said(functions, one) for one in group}) > 1:
        spans.add(start, end, UNJUDGED)
        return
    rows = range(functions.first_row[first], functions.first_row[first + 1])
    end = min(end, functions.end[first])
    for row in rows:
        following = functions.row_start[row + 1] if row + 1 < rows.stop else end
        state = functions.row_state[row]
        spans.add(min(functions.row_start[row], end), min(following, end), UNJUDGED if state < 0 else state)


def _said(functions: FdeColumns, one: int) -> tuple[int, int, bytes, bytes]:
    rows = slice(functions.first_row[one], functions.first_row[one + 1])
    starts, states = functions.row_start[rows].tobytes(), functions.row_state[rows].tobytes()
    return functions.start[one], functions.end[one], starts, states
