"""Code of no file: lists of tables come and go with the objects that have them; a section that was registered describes it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sframegen.base.errors import FormatError
from sframegen.format.abi import AMD64
from sframegen.registry import jit_tables
from sframegen.registry.jit_tables import TABLE_COST, Budget
from sframegen.registry.regions import BudgetError, Registry
from sframegen.registry.structures import JitEntry, JitList, JitNode, JitTable, encode
from sframegen.stack.mappings import Mapping, Mappings
from sframegen.stack.objects import runtime_code
from sframegen.stack.objects.runtime_code import RuntimeCode
from sframegen.stack.snapshot import MovedCode, Snapshot
from tests.support.processes.memories import Pieces

TEXT, LIST, NODE, TABLE, SECTION = 0x1000, 0x20_0000, 0x21_0000, 0x22_0000, 0x50_0000
LIBRARY = Mapping(0x10_0000, 0x11_0000, True, False, True, 0, "1:1", 7, "/lib/a.so")
MADE = Mapping(0x1000, 0x2000, True, True, True, 0, "0:0", 0, "")
ANOTHER = LIBRARY._replace(start=0x30_0000, end=0x31_0000, inode=8)


def snapshot(memory: Pieces, mappings: Mappings) -> Any:
    return SimpleNamespace(memory=memory, mappings=mappings, abi=AMD64)


def process() -> Pieces:
    return Pieces(
        {
            LIST: encode(JitList(1, 0, NODE)),
            NODE: encode(JitNode(0, 1, TEXT, TEXT + 64, TABLE)),
            TABLE: encode(JitTable(24, 24, 0, 24, 21)) + encode(JitEntry(16, 0, 8, -8, 0, 3)),
        }
    )


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[Mapping]:
    looked: list[Mapping] = []

    def list_address(_: Snapshot, row: Mapping, _moved: MovedCode) -> int | None:
        looked.append(row)
        return LIST if row == LIBRARY else None

    monkeypatch.setattr(runtime_code, "_find_list_address", list_address)
    return looked


def test_a_list_is_followed_while_its_object_is_there(looked_at: list[Mapping]) -> None:
    memory, registry = process(), Registry()
    code = RuntimeCode(registry, MovedCode())
    code.update(snapshot(memory, Mappings([LIBRARY, ANOTHER])))
    assert not len(registry)
    assert not looked_at, "all code is of files"
    both, alone = Mappings([MADE, LIBRARY, ANOTHER]), Mappings([MADE, ANOTHER])
    code.update(snapshot(memory, both))
    [region] = registry
    assert region.rule_source.look_up(TEXT) is not None
    code.update(snapshot(memory, both))
    assert list(registry) == [region]
    assert looked_at == [MADE, LIBRARY, ANOTHER], "each is looked at once"

    memory.pieces[NODE] = encode(JitNode(0, 2, TEXT, TEXT + 64, TABLE))
    code.update(snapshot(memory, both))
    assert not len(registry)
    memory.pieces[NODE] = encode(JitNode(0, 3, TEXT, TEXT + 32, TABLE))
    code.update(snapshot(memory, both))
    assert [found.end for found in registry] == [TEXT + 32]

    code.update(snapshot(memory, alone))
    assert not len(registry)
    assert looked_at == [MADE, LIBRARY, ANOTHER]
    code.update(snapshot(memory, both))
    assert len(registry) == 1
    assert looked_at == [MADE, LIBRARY, ANOTHER, LIBRARY]


def test_answers_are_those_of_the_moment_and_of_a_damaged_list_nothing_stays(looked_at: list[Mapping]) -> None:
    """The process may run again before its stacks are walked."""
    memory, registry, mappings = process(), Registry(), Mappings([MADE, LIBRARY])
    code = RuntimeCode(registry, MovedCode())
    code.update(snapshot(memory, mappings))
    tables = memory.pieces.pop(TABLE)
    [region] = registry
    found = region.rule_source.look_up(TEXT + 15)
    assert found is not None
    assert (found.start, found.size) == (TEXT, 16)
    code.update(snapshot(memory, mappings))
    with pytest.raises(FormatError, match="cannot be read"):
        region.rule_source.look_up(TEXT)
    memory.pieces[TABLE] = tables
    code.update(snapshot(memory, mappings))
    assert region.rule_source.look_up(TEXT) == found
    assert len(registry) == 1
    memory.pieces[NODE] = encode(JitNode(8, 1, TEXT, TEXT + 64, TABLE))
    code.update(snapshot(memory, mappings))
    assert not len(registry)
    memory.pieces[NODE] = encode(JitNode(0, 1, TEXT, TEXT + 64, TABLE))
    code.update(snapshot(memory, mappings))
    assert len(registry) == 1
    assert looked_at == [MADE, LIBRARY]


def test_all_chains_together_have_a_limit(looked_at: list[Mapping], monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranges of code; when one's table and entry are read, that was enough."""
    memory, registry, mappings = process(), Registry(), Mappings([MADE, LIBRARY])
    memory.pieces[NODE] = encode(JitNode(NODE + 0x100, 1, TEXT, TEXT + 64, TABLE))
    memory.pieces[NODE + 0x100] = encode(JitNode(0, 1, TEXT + 64, TEXT + 128, TABLE))
    code = RuntimeCode(registry, MovedCode())
    for tables, readable in ((5, True), (4, False)):  # of these, three are for the list
        room = Budget(entries=tables * TABLE_COST + 2, clock=lambda: 0.0)
        monkeypatch.setattr(jit_tables, "Budget", lambda *_, room=room: room)
        code.update(snapshot(memory, mappings))
        first, second = registry
        assert first.rule_source.look_up(TEXT) is not None
        if readable:
            assert second.rule_source.look_up(TEXT + 64) is not None
        else:
            with pytest.raises(BudgetError, match="the process has more than"):
                second.rule_source.look_up(TEXT + 64)
    assert looked_at == [MADE, LIBRARY]
