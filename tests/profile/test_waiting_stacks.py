"""Stacks that wait for tables: their bytes are in a file, and none is mixed up with another."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sframegen.profile.bpf.kernel_records import UnfinishedWalk, UnwalkedStack
from sframegen.profile.following.files import CodeSpan
from sframegen.profile.limits import MAX_COPY, MAX_DEPTH
from sframegen.profile.packed_frames import OffCpu
from sframegen.profile.stack_walks import StackWalks, WaitingStack, WaitingStacks
from sframegen.profile.stacks import growing
from sframegen.profile.walk.copied_stack import Start
from sframegen.stack.walking.frames import End

if TYPE_CHECKING:
    from collections.abc import Iterator

WHERE = Start((), 0, 0x1000)
CHANGED = OffCpu.SLEEPING.hash ^ OffCpu.WAITING.hash  # in the hash of a thread that waits for a CPU again


def waiting(number: int, stack: bytes) -> WaitingStack:
    return WaitingStack(UnfinishedWalk(0, 1, 1, "one", End.NO_TABLE, WHERE, 0x7000, stack, number), (), number)


def taken(stacks: WaitingStacks, numbers: set[int]) -> Iterator[WaitingStack]:
    stacks.make_due(numbers)
    return stacks.take_due()


def test_each_gets_its_own_bytes_again() -> None:
    with closing(WaitingStacks()) as stacks:
        given = {number: bytes([number]) * (MAX_COPY >> number % 3) for number in range(1, 40)}
        assert not any(stacks.add(waiting(number, stack)) for number, stack in given.items())
        odd = {number for number in given if number % 2}
        assert {one.number: one.record.stack for one in taken(stacks, odd)} == {number: given[number] for number in odd}
        again = {number: bytes([200 + number]) * 100 for number in range(1, 9)}  # in places that are free now
        assert not any(stacks.add(waiting(number, stack)) for number, stack in again.items())
        rest = sorted((one.number, one.record.stack) for one in taken(stacks, {*given}))
        assert rest == sorted([*again.items(), *((number, stack) for number, stack in given.items() if number not in odd)])
        assert (len(stacks), stacks.bytes) == (0, 0)


def test_all_of_a_record_comes_back() -> None:
    where = Start([1 << 63, *range(31)], 0xFF, 0x1000, exact=False, frames=tuple(range(MAX_DEPTH)), guessed=True)
    one = waiting(1, bytes(MAX_COPY))
    one = one._replace(record=one.record._replace(start=where, holes=5))
    with closing(WaitingStacks()) as stacks:
        assert not stacks.add(one)
        assert not stacks.add(waiting(2, b""))
        assert [*taken(stacks, {1})] == [one]
        assert [*taken(stacks, {2})] == [waiting(2, b"")]


def test_the_oldest_go_first() -> None:
    with closing(WaitingStacks(limit=3000)) as stacks:
        assert [len(stacks.add(waiting(number, bytes(1000)))) for number in range(1, 6)] == [0, 0, 0, 1, 1]
        assert [one.number for one in taken(stacks, {1, 2, 3, 4, 5})] == [3, 4, 5]


def test_those_that_are_dropped_are_named() -> None:
    with closing(WaitingStacks(limit=2)) as stacks:
        for number, hashed in enumerate((0, 8, 9), 1):
            one = waiting(number, b"x")
            where = WHERE._replace(frames=[OffCpu.SLEEPING.frame])
            record = one.record._replace(pid=number, hash=hashed, start=where)
            dropped = stacks.add(one._replace(record=record))
        assert dropped == [UnwalkedStack(1, 1)]
        stacks.make_due({3})
        assert stacks.drop() == [UnwalkedStack(number, 1, (hashed, hashed ^ CHANGED)) for number, hashed in ((3, 9), (2, 8))]
        assert (len(stacks), stacks.bytes, stacks.has_due) == (0, 0, False)


def test_one_may_wait_again_while_others_are_taken() -> None:
    with closing(WaitingStacks()) as stacks:
        for number in (1, 1, 1):
            stacks.add(waiting(number, b"first"))
        for one in taken(stacks, {1}):
            stacks.add(waiting(2, b"again" + one.record.stack))
        assert [one.record.stack for one in taken(stacks, {2})] == [b"againfirst"] * 3


def test_what_is_due_and_not_walked_yet_still_counts() -> None:
    span = CodeSpan(0, 1, 0, 7)
    with closing(WaitingStacks(limit=3)) as stacks:
        for number in (1, 2, 1):
            stacks.add(waiting(number, b"x")._replace(spans=(span,)))
        stacks.make_due({1})
        assert next(stacks.take_due()).number == 1
        assert (stacks.has_due, len(stacks), stacks.bytes, stacks.used_files()) == (True, 2, 2, {7})
        assert len(stacks.add(waiting(3, b"xx"))) == 1  # the oldest that is due
        assert not stacks.has_due
        assert [one.number for one in taken(stacks, {2, 3})] == [2, 3]


def test_it_is_known_how_many_want_a_table() -> None:
    with closing(WaitingStacks()) as stacks:
        for number in (1, 2, 1, 3):
            stacks.add(waiting(number, b"x"))
        stacks.make_due({3})
        assert stacks.count_by_file() == {1: 2, 2: 1}


@pytest.mark.sampled
def test_a_turn_ends_between_two_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    walks = StackWalks.__new__(StackWalks)
    walked: list[int] = []
    monkeypatch.setattr(StackWalks, "walk", lambda _self, record, _spans: walked.append(record.missing))
    with closing(WaitingStacks()) as walks._waiting:
        for number in (1, 2, 3):
            walks._waiting.add(waiting(number, b"x"))
        walks._waiting.make_due({1, 2, 3})
        walks.walk_due(-1)
        assert walked == [1]
        walks.walk_due()
        assert walked == [1, 2, 3]


def test_memory_does_not_grow_with_them() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")

    with closing(WaitingStacks()) as stacks:
        stacks.add(waiting(1, b"x"))
        before = resident()
        for _ in range(1000):  # 64 MB
            stacks.add(waiting(1, b"x" * MAX_COPY))
        assert resident() - before < 16 << 20


def test_a_minimal_root_lacks_the_usual_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "nowhere"))
    monkeypatch.setattr(growing, "TEMPORARY_FOLDERS", (str(tmp_path / "var/tmp"), str(tmp_path)))
    with closing(WaitingStacks()) as stacks:
        assert stacks.add(waiting(1, b"x")) == []
        assert len(list(taken(stacks, {1}))) == 1


def test_without_room_they_are_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "nowhere"))
    monkeypatch.setattr(growing, "TEMPORARY_FOLDERS", ())
    with closing(WaitingStacks()) as stacks:
        assert stacks.add(waiting(1, b"x")) == [UnwalkedStack(1, 1)]
        assert not list(taken(stacks, {1}))
