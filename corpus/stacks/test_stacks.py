"""A small run of what corpus/stacks shows."""

from __future__ import annotations

import platform
import shutil
from typing import TYPE_CHECKING

import pytest

from corpus.stacks.copies import Copies, can_mount
from corpus.stacks.debugger import Gdb
from corpus.stacks.report import results
from corpus.stacks.stops import Mode, Stopper
from corpus.stacks.workloads import WORKLOADS

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.full

STOPS = 3
BY_NAME = {workload.name: workload for workload in WORKLOADS}


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
    found = results(rows, [])
    assert (found["stops"], found["stacks"], found["differences"]) == (2 * STOPS, 2 * STOPS, [])
