from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sframegen.format.model import FunctionTable, Kind, Rule, Where
from tests.support.tables import content

RULES = [Rule(Where(7, 8 * number)) for number in range(3)]
FUNCTIONS = st.lists(st.lists(st.integers(0, 2), max_size=3), max_size=6)  # the rules of each function's rows


def table_of(functions: list[list[int]], start: int = 0x1000) -> FunctionTable:
    table = FunctionTable(kinds=[Kind(), Kind(signal=True)], rules=RULES)
    for number, rules in enumerate(functions):
        table.append(start + 16 * number, 16, len(rules) % 2, list(enumerate(rules)))
    return table


@given(FUNCTIONS, FUNCTIONS, st.data())
def test_functions_of_another_table_follow(one: list[list[int]], other: list[list[int]], data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(other)))
    end = data.draw(st.integers(first, len(other)))
    table, more = table_of(one), table_of(other, 0x2000)
    before = content(table)
    table.extend(more, first, end)
    assert content(table) == before + content(more)[first:end]
    table.extend(more)
    assert content(table) == before + content(more)[first:end] + content(more)


@given(FUNCTIONS, st.data())
def test_selected_functions_stand_in_the_order_asked_for(functions: list[list[int]], data: st.DataObject) -> None:
    table = table_of(functions)
    wanted = data.draw(st.lists(st.sampled_from(range(len(table))))) if functions else []
    assert content(table.select(wanted)) == [content(table)[one] for one in wanted]


def test_a_table_with_room_keeps_what_was_filled() -> None:
    table = FunctionTable.with_room(3, 5, [Kind()], RULES)
    columns = table.columns()
    columns.start[1], columns.first_row[1], columns.first_row[2], columns.row_rule[2] = 0x1000, 1, 3, 2
    del columns
    table.shrink(2, 3)
    assert content(table) == [(0, 0, Kind(), [(0, RULES[0])]), (0x1000, 0, Kind(), [(0, RULES[0]), (0, RULES[2])])]
