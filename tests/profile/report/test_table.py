"""The table on the terminal; and what is written of profiles of many stacks, whose columns are taken in parts."""

from __future__ import annotations

from array import array
from functools import partialmethod
from typing import TYPE_CHECKING

from sframegen.profile.collected import Collected
from sframegen.profile.packed_frames import FileFrame
from sframegen.profile.report import label_trees
from sframegen.profile.report.formats.file_formats import FORMATS, format_of
from sframegen.profile.report.formats.texts import encode_folded
from sframegen.profile.report.label_trees import group_stacks
from sframegen.profile.report.named import FrameKind, NamedFrame, NamedProfile
from sframegen.profile.report.naming import name_stacks
from sframegen.profile.report.table import MAX_TIES, find_hottest_stacks, format_notes, format_table, format_totals, function_costs
from sframegen.profile.stacks import growing, numbered
from sframegen.profile.stacks.growing import Room
from sframegen.stack.walking.frames import End
from tests.support.named_stacks import EXAMPLE, frame, named, stack, stack_of

if TYPE_CHECKING:
    import pytest

GOLDEN = """\
  SELF %  TOTAL %  FUNCTION  OBJECT
    60.0     60.0  spin      libwork.so
    20.0     80.0  work      libwork.so
    10.0     10.0  callback  program
    10.0     10.0  vfs_read  [kernel]
     0.0     90.0  main      program
     0.0     10.0  lost      program
     0.0     10.0  read      libc.so.6

       %  HOTTEST STACKS, the innermost function first
    60.0  spin < work < main
    20.0  work < main
    10.0  callback [guess] < lost < [callers unknown]
    10.0  vfs_read < read < main

10 samples of cpu-clock, 99 Hz in 2.0 s; bpf
complete: 9 (90.0 %)
with guessed frames: 1 (10.0 %)
incomplete: 1 (10.0 %): no rule describes this code, and no frame pointer leads on
lost: 3 samples: the ring buffer was full"""


def test_golden() -> None:
    profile = named(*EXAMPLE)
    profile.lost["the ring buffer was full"] = 3
    assert "\n".join(format_table(profile)) == GOLDEN


def test_groups_are_listed_if_there_are_several() -> None:
    lines = list(format_table(group_stacks(named(*EXAMPLE), "pid")))
    at = lines.index("       %  BY PID")
    assert lines[at + 1 : at + 3] == ["    90.0  program (pid 7)", "    10.0  program (pid 8)"]
    assert "    80.0  libwork.so" in list(format_table(group_stacks(named(*EXAMPLE), "object")))
    many = named(*(stack("main@program", pid=number) for number in range(30)), by="pid")
    assert "    66.7  20 more" in list(format_table(many))


def test_a_recursive_function_counts_once_a_sample() -> None:
    profile = named(stack("f@a f@a f@a g@a", 3), stack("g@a f@a", 1))
    assert [cost[2:] for cost in function_costs(profile)] == [(3, 4), (1, 4)]


def test_the_hottest_stack_comes_after_many_equal_ones() -> None:
    profile = named(*(stack(f"f{number:04}@a") for number in range(MAX_TIES)), stack("hot@a", 2))
    assert find_hottest_stacks(profile) == [(("hot",), 2), *(((f"f{number:04}",), 1) for number in range(4))]


def test_lines_are_cut_to_the_width() -> None:
    huge = NamedFrame("f" * 10_000_000, "o" * 500, "/p", 1, FrameKind.USER)
    profile = named(stack_of([huge, huge], process="p" * 500, thread="t" * 500), *EXAMPLE)
    for width in (1, 40, 80, 200):
        lines = [*format_table(profile, width)]
        assert max(map(len, lines[: -len([*format_totals(profile)])])) <= max(width, 40)
    assert any(line.endswith("…") for line in format_table(profile, 80))


def test_notes_are_below_one_heading_each_once_and_wrapped() -> None:
    profile = named(*EXAMPLE)
    assert list(format_notes(profile, 80)) == []
    path, words = "/usr/lib" + "/folder" * 30 + "/libwork.so:", "some more words of a note " * 5
    profile.notes += [f"{path} Permission denied", words, words]
    lines = list(format_notes(profile, 80))
    assert lines[:3] == ["notes:", f"  - {path}", "    Permission denied"]
    assert " ".join(line.strip() for line in lines[3:]) == f"- {words.strip()}"
    assert max(map(len, lines[3:])) <= 80


def test_recursion_is_one_name_with_its_depth() -> None:
    lines = list(format_table(named(stack("main@a sort@a sort@a sort@a compare@a", 2), stack("", 1)), 80))
    assert "    66.7  compare < sort x3 < main" in lines
    assert "    33.3  [no user stack]" in lines


def test_a_small_share_is_not_nothing_and_a_large_one_is_not_all() -> None:
    lines = list(format_table(named(stack("rare@a", 1), stack("hot@a", 9999))))
    assert (lines[1].split()[0], lines[2].split()[0]) == ("99.99", "0.01")


def test_without_samples() -> None:
    assert next(iter(format_table(named(stack("..."), by="object")))) == "  SELF %  TOTAL %  FUNCTION  OBJECT"
    assert list(format_table(named())) == [
        "0 samples of cpu-clock, 99 Hz in 2.0 s; bpf",
        "nothing was sampled: the processes waited, or ended before they had used the CPU for a sampling period (10.1 ms)",
    ]
    lost = named()
    lost.lost["the ring buffer was full"] = 1
    assert [*format_table(lost)][-1] == "lost: 1 sample: the ring buffer was full"


def test_folded() -> None:
    assert b"".join(encode_folded(named(*EXAMPLE, EXAMPLE[0]))).decode().splitlines() == [
        "program;main;work;spin 12",
        "program;main;work 2",
        "program;main;read;vfs_read 1",
        "program;[callers unknown];lost;callback [guess] 1",
    ]
    assert b"".join(encode_folded(named(stack("a;b@x", process="p;q", thread="p;q")))) == b"p:q;a:b 1\n"
    assert b"".join(encode_folded(named(stack("", process="p", thread="p")))) == b"p 1\n"


NONE = -1 << 40  # less than any memory
ENDS = (End.OUTERMOST, End.NO_RULE, End.KERNEL_THREAD)


def outputs() -> list[bytes]:
    collected = Collected("cpu-clock", "bpf", 99, seconds=1.0)
    stacks = collected.stacks
    for number in range(100):
        frames = [FileFrame(0, number % (5 + depth), guessed=number % 11 == depth).pack() for depth in range(number % 6)]
        task = stacks.tasks.find_number(1 + number % 4, 0)
        stacks.add_samples(stacks.find_or_add(task, array("Q", frames), ENDS[number % 3]), number % 5)
    profile = group_stacks(name_stacks(collected), "pid")
    written = [b"".join(format_of(ending).encode(profile)) for ending in FORMATS]
    return [*written, "\n".join(format_table(profile)).encode()]


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
    without_samples = group_stacks(named(stack_of([frame("outer"), frame("inlined")._replace(inlined=True)], 0)), "pid")
    empty = NamedProfile("cpu-clock", "bpf", 99, 0.0, 1.0)
    empty.locations.number_locations([frame("outer"), frame("inlined")._replace(inlined=True)])
    for one in (without_samples, group_stacks(empty, "pid")):
        assert all(b"".join(format_of(ending).encode(one)) or ending in (".folded", ".txt") for ending in FORMATS)
        assert [*format_table(one)]
