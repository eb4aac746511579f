"""Comparison of tables, beside one of every byte."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from sframegen.format.abi import AMD64
from sframegen.format.model import OUTERMOST, FdeType, FunctionTable, Kind, Rule, Where
from sframegen.tables.compare import RepeatedRules, RuleClaim, claim_spans, find_difference, have_same_rules
from tests.support.loops import for_each

BASE = 0x1000
RULES = [*(Rule(Where(AMD64.sp, 8 * n), Where(None, -8, deref=True)) for n in (1, 2)), OUTERMOST]
KINDS = [Kind(), Kind(signal=True), Kind(key_b=True), Kind(FdeType.FLEX), Kind(mask=True, rep_size=16)]

Function = tuple[int, int, int, list[tuple[int, int]]]  # start, size, number of kind, rows of offset and number of rule


def table_of(functions: Iterable[Function]) -> FunctionTable:
    table = FunctionTable(kinds=KINDS, rules=RULES)
    for start, size, kind, rows in functions:
        table.append(BASE + start, size, kind, rows)
    return table


@st.composite
def functions(draw: st.DrawFn) -> list[Function]:
    found: list[Function] = []
    start = 0
    for _ in range(draw(st.integers(0, 4))):
        start += draw(st.integers(0, 3))
        offsets = sorted({0, *draw(st.lists(st.integers(1, 6), max_size=2))})
        rows = [(offset, draw(st.integers(0, 1))) for offset in offsets] if draw(st.integers(0, 5)) else []
        size = draw(st.integers(1, 7))
        found.append((start, size, draw(st.sampled_from([0, 0, 0, 1, 2, 3])), rows))
        start += size
    return found


def by_byte(functions: list[Function]) -> dict[int, RuleClaim]:
    """What is said of each byte."""
    found = {}
    for start, size, number, rows in functions:
        kind = KINDS[number]
        for offset in range(size):
            rule = next((rule for at, rule in reversed(rows) if at <= offset), None if kind.fde_type else 2)
            if rule is not None:
                found[BASE + start + offset] = RuleClaim(RULES[rule], kind.signal, kind.key_b)
    return found


@given(functions())
def test_spans_are_what_is_said_of_each_byte(given: list[Function]) -> None:
    found = list(claim_spans(table_of(given)))
    assert {pc: said for start, end, said in found for pc in range(start, end)} == by_byte(given)
    assert all(start < end for start, end, _ in found)
    assert all(one[1] < other[0] or one[2] != other[2] for one, other in pairwise(found))


@given(functions(), functions())
def test_a_difference_is_a_byte_of_which_the_second_says_something_else(before: list[Function], after: list[Function]) -> None:
    said, now = by_byte(before), by_byte(after)
    place, lost = find_difference(table_of(before), table_of(after))
    assert (place is None) == all(said.get(pc) == now[pc] for pc in now)
    assert lost == (len(said) - len(now) if place is None else 0)
    assert find_difference(table_of(before), table_of(before)) == (None, 0)
    assert have_same_rules(table_of(before), table_of(after), 0, {}) is (said == now)


def test_blocks_that_repeat_are_compared_as_such() -> None:
    repeated = (0, 64, 4, [(0, 0), (11, 1)])
    [(start, end, said)] = claim_spans(table_of([repeated]))
    assert (start, end, said.rule) == (BASE, BASE + 64, RepeatedRules(16, ((0, RULES[0]), (11, RULES[1]))))
    again = (0, 64, 4, [(0, 0), (5, 0), (11, 1), (12, 1)])  # rows that repeat the one before say nothing
    assert list(claim_spans(table_of([again]))) == [(start, end, said)]
    beyond = (0, 8, 4, [(0, 0), (8, 1)])  # a row after the end of the code
    assert list(claim_spans(table_of([beyond]))) == list(claim_spans(table_of([(0, 8, 4, [(0, 0)])])))
    two = [(0, 32, 4, [(0, 0), (11, 1)]), (32, 32, 4, [(0, 0), (11, 1)])]  # each counts from its own start
    assert len(list(claim_spans(table_of(two)))) == 2


@for_each(
    ("gap", "padded", "same"),
    [
        (4, {}, True),
        (3, {}, False),
        (0, {BASE + 8: BASE + 12}, True),
        (3, {BASE + 8: BASE + 9}, True),
        (2, {BASE + 8: BASE + 9}, False),
    ],
)
def test_what_is_said_of_padding_does_not_matter(gap: int, padded: dict[int, int], same: bool) -> None:
    apart = [(0, 8, 0, [(0, 0)]), (12, 8, 0, [(0, 0)])]
    joined = [(0, 20, 0, [(0, 0)])]
    assert have_same_rules(table_of(apart), table_of(joined), gap, padded) is same
    other = [(0, 12, 0, [(0, 0)]), (12, 8, 0, [(0, 1)])]
    assert not have_same_rules(table_of(apart), table_of(other), gap, padded)
