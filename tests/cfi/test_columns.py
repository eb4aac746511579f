"""Columns that cannot grow, side by side in memory."""

from __future__ import annotations

import os
import signal
import threading
from array import array
from mmap import PAGESIZE
from pathlib import Path

import pytest

from sframegen.base.columns import LARGE_PAGE, make_columns
from tests.support.loops import for_each


@for_each("count", [0, 1, 3, LARGE_PAGE // 8 + 1])
def test_columns_are_zeros_of_their_own_that_do_not_overlap(count: int) -> None:
    columns = make_columns("BQHI", count)
    assert [column.format for column in columns] == ["B", "Q", "H", "I"]
    assert [len(column) for column in columns] == [count] * 4
    for number, column in enumerate(columns):
        assert set(bytes(column[:100]) + bytes(column[-100:])) <= {0}
        column[:] = memoryview(bytes([number + 1]) * column.nbytes).cast(column.format)  # type: ignore[call-overload]
    assert [set(bytes(column[:100]) + bytes(column[-100:])) for column in columns] == [
        {n} if count else set() for n in (1, 2, 3, 4)
    ]


def test_columns_of_several_rooms_do_not_overlap() -> None:
    columns = [make_columns("H", count)[0] for count in (LARGE_PAGE // 3, 20_000, LARGE_PAGE // 4, 20_001, 3, LARGE_PAGE, 50_000)]
    for number, column in enumerate(columns):
        assert not any(column)
        column[:] = memoryview(array("H", [number + 1]) * len(column))
    assert [set(column) for column in columns] == [{number + 1} for number in range(len(columns))]


@pytest.mark.sampled
def test_a_process_that_is_forked_while_other_threads_ask_for_columns_gets_some() -> None:
    enough = threading.Event()

    def ask() -> None:
        while not enough.is_set():
            make_columns("Q", 20_000)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(10):
            child = os.fork()
            if child == 0:
                signal.alarm(20)  # ends one that waits
                os._exit(any(make_columns("Q", 20_000)[0]))
            assert os.waitpid(child, 0)[1] == 0
    finally:
        enough.set()
        for thread in threads:
            thread.join()


def test_large_columns_that_nobody_has_any_more_take_no_memory() -> None:
    [column] = make_columns("B", 16 * LARGE_PAGE + 100_000)
    column[:] = bytes([1]) * len(column)
    used = memory_used()
    del column
    kept = make_columns("B", 50_000)
    assert memory_used() < used - 12 * LARGE_PAGE
    assert len(kept) == 1


def memory_used() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGESIZE
