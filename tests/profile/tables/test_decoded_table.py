"""A decoded table says at each address what a search in the functions says, and no hostile function makes it large or wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sframegen.format.model import OUTERMOST, FdeType, FunctionTable, Kind, Rule, Where, look_up_in
from sframegen.profile.tables.decoded_table import (
    ELEMENT_SIZE,
    MAX_REPEATED,
    MAX_RULES,
    MAX_TEXT_BYTES,
    NO_RULE,
    RULE_BYTES,
    make_decoded_table,
    pack_rule,
)
from sframegen.stack.walking.step import RuleFlag
from tests.support.decoded_tables import DecodedRule, find_rule

if TYPE_CHECKING:
    from collections.abc import Iterable

RA = Where(None, -8, deref=True)
PLAIN = [Rule(Where(7, 8 * n), RA) for n in range(1, 9)]
KINDS = [
    *(Kind(), Kind(mask=True, rep_size=16), Kind(mask=True, rep_size=1), Kind(signal=True), Kind(mask=True)),
    *(Kind(rep_size=16), Kind(FdeType.FLEX), Kind(mask=True, rep_size=255, signal=True)),
]


@st.composite
def any_tables(draw: st.DrawFn) -> FunctionTable:
    """Functions in any order, with overlaps, without bytes, without rows, with rows past their ends."""
    table = FunctionTable(kinds=KINDS, rules=PLAIN)
    for _ in range(draw(st.integers(0, 8))):
        starts = st.sampled_from([0x1000, 0x10FF, 0x1100, 0x1101, 0x1200, 0x1FF]) | st.integers(0x1000, 0x1400)
        offsets = draw(st.sets(st.integers(1, 40), max_size=4))
        rows = [(offset, draw(st.integers(0, 7))) for offset in sorted({0} | offsets)] if draw(st.booleans()) else []
        table.append(draw(starts), draw(st.integers(0, 0x300)), draw(st.integers(0, len(KINDS) - 1)), rows)
    return table


def expected(table: FunctionTable, pc: int) -> DecodedRule | None:
    found = look_up_in(table, pc)
    packed = found and pack_rule(found.rule, signal=found.kind.signal)
    if not packed or packed == NO_RULE:
        return None
    return DecodedRule(*RULE_BYTES.unpack(packed))


def agrees(table: FunctionTable, pcs: Iterable[int]) -> None:
    ordered = table.select(sorted(range(len(table)), key=table.start.__getitem__))
    made = make_decoded_table(table)
    assert {pc: find_rule(made, pc) for pc in pcs} == {pc: expected(ordered, pc) for pc in pcs}


@given(any_tables())
def test_functions_in_any_order_and_one_upon_another(table: FunctionTable) -> None:
    agrees(table, range(0xFF0, 0x1800))


def test_neighbours_with_equal_rules_are_one_row() -> None:
    table = FunctionTable(kinds=KINDS, rules=[*PLAIN, PLAIN[0]._replace(ra_signed=True)])
    table.append(0x1000, 16, 0, [(0, 0), (4, 8)])
    table.append(0x1010, 16, 1, [(0, 0)])
    table.append(0x1030, 16, 0, [(0, 0)])
    assert make_decoded_table(table).rows == 4  # a rule, a gap, the rule, the end


def test_what_a_rule_is_in_the_table() -> None:
    cases: list[tuple[Rule, tuple[int, ...]]] = [
        (OUTERMOST, (0, 0, 0, 0, 0, 0, RuleFlag.OUTERMOST)),
        (Rule(Where(7, 16), RA), (16, -8, 0, 7, 0, 0, RuleFlag.RA_DEREF)),
        (Rule(Where(31, 0)), (0, 0, 0, 31, 30, 0, RuleFlag.RA_REGISTER)),
        (
            Rule(Where(10, -8, deref=True), RA, Where(6, 0, deref=True)),
            (-8, -8, 0, 10, 0, 6, RuleFlag.CFA_DEREF | RuleFlag.RA_DEREF | RuleFlag.FP | RuleFlag.FP_REGISTER | RuleFlag.FP_DEREF),
        ),
        (
            Rule(Where(7, 8), Where(2, 5, deref=True), Where(None, -16, deref=True)),
            (8, 5, -16, 7, 2, 0, RuleFlag.RA_REGISTER | RuleFlag.RA_DEREF | RuleFlag.FP | RuleFlag.FP_DEREF),
        ),
    ]
    wrong = {}
    for rule, said in cases:
        table = FunctionTable(kinds=KINDS, rules=[rule])
        table.append(0x1000, 16, 0, [(0, 0)])
        plain = find_rule(make_decoded_table(table), 0x1005)
        table.kind[0] = 3
        of_signal = find_rule(make_decoded_table(table), 0x1005)
        if (plain, of_signal) != (said, (*said[:6], said[6] | RuleFlag.SIGNAL)):
            wrong[rule] = plain, of_signal
    assert wrong == {}


@pytest.mark.parametrize("where", [Where(7, 1 << 31), Where(7, -(1 << 31) - 1), Where(256, 0)])
def test_what_16_bytes_cannot_say_has_no_rule_and_is_counted(where: Where) -> None:
    table = FunctionTable(kinds=KINDS, rules=[PLAIN[0], Rule(where, RA)])
    table.append(0x1000, 16, 0, [(0, 0), (8, 1)])
    made = make_decoded_table(table)
    assert made.left_out == 1
    assert (find_rule(made, 0x1007) is None, find_rule(made, 0x1008)) == (False, None)


def test_more_rules_than_numbers() -> None:
    rules = [Rule(Where(7, 8 * n), RA) for n in range(MAX_RULES + 10)]
    table = FunctionTable(kinds=KINDS, rules=rules)
    table.append(0x1000, len(rules), 0, [(n, n) for n in range(len(rules))])
    made = make_decoded_table(table)
    assert made.rules == MAX_RULES
    assert made.left_out == len(rules) + 3 - MAX_RULES  # no rule, and the outermost frame with and without signal
    assert find_rule(made, 0x1000 + len(rules) - 1) is None
    assert find_rule(made, 0x1000 + MAX_RULES - 4) is not None  # the last that has a number


def test_a_row_that_repeats_4_billion_times() -> None:
    table = FunctionTable(kinds=KINDS, rules=PLAIN)
    table.append(0x1000, 16, 0, [(0, 0)])
    table.append(0x1010, 0xFFFFFFFF, 2, [(0, 1)])
    table.append(0x1010 + MAX_REPEATED, 16, 0, [(0, 2)])
    made = make_decoded_table(table)
    assert made.left_out == 1
    assert len(made.data) < 1 << 20
    agrees(table, [0x1000, 0x1010 + MAX_REPEATED])
    assert find_rule(made, 0x1010) is None


def test_functions_that_are_too_far_away() -> None:
    table = FunctionTable(kinds=KINDS, rules=PLAIN)
    for start in (0x1000, 0x1000 + MAX_TEXT_BYTES, 1 << 63, (1 << 64) - 8):
        table.append(start, 16, 0, [(0, 0)])
    made = make_decoded_table(table)
    assert made.left_out == 3
    assert len(made.data) < ELEMENT_SIZE * 100
    assert find_rule(made, 0x1008) is not None
    assert find_rule(made, (1 << 64) - 8) is None
