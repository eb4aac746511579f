"""Compares two tables as an unwinder that searches them sees them."""

from __future__ import annotations

from itertools import chain, pairwise, zip_longest
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from sframegen.format.model import OUTERMOST, FdeType, Rule

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sframegen.format.model import FunctionTable


class RepeatedRules(NamedTuple):
    """PC type MASK: rows (offset, rule) that hold in each period of `size` bytes."""

    size: int
    rows: tuple[tuple[int, Rule], ...]


class RuleClaim(NamedTuple):
    rule: Rule | RepeatedRules
    signal: bool
    key_b: bool


Span: TypeAlias = tuple[int, int, RuleClaim]  # start and end of the code of which it is said
END: Span = (1 << 64, 1 << 64, RuleClaim(OUTERMOST, signal=False, key_b=False))  # after all others


def difference(before: FunctionTable, after: FunctionTable) -> tuple[int | None, int]:
    """(None, bytes of code for which only `before` says something), or (where a range begins of which `after` says more, 0)."""
    earlier = spans(before)
    said_before = said_after = 0
    here, limit, expected = next(earlier, END)
    for start, end, said in spans(after):
        while limit <= start:
            said_before += limit - here
            here, limit, expected = next(earlier, END)
        if start < here or limit < end or said != expected:
            return start, 0
        said_after += end - start
    while here < limit:
        said_before += limit - here
        here, limit, expected = next(earlier, END)
    return None, said_before - said_after


def agree(one: FunctionTable, other: FunctionTable, gap: int, padded: Mapping[int, int]) -> bool:
    """True if both say the same of all code, whatever either says of padding after a range.

    Padding: up to `gap` bytes before the next range, and from a key of `padded` up to its value.
    """
    return all(a == b for a, b in zip_longest(_merged(_bridged(one, gap, padded)), _merged(_bridged(other, gap, padded))))


def _bridged(table: FunctionTable, gap: int, padded: Mapping[int, int]) -> Iterator[Span]:
    for (start, end, said), (following, *_) in pairwise(chain(spans(table), [END])):
        limit = min(padded.get(end, end), following)
        yield start, following if following - limit <= gap else limit, said


def spans(table: FunctionTable) -> Iterator[Span]:
    """Ascending; as long as they can be, however functions and rows divide the code."""
    return _merged(_pieces(table))


def _merged(pieces: Iterator[Span]) -> Iterator[Span]:
    first = next(pieces, None)
    if first is None:
        return
    start, end, said = first
    for next_start, next_end, next_said in pieces:
        if next_start == end and next_said == said and isinstance(said.rule, Rule):
            end = next_end
        else:
            yield start, end, said
            start, end, said = next_start, next_end, next_said
    yield start, end, said


def _pieces(table: FunctionTable) -> Iterator[Span]:
    known: dict[tuple[int, int], RuleClaim] = {}  # by kind and rule
    for function, start, end in table.found_ranges():
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
                said = known.get((number, rule))
                if said is None:
                    said = known[number, rule] = RuleClaim(table.rules[rule], kind.signal, kind.key_b)
                limit = min(limits[at + 1], end)
                if limits[at] < limit:
                    yield limits[at], limit, said
