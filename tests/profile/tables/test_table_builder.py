"""Tables are made by other processes; what goes wrong there costs one file, and nothing of them is left."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sframegen.elf.file import ElfFile, open_elf
from sframegen.profile.tables import table_builder
from sframegen.profile.tables.make_table import Origin, TableResult, make_table
from sframegen.profile.tables.table_builder import NO_WAITING_STACKS, BuiltTable, TableBuilder
from sframegen.profile.tables.table_cache import TableCache
from sframegen.program import time_limits
from sframegen.program.time_limits import TimeLimits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from sframegen.detached.stores import Stores

PYTHON = open_elf(os.path.realpath(sys.executable))
WAIT = 60_000  # milliseconds, against an endless test


def children() -> set[str]:
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


@pytest.fixture(autouse=True)
def _no_process_is_left() -> Iterator[None]:
    before = children()
    yield
    assert children() <= before


def results(builder: TableBuilder, waiting_stacks: Mapping[int, int] = NO_WAITING_STACKS) -> dict[int, BuiltTable]:
    found: list[BuiltTable] = []
    end = select.poll()
    end.register(builder.fileno(), select.POLLIN)
    while builder.pending:
        assert end.poll(WAIT), "nothing came"
        found += builder.take_ready(waiting_stacks)
    assert len({one.number for one in found}) == len(found)
    return {one.number: one for one in found}


def fail() -> None:
    raise MemoryError


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("how", "why"),
    [
        (fail, "MemoryError"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "the worker process was killed by signal 9 (Killed)"),
        (lambda: os.kill(os.getpid(), signal.SIGBUS), "it was truncated while being read"),
        (lambda: os._exit(3), "the worker process ended with status 3"),
        (signal.pause, "it took longer than 2 seconds"),
    ],
    ids=["error", "killed", "shorter", "ended", "endless"],
)
@pytest.mark.parametrize("workers", [1, 3])
def test_a_process_that_fails_or_dies_costs_its_file(
    monkeypatch: pytest.MonkeyPatch, how: Callable[[], object], why: str, workers: int
) -> None:
    def make(elf: ElfFile, cache: TableCache | None, stores: Stores) -> TableResult:
        if elf.name == "1":
            how()
        return make_table(elf, cache, stores)

    monkeypatch.setattr(table_builder, "make_table", make)
    files = [ElfFile(PYTHON.data, str(number)) for number in range(4)]
    if how is signal.pause:
        monkeypatch.setattr(time_limits, "current", TimeLimits(table=2))
    with closing(TableBuilder(workers, None)) as builder:
        for number, file in enumerate(files):
            builder.request(number, file)
        made = results(builder)
    assert made[1] == BuiltTable(1, None, why, Origin.NOTHING)
    assert [made[number].origin for number in (0, 2, 3)] == [Origin.CONVERTED] * 3


def test_closing_ends_what_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_builder, "make_table", lambda _elf, _cache, _stores: signal.pause())
    before = time.monotonic()
    with closing(TableBuilder(2, None)) as builder:
        for number in range(4):
            builder.request(number, PYTHON)
        assert (builder.take_ready(), builder.pending) == ([], 4)
    assert time.monotonic() - before < time_limits.current.table


@pytest.mark.sampled
def test_what_most_want_for_its_size_is_next(monkeypatch: pytest.MonkeyPatch) -> None:
    large = ElfFile(memoryview(bytes(PYTHON.data) + bytes(9 * len(PYTHON.data))), "large")
    monkeypatch.setattr(table_builder, "make_table", lambda elf, _cache, _stores: TableResult(None, Origin.NOTHING, elf.name))
    with closing(TableBuilder(1, None)) as builder:
        for number, elf in enumerate((PYTHON, PYTHON, large, PYTHON, PYTHON)):
            builder.request(number, elf)
        order = [*results(builder, {2: 4, 3: 3, 4: 1})]
    assert order == [0, 3, 4, 2, 1]  # the first one was begun at once


@pytest.mark.sampled
def test_the_cache_is_filled_there_and_used(tmp_path: Path) -> None:
    """What is in it needs no process, and is there at once."""
    cache = TableCache(tmp_path / "tables")
    with closing(TableBuilder(1, cache)) as builder:
        builder.request(1, PYTHON)
        [first] = results(builder).values()
    [kept] = (tmp_path / "tables").iterdir()
    with closing(TableBuilder(1, TableCache(tmp_path / "tables"))) as builder:  # its end closed the other
        builder.request(1, PYTHON)
        [second] = builder.take_ready()
    assert (second.number, second.why, second.origin) == (1, "", Origin.CACHED)
    assert second.table is not None
    assert first.table is not None
    assert bytes(second.table.data) == bytes(first.table.data)
    assert [*(tmp_path / "tables").iterdir()] == [kept]
    TableBuilder(1, TableCache(tmp_path / "tables", 0)).close()
    assert not list((tmp_path / "tables").iterdir())


def test_it_imports_no_library_that_rewrites_files() -> None:
    code = "import sys, sframegen.profile.tables.table_builder; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert set(loaded) & {"lief", "capstone", "click", "elftools"} == set()
