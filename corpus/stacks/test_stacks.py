"""A small run of what corpus/stacks shows; and that its comparison sees differences."""

from __future__ import annotations

import platform
import shutil
from typing import TYPE_CHECKING

import pytest

from corpus.stacks.code import Code
from corpus.stacks.compare import Stack, compare
from corpus.stacks.copies import Copies, can_mount
from corpus.stacks.debugger import Gdb
from corpus.stacks.report import markdown
from corpus.stacks.stops import Mode, Stopper
from corpus.stacks.workloads import WORKLOADS

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.once, pytest.mark.full]

STOPS = 3
BY_NAME = {workload.name: workload for workload in WORKLOADS}
NO_CODE = Code("")  # where nothing has CFI


class Described(Code):
    """Where all code has CFI, and SFrame can say it."""

    def __init__(self) -> None:
        super().__init__("")

    def without_cfi(self, _: int) -> str:
        return ""


def stack(*frames: tuple[int, int | None], end: str = "outermost", guessed: tuple[int, ...] = ()) -> Stack:
    return Stack(list(frames), end, end == "outermost", frozenset(guessed))


WHOLE = stack((0x10, 0x1000), (0x20, 0x1010), (0x30, 0x1020), (0x40, None))


def test_equal_stacks() -> None:
    assert compare(WHOLE, WHOLE, Described()) == (4, "", False)
    known_base = stack(*WHOLE.frames[:3], (0x40, 0x1030))
    assert compare(WHOLE, known_base, Described()) == (4, "", False)


@pytest.mark.parametrize("at", range(3))
@pytest.mark.parametrize("field", [0, 1])
def test_another_pc_or_cfa_is_a_difference(at: int, field: int) -> None:
    frames = list(WHOLE.frames)
    frames[at] = tuple(value + (place == field) for place, value in enumerate(frames[at]))  # type: ignore[assignment, operator]
    found = compare(stack(*frames), WHOLE, Described())
    assert found.differs
    assert found.equal == at
    assert f"frame {at} of 4 and 4" in found.reason


def test_what_excuses_a_difference() -> None:
    other = stack((0x10, 0x1000), (0x20, 0x1018), (0x38, 0x1020))
    assert compare(other, WHOLE, NO_CODE) == (1, "gdb guesses: no CFI for no mapping", False)
    guessed = other._replace(guessed=frozenset({1}))
    assert compare(guessed, WHOLE, Described()) == (1, "we guess by the frame pointer: nothing describes no mapping", False)
    elsewhere = other._replace(guessed=frozenset({0, 2}))
    assert compare(elsewhere, WHOLE, Described()).differs


def test_who_ends_first() -> None:
    shorter = WHOLE.frames[:2]
    corrupt = "previous frame inner to this frame (corrupt stack?)"
    assert compare(WHOLE, stack(*shorter, end=corrupt), Described()) == (2, f"gdb ends: {corrupt}", False)
    assert compare(WHOLE, stack(*shorter), Described()).differs
    assert compare(stack(*shorter, end="not covered"), WHOLE, Described()).differs
    assert compare(stack(*shorter), WHOLE, Described()).differs
    assert compare(stack(*shorter, end="not covered"), WHOLE, NO_CODE).reason == "we end: not covered; no CFI for no mapping"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for program in ("gdb", "gcc"):
        if shutil.which(program) is None:
            pytest.skip(f"no {program} on this machine")
    if platform.machine() != "x86_64":
        pytest.skip("the programs, and what they are to show, are for x86-64")
    folder = tmp_path_factory.mktemp("stops")
    for name in ("signal handlers", "each instruction"):
        BY_NAME[name].prepare(folder)
    return folder


def mode_of(name: str, folder: Path) -> Mode:
    if name == "--convert":
        return Mode(name, convert=True, copies=None)
    return Mode(name, convert=False, copies=Copies(folder / "copies", without_cfi=True))


@pytest.mark.parametrize("mode", ["--convert", "no .eh_frame"] if can_mount() else ["--convert"])
def test_stops(mode: str, folder: Path) -> None:
    rows = []
    with Gdb() as gdb:
        for name in ("signal handlers", "each instruction"):
            row = Stopper(BY_NAME[name], mode_of(mode, folder / name.replace(" ", "-")), folder, seed=1).run(gdb, STOPS)
            assert row.differences == []
            assert row.stops == row.threads == STOPS
            assert row.equal + row.reasons.total() == STOPS
            assert row.frames > 2 * STOPS
            assert row.reasons or "frame pointer" not in row.how  # SFrame cannot say libc's longjmp, where it may be stopped
            rows.append(row)
    assert f"{2 * STOPS} stops, {2 * STOPS} stacks, " in markdown(rows, "made up", [])
