"""A small run of what corpus/symbols shows; and that its judge sees differences."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from corpus.symbols.__main__ import study
from corpus.symbols.judge import Judge, Level, Outcome
from corpus.symbols.report import markdown
from corpus.symbols.subjects import SUBJECTS
from sframegen.elf.file import open_elf

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.peers import Compiler, Peers

SOURCE = """
void real(void) {}
void alias(void) __attribute__((alias("real")));
int other(void) { return 1; }
int main(void) { return 0; }
"""
pytestmark = [pytest.mark.once, pytest.mark.full]


def test_a_program_in_small(tmp_path: Path, peers: Peers) -> None:
    pytest.importorskip("symbolic")
    peers.tool("llvm-symbolizer")
    if shutil.which("g++") is None:
        pytest.skip("no g++ on this machine")
    [subject] = [one for one in SUBJECTS if one.name == "containers"]
    row = study(subject, tmp_path, 300, 1)
    assert row.outcomes.total() == 300
    assert row.outcomes[Outcome.EQUAL] > 250
    assert row.outcomes[Outcome.DIFFERENT] == 0
    assert row.inlined > 300
    assert "**0 differences that no rule explains**" in markdown([row], [], "command")


@pytest.mark.parametrize(
    ("ours", "theirs", "outcome"),
    [
        ([("main", "a.c", 3)], [("main", "a.c", 3)], Outcome.EQUAL),
        ([("main", "./b/../a.c", 3)], [("main", "/src/a.c", 3)], Outcome.EQUAL),
        ([("main", "a.c", 3)], [("main", "a.c", 4)], Outcome.DIFFERENT),
        ([("main", "a.c", 3)], [("main", "b.c", 3)], Outcome.DIFFERENT),
        ([("main", "a.c", 3)], [("other", "a.c", 3)], Outcome.DIFFERENT),
        ([("alias", "a.c", 3)], [("real", "a.c", 3)], Outcome.ALIAS),
        ([("main", "a.c", 3)], [("main.cold", "a.c", 3)], Outcome.PART),
        ([("main", "a.c", 3), ("in", "a.c", 9)], [("main", "a.c", 3), ("ni", "a.c", 9)], Outcome.DIFFERENT),
        ([("main", "a.c", 3), ("in", "a.c", 9)], [("main", "a.c", 3)], Outcome.DIFFERENT),
        ([], [("_start", "", 0)], Outcome.NO_LINE),
    ],
)
def test_the_judge(
    ours: list[tuple[str, str, int]], theirs: list[tuple[str, str, int]], outcome: Outcome, compile_c: Compiler
) -> None:
    path = compile_c(SOURCE)
    judge = Judge(open_elf(path), path)
    assert judge.outcome(0x1000, tuple(Level(*one) for one in ours), tuple(Level(*one) for one in theirs)) is outcome
