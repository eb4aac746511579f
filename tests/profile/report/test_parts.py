"""Profiles of many stacks are named, counted and written in parts of their columns: what is written does not depend on these."""

from __future__ import annotations

from array import array
from functools import partialmethod
from typing import TYPE_CHECKING

from sframegen.profile.collected import Collected
from sframegen.profile.packed_frames import FileFrame
from sframegen.profile.report import label_trees
from sframegen.profile.report.formats.file_formats import FORMATS, format_of
from sframegen.profile.report.label_trees import group_stacks
from sframegen.profile.report.named import NamedProfile
from sframegen.profile.report.naming import name_stacks
from sframegen.profile.report.table import format_table
from sframegen.profile.stacks import growing, numbered
from sframegen.profile.stacks.growing import Room
from sframegen.stack.walking.frames import End
from tests.support.named_stacks import frame, stack_of
from tests.support.named_stacks import named as named_stacks

if TYPE_CHECKING:
    import pytest

NONE = -1 << 40  # less than any memory
ENDS = (End.OUTERMOST, End.NO_RULE, End.KERNEL_THREAD)


def outputs() -> list[bytes]:
    profile = Collected("cpu-clock", "bpf", 99, seconds=1.0)
    stacks = profile.stacks
    for number in range(100):
        frames = [FileFrame(0, number % (5 + depth), guessed=number % 11 == depth).pack() for depth in range(number % 6)]
        task = stacks.tasks.find_number(1 + number % 4, 0)
        stacks.add_samples(stacks.find_or_add(task, array("Q", frames), ENDS[number % 3]), number % 5)
    named = group_stacks(name_stacks(profile), "pid")
    written = [b"".join(format_of(ending).encode(named)) for ending in FORMATS]
    return [*written, "\n".join(format_table(named)).encode()]


def test_what_is_written_does_not_depend_on_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = outputs()
    for size in (1, 7):
        monkeypatch.setattr(growing, "PART_SIZE", size)
        assert outputs() == whole
    monkeypatch.setattr(label_trees, "MERGED_ROWS", 2)
    for held in (1, 4):  # nodes, each in the place of others
        monkeypatch.setattr(label_trees, "CACHED_NODES", held)
        assert outputs() == whole


def test_columns_in_files_say_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where memory goes after each part, and an index is filled in parts."""
    whole = outputs()
    monkeypatch.setattr(growing, "SMALL_COLUMN", 0)
    for module, name, value in (
        (growing, "PART_SIZE", 7),
        (growing, "MAX_FILE_MEMORY", NONE),
        (numbered, "PAIRS_AT_ONCE", 8),
        (label_trees, "MERGED_ROWS", 2),
    ):
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(Room, "__init__", partialmethod(Room.__init__, -1))
    assert outputs() == whole


def test_parts_are_all_numbers_in_their_order_and_memory_goes_between_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growing, "PART_SIZE", 4)
    monkeypatch.setattr(growing, "MAX_FILE_MEMORY", NONE)
    done: list[str] = []
    monkeypatch.setattr(Room, "release_pages", lambda _room: done.append("rest"))
    room = Room()
    room.in_file = True
    done += (str(part) for part in room.parts(11, 1))
    assert done == ["range(1, 5)", "rest", "range(5, 9)", "rest", "range(9, 11)", "rest"]
    monkeypatch.setattr(growing, "MAX_FILE_MEMORY", 1 << 40)
    done.clear()
    assert [*room.parts(11, 1)]
    assert not done
    assert [*Room().parts(6, last_first=True)] == [range(4, 6), range(4)]


def test_what_stays_in_memory_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries, and files that others have mapped: they would have memory go after each part."""
    monkeypatch.setattr(growing, "MAX_FILE_MEMORY", 50)
    rested: list[str] = []
    monkeypatch.setattr(Room, "release_pages", lambda _room: rested.append("rest"))
    room = Room()
    room.in_file = True
    done = []
    for size, staying in ((100, 90), (130, 0), (150, 95), (60, 0), (120, 60)):  # after the fourth, 60 of the 95 are left
        monkeypatch.setattr(growing, "resident_file_bytes", iter([size, staying]).__next__)
        room.limit_file_memory()
        done.append(len(rested))
    assert done == [1, 1, 2, 2, 3]


def test_a_profile_in_which_nothing_is_counted() -> None:
    """All that was sampled is in other threads, or in the interval before: frames have places, and no stack has samples."""
    named = group_stacks(named_stacks(stack_of([frame("outer"), frame("inlined")._replace(inlined=True)], 0)), "pid")
    empty = NamedProfile("cpu-clock", "bpf", 99, 0.0, 1.0)
    empty.locations.number_locations([frame("outer"), frame("inlined")._replace(inlined=True)])
    for one in (named, group_stacks(empty, "pid")):
        assert all(b"".join(format_of(ending).encode(one)) or ending in (".folded", ".txt") for ending in FORMATS)
        assert [*format_table(one)]
