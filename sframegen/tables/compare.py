"""Compares the rules that a search finds in two tables, whichever way they divide the code into functions and rows.

A table becomes spans: ascending ranges of code, each with one claim (its rule and the function's marks). Adjacent spans with equal
claims are merged, so that two tables with the same rules have the same spans.
"""

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


def have_same_rules(table: FunctionTable, other: FunctionTable, gap: int, padded: Mapping[int, int]) -> bool:
    """True if both tables have the same rules for all code but the padding after a range.

    Padding is up to `gap` bytes before the next range. `padded` maps the start of further padding to its end.
    """
    spans, other_spans = _merge(_bridge_gaps(table, gap, padded)), _merge(_bridge_gaps(other, gap, padded))
    return all(span == other_span for span, other_span in zip_longest(spans, other_spans))


def _bridge_gaps(table: FunctionTable, gap: int, padded: Mapping[int, int]) -> Iterator[Span]:
    """Yield the spans of a table, with the padding after each as part of it."""
    for (start, end, claim), (following, *_) in pairwise(chain(claim_spans(table), [END])):
        end_of_padding = min(padded.get(end, end), following)
        yield start, following if following - end_of_padding <= gap else end_of_padding, claim


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
    claims: dict[tuple[int, int], RuleClaim] = {}  # (kind, rule) -> claim
    for function, start, end in table.searchable_ranges():
        number = table.kind[function]
        kind = table.kinds[number]
        row_numbers = range(table.first_row[function], table.first_row[function + 1])
        if not row_numbers:
            if kind.fde_type is FdeType.DEFAULT:
                yield start, end, RuleClaim(OUTERMOST, kind.signal, kind.key_b)
        elif kind.mask:
            rows = [(offset, rule) for offset, rule in table.rows(function) if start + offset < end]
            changes = (row for index, row in enumerate(rows) if not index or rows[index - 1][1] != row[1])
            yield start, end, RuleClaim(RepeatedRules(kind.rep_size, tuple(changes)), kind.signal, kind.key_b)
        else:
            starts = [start + offset for offset in table.row_start[row_numbers.start : row_numbers.stop]]
            starts.append(end)
            for index, row in enumerate(row_numbers):
                rule = table.row_rule[row]
                claim = claims.get((number, rule))
                if claim is None:
                    claim = claims[number, rule] = RuleClaim(table.rules[rule], kind.signal, kind.key_b)
                row_end = min(starts[index + 1], end)
                if starts[index] < row_end:
                    yield starts[index], row_end, claim
