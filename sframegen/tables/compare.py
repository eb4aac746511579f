"""Compares the rules that a search finds in two tables, whichever way they divide the code into functions and rows."""

from __future__ import annotations

from itertools import chain, pairwise, zip_longest

from sframegen.base.quick_typing import TYPE_CHECKING, NamedTuple, TypeAlias
from sframegen.format.model import OUTERMOST, FdeType, FunctionTable, Rule

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class RepeatedRules(NamedTuple):
    """The rows (offset, rule) of a function of PC type MASK; they repeat every `size` bytes."""

    size: int
    rows: tuple[tuple[int, Rule], ...]


class RuleClaim(NamedTuple):
    """What a table says about a range of code."""

    rule: Rule | RepeatedRules
    signal: bool
    key_b: bool


Span: TypeAlias = tuple[int, int, RuleClaim]  # the start and end of a range of code, and the claim about it
END: Span = (1 << 64, 1 << 64, RuleClaim(OUTERMOST, signal=False, key_b=False))  # sorts after all other spans


def find_difference(before: FunctionTable, after: FunctionTable) -> tuple[int | None, int]:
    """Return (None, bytes of code that only `before` describes), or (start of a range where `after` has other or more rules, 0)."""
    spans_before = claim_spans(before)
    bytes_before = bytes_after = 0
    low, high, expected = next(spans_before, END)
    for start, end, claim in claim_spans(after):
        while high <= start:
            bytes_before += high - low
            low, high, expected = next(spans_before, END)
        if start < low or high < end or claim != expected:
            return start, 0
        bytes_after += end - start
    while low < high:
        bytes_before += high - low
        low, high, expected = next(spans_before, END)
    return None, bytes_before - bytes_after


def have_same_rules(one: FunctionTable, other: FunctionTable, gap: int, padded: Mapping[int, int]) -> bool:
    """True if both tables have the same rules for all code but the padding after a range.

    Padding is up to `gap` bytes before the next range. `padded`: further padding, by its start, its end.
    """
    bridged, other_bridged = (_merge(_bridge_gaps(table, gap, padded)) for table in (one, other))
    return all(a == b for a, b in zip_longest(bridged, other_bridged))


def _bridge_gaps(table: FunctionTable, gap: int, padded: Mapping[int, int]) -> Iterator[Span]:
    for (start, end, claim), (following, *_) in pairwise(chain(claim_spans(table), [END])):
        limit = min(padded.get(end, end), following)
        yield start, following if following - limit <= gap else limit, claim


def claim_spans(table: FunctionTable) -> Iterator[Span]:
    """Yield the ranges of code with one claim each, ascending. Adjacent ranges with equal claims are merged."""
    return _merge(_spans_of_rows(table))


def _merge(spans: Iterator[Span]) -> Iterator[Span]:
    first = next(spans, None)
    if first is None:
        return
    start, end, claim = first
    for next_start, next_end, next_claim in spans:
        if next_start == end and next_claim == claim and isinstance(claim.rule, Rule):
            end = next_end
        else:
            yield start, end, claim
            start, end, claim = next_start, next_end, next_claim
    yield start, end, claim


def _spans_of_rows(table: FunctionTable) -> Iterator[Span]:
    known: dict[tuple[int, int], RuleClaim] = {}  # (kind, rule) -> claim
    for function, start, end in table.searchable_ranges():
        number = table.kind[function]
        kind = table.kinds[number]
        span = range(table.first_row[function], table.first_row[function + 1])
        if not span:
            if kind.fde_type is FdeType.DEFAULT:
                yield start, end, RuleClaim(OUTERMOST, kind.signal, kind.key_b)
        elif kind.mask:
            rows = [(offset, rule) for offset, rule in table.rows(function) if start + offset < end]
            changes = (row for at, row in enumerate(rows) if not at or rows[at - 1][1] != row[1])
            yield start, end, RuleClaim(RepeatedRules(kind.rep_size, tuple(changes)), kind.signal, kind.key_b)
        else:
            limits = [start + offset for offset in table.row_start[span.start : span.stop]]
            limits.append(end)
            for at, row in enumerate(span):
                rule = table.row_rule[row]
                claim = known.get((number, rule))
                if claim is None:
                    claim = known[number, rule] = RuleClaim(table.rules[rule], kind.signal, kind.key_b)
                limit = min(limits[at + 1], end)
                if limits[at] < limit:
                    yield limits[at], limit, claim
