"""Trees of calls: numbers of pairs, rows and their counts, in memory and in files."""

from __future__ import annotations

import ctypes
import os
import re
from array import array
from collections import Counter, deque
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sframegen.profile.collected import Stacks
from sframegen.profile.packed_frames import FileFrame
from sframegen.profile.stacks.growing import Room
from sframegen.profile.stacks.numbered import Numbered
from sframegen.profile.stacks.tasks import SampledTasks
from sframegen.stack.walking.frames import End

STACKS = 5_000
LITTLE = 1 << 16  # bytes


def frames_of(number: int) -> array[int]:
    """A stack of its own, whose outermost frames are those of others, too."""
    callers = [FileFrame(3, depth * 16 + number % 2).pack() for depth in range(20)]
    return array("Q", [FileFrame(1 + number % 2, number).pack(), *reversed(callers)])


def filled(room: Room) -> Stacks:
    stacks = Stacks(room=room)
    for number in range(STACKS):
        task = stacks.tasks.find_number(number % 7, 0)
        stacks.add_samples(stacks.find_or_add(task, frames_of(number), End.OUTERMOST), 1 + number % 3)
    return stacks


@pytest.mark.parametrize("budget", [LITTLE, 1 << 30])
def test_stacks_come_back_as_they_were(budget: int, tmp_path: Path) -> None:
    room = Room(budget, str(tmp_path))
    stacks = filled(room)
    room.release_pages()
    expected = Counter({(number % 7, tuple(frames_of(number))): 1 + number % 3 for number in range(STACKS)})
    assert Counter({(stack.pid, stack.frames): stack.samples for stack in stacks}) == expected
    assert (stacks.samples, stacks.used_files()) == (expected.total(), {1, 2, 3})
    assert stacks.tree.nodes.count < 20 * STACKS / 4, "callers are shared"
    assert room.in_file == (budget == LITTLE)
    assert list(tmp_path.iterdir()) == [], "files have no names"


def test_beyond_the_budget_memory_is_given_back(tmp_path: Path) -> None:
    room = Room(LITTLE, str(tmp_path))
    column = room.new_column("Q")
    room.grow(column, 1 << 20)
    for number in range(0, len(column), 64):
        column.view[number] = number
    room.release_pages()
    areas = [area for area in Path("/proc/self/smaps").read_text().split("VmFlags") if str(tmp_path) in area]
    assert [re.findall(r"^Rss: +(\d+) kB", area, re.MULTILINE) for area in areas] == [["0"]]
    assert column.view[64] == 64


def test_a_full_disk_is_an_error_and_what_was_there_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    numbered = Numbered(Room(LITTLE, str(tmp_path)))
    known = [numbered.number_of(number, 1) for number in range(100)]
    monkeypatch.setattr(os, "posix_fallocate", Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space left"):
        deque((numbered.number_of(number, 2) for number in range(1 << 17)), 0)
    assert [numbered.find(number, 1) for number in range(100)] == known


PAIRS = st.lists(st.tuples(st.integers(0, 9) | st.integers(0, 2**64 - 1), st.integers(0, 99) | st.integers(0, 2**32 - 1)))


@given(PAIRS, PAIRS)
def test_numbers_are_those_of_the_first_use_also_after_clearing(
    before: list[tuple[int, int]], pairs: list[tuple[int, int]]
) -> None:
    numbered = Numbered(Room())
    for pair in before:
        numbered.number_of(*pair)
    numbered.clear()
    assert all(numbered.find(*pair) == -1 for pair in before)
    order = list(dict.fromkeys(pairs))
    assert [numbered.number_of(*pair) for pair in pairs] == [order.index(pair) for pair in pairs]
    assert list(zip(numbered.first[: numbered.count], numbered.second[: numbered.count], strict=True)) == order


def test_pairs_that_nobody_looks_for() -> None:
    """They have numbers of their own, and those that come later have theirs."""
    numbered = Numbered(Room())
    pairs = [(number // 2, number % 3) for number in range(3000)]
    assert [numbered.append(*pair) for pair in pairs] == [*range(3000)]
    assert [numbered.number_of(number, 7) for number in range(2000)] == [*range(3000, 5000)]
    assert [*zip(numbered.first[:3000], numbered.second[:3000], strict=True)] == pairs
    assert [numbered.find(number, 7) for number in range(2000)] == [*range(3000, 5000)]


@pytest.mark.parametrize("budget", [0, 1 << 20])
def test_a_forked_process_has_no_columns(budget: int, tmp_path: Path) -> None:
    """It would keep a copy of all that changes here afterwards."""
    room = Room(budget, str(tmp_path))
    column = room.new_column("Q")
    room.grow(column, 1 << 14)
    address = ctypes.addressof(ctypes.c_char.from_buffer(column.map))
    found = Path("/proc/self/smaps").read_text().partition(f"\n{address:x}-")[2]
    assert "dc" in found.partition("VmFlags:")[2].partition("\n")[0].split(), "do not copy on fork"


def test_frames_of_one_process_are_no_frames_of_another() -> None:
    stacks = Stacks()
    packed = array("Q", [FileFrame(0, 0x1000).pack(), FileFrame(1, 0x1000).pack()])
    for pid in (1, 2):
        stacks.add_samples(stacks.find_or_add(stacks.tasks.find_number(pid, 0), packed, End.OUTERMOST))
    numbers = stacks.frames.numbers
    assert sorted(numbers.second[: numbers.count]) == [0, 1, 2]


def test_threads_that_are_not_wanted_are_dropped() -> None:
    stacks = Stacks()
    for tid in (1, 2, 3):
        row = stacks.find_or_add(stacks.tasks.find_number(1, tid), array("Q", [tid]), End.OUTERMOST)
        stacks.add_samples(row, tid)
    stacks.keep_threads(frozenset({2}))
    assert [(stack.tid, stack.samples) for stack in stacks] == [(2, 2)]
    assert stacks.samples == 2


def test_a_process_number_that_is_used_again_is_another_task() -> None:
    tasks = SampledTasks()
    unknown = tasks.find_number(7, 0)
    tasks.set_names(unknown, "sh")
    assert tasks.find_number(7, 0, 1) == unknown, "its program is known now"
    after_exec = tasks.find_number(7, 0, 2)
    tasks.set_names(after_exec, "cc1")
    tasks.set_names(after_exec, "")
    tasks.forget(7)
    assert tasks.find_number(7, 0) not in (unknown, after_exec)
    assert [task.process for task in tasks] == ["sh", "cc1", ""]
