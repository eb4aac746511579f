"""Who may import whom: tools/rooms.py prints it."""

from __future__ import annotations

import pytest

from tools import rooms

pytestmark = pytest.mark.once

MOST = {"rooms": 22, "arrows": 132, "at the top of sframegen/": 17}


@pytest.fixture(scope="module")
def graph() -> rooms.Graph:
    return rooms.modules()


def test_no_import_runs_up(graph: rooms.Graph) -> None:
    assert rooms.upward(graph) == []


def test_no_modules_import_one_another_in_a_circle(graph: rooms.Graph) -> None:
    assert rooms.circle(graph) == []


def test_a_newcomer_can_hold_the_house_in_mind(graph: rooms.Graph) -> None:
    arrows = rooms.rooms(graph)
    top = [place for place in (rooms.ROOT / "sframegen").iterdir() if not place.name.startswith("_") and place.name != "py.typed"]
    counts = {"rooms": len(arrows), "arrows": sum(map(len, arrows.values())), "at the top of sframegen/": len(top)}
    assert {what: count for what, count in counts.items() if count > MOST[what]} == {}


def test_the_search_sees_what_it_is_for(graph: rooms.Graph) -> None:
    """The circle and the import that runs up are there if one import is added."""
    wrong = graph | {"cfi.errors": {"sframegen.cli.commands"}}
    assert rooms.upward(wrong) == ["cfi.errors imports sframegen.cli.commands"]
    assert {"cfi.errors", "sframegen.cli.commands"} <= set(rooms.circle(wrong))
