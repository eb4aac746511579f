"""Copied stacks wait for the tables of their files, are walked to their end and counted once, or lost; trees that count them."""

from __future__ import annotations

import ctypes
import os
import re
import struct
from array import array
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import cast
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sframegen.base.errors import FormatError
from sframegen.elf.file import ElfFile
from sframegen.format.abi import AARCH64, AMD64, Abi
from sframegen.format.model import OUTERMOST
from sframegen.profile.bpf.kernel_records import NewStack, SampleCount, UnfinishedWalk, UnwalkedStack
from sframegen.profile.collected import Collected, Stack, Stacks
from sframegen.profile.copied_session import (
    NO_64_BITS,
    NO_REGISTERS,
    NO_STACK,
    RegisterLayout,
    find_loss_reason,
    make_unfinished_walk,
    registers_mask,
)
from sframegen.profile.counted_stacks import NOT_RECEIVED, RAN_AGAIN, CountedStacks
from sframegen.profile.events.event_records import REGISTERS_64, CommRecord, SampleRecord
from sframegen.profile.following.files import CodeSpan, TracedFiles
from sframegen.profile.following.follower import MappingResolver
from sframegen.profile.following.processes import Processes
from sframegen.profile.limits import MAX_COPY, MAX_DEPTH
from sframegen.profile.packed_frames import FileFrame, OffCpu, unpack_frame
from sframegen.profile.sampling_plan import Grouping, ProfilePlan
from sframegen.profile.stack_walks import NO_TABLE_IN_TIME, StackWalks, WaitingStack, WaitingStacks
from sframegen.profile.stacks import growing
from sframegen.profile.stacks.growing import Room
from sframegen.profile.stacks.numbered import Numbered
from sframegen.profile.stacks.tasks import SampledTasks
from sframegen.profile.tables.decoded_table import DecodedTable
from sframegen.profile.tables.make_table import Origin
from sframegen.profile.tables.table_builder import BuiltTable, TableBuilder
from sframegen.profile.walk.copied_stack import Start
from sframegen.stack.abi.machines import conventions_of
from sframegen.stack.walking.frames import End
from tests.profile.walk.test_copied_stack import BIAS, CODE, RETURN_AT_SP, SP, place, stack_of, start_of, table_of_rules

PID = 4242
OTHER_CODE = 0x1000
STACK = stack_of({SP + 8: place(1)}, 24)


class Builder:
    """Has those tables ready that a test gives it."""

    def __init__(self) -> None:
        self.requested: list[int] = []
        self.proofs: list[int] = []
        self.built: list[BuiltTable] = []

    def request(self, number: int, _elf: ElfFile) -> None:
        self.requested.append(number)

    def request_proof(self, number: int, _elf: ElfFile) -> None:
        self.proofs.append(number)

    def take_ready(self, _waiting_stacks: Mapping[int, int]) -> list[BuiltTable]:
        built, self.built = self.built, []
        return built


class Run:
    """Walks of one process, which has mapped two files. `first`, `second`: their numbers."""

    def __init__(self, abi: Abi = AMD64, *, by: str = Grouping.COMM) -> None:
        self.collected, self.builder, files = Collected("cpu-clock", "copies", 99), Builder(), TracedFiles()
        self.first, self.second = [file.number for name in "ab" if (file := files._add_file(name))]
        for number in (self.first, self.second):
            files.by_number[number].elf = cast("ElfFile", SimpleNamespace(at=Mock(side_effect=FormatError("no code can be read"))))
        self.files = files.by_number
        self.spans = [CodeSpan(OTHER_CODE, 2 * OTHER_CODE, 0, self.second), CodeSpan(CODE.start, CODE.stop, BIAS, self.first)]
        self.processes = Processes(MappingResolver(files))
        self.processes.set_scanned(PID, self.spans, "chain", 1)
        counted = CountedStacks(ProfilePlan(by=by), self.processes, self.collected)
        self.walks = StackWalks(abi, files, self.processes, cast("TableBuilder", self.builder), counted)

    def walk(self, pc: int = place(0), stack: bytes = STACK, spans: list[CodeSpan] | None = None, pid: int = PID) -> None:
        record = UnfinishedWalk(5, pid, pid, "", End.NO_PROCESS, start_of({7: SP}, pc), SP, stack, 0)
        self.walks.walk(record, tuple(self.spans if spans is None else spans))

    def give(self, number: int, table: DecodedTable | None, *, final: bool = True) -> None:
        self.builder.built.append(BuiltTable(number, table, "", Origin.CONVERTED, final))
        self.walks.take_tables()
        self.walks.walk_due()

    def stacks(self) -> list[tuple[End, int, int]]:
        """(end, number of frames, samples)."""
        return [(stack.end, len(stack.frames), stack.samples) for stack in self.collected.stacks]


def test_stacks_wait_for_the_table_of_their_file() -> None:
    run = Run()
    for _ in "12":
        run.walk()
    run.walk(OTHER_CODE + 1)
    assert (run.builder.requested, len(run.walks), run.stacks()) == ([run.first, run.second], 3, [])
    run.give(run.first, table_of_rules([RETURN_AT_SP, OUTERMOST]))
    assert run.stacks() == [(End.OUTERMOST, 2, 2)]
    assert (run.builder.requested, len(run.walks)) == ([run.first, run.second], 1)
    run.give(run.second, None)
    assert (run.stacks()[1:], len(run.walks)) == ([(End.NO_RULE, 1, 1)], 0)


def test_a_stack_that_meets_another_file_waits_again() -> None:
    run = Run()
    run.walk(stack=stack_of({SP + 8: OTHER_CODE + 1}, 24))
    run.give(run.first, table_of_rules([RETURN_AT_SP]))
    assert (run.builder.requested, len(run.walks), run.stacks()) == ([run.first, run.second], 1, [])
    run.give(run.second, None)
    assert (run.stacks(), len(run.walks)) == ([(End.NO_RULE, 2, 1)], 0)


def test_rules_are_proven_where_a_stack_needs_them() -> None:
    run = Run()
    run.give(run.first, table_of_rules([None, OUTERMOST]), final=False)
    run.walk()
    run.walk()
    assert (run.builder.proofs, len(run.walks), run.stacks()) == ([run.first], 2, [])
    run.give(run.first, table_of_rules([RETURN_AT_SP, OUTERMOST]))
    assert run.stacks() == [(End.OUTERMOST, 2, 2)]


def test_what_waits_at_the_end_is_walked_without_a_proof_or_lost() -> None:
    run = Run()
    run.give(run.first, table_of_rules([None]), final=False)
    run.walk()
    run.walk(OTHER_CODE + 1)
    run.walks.finish()
    assert (run.stacks(), run.collected.lost) == ([(End.NO_RULE, 1, 1)], {NO_TABLE_IN_TIME: 1})


def test_a_file_that_was_rewritten_before_its_first_sample_has_no_rules() -> None:
    run = Run()
    file = run.files[run.first]
    file.elf, file.ready, file.final = None, True, True
    run.walk()
    run.walks.walk_due()
    assert (run.builder.requested, len(run.walks), run.stacks()) == ([], 0, [(End.NO_RULE, 1, 1)])


def test_code_in_no_file_is_read_from_the_process() -> None:
    """As CPython's trampolines: what follows a call says where its caller is."""
    made = ctypes.create_string_buffer(b"\x48\x83\xc4\x08\xc3")
    start = ctypes.addressof(made)
    run = Run()
    run.give(run.first, table_of_rules([OUTERMOST, OUTERMOST]))
    spans = sorted([run.spans[1], CodeSpan(start, start + len(made), 0, 0)])
    for pid in (os.getpid(), 1 << 30):
        run.walk(start, spans=spans, pid=pid)
    assert run.stacks() == [(End.OUTERMOST, 2, 1), (End.NO_RULE, 1, 1)]


def sample(abi: Abi, stack: bytes, fp: int, *, registers_abi: int = REGISTERS_64) -> SampleRecord:
    known = conventions_of(abi).sampled
    assert known
    values = {abi.sp: SP, abi.fp: fp}
    numbered = {at: values.get(number, 0) for number, at in known.places.items()} | {known.pc: OTHER_CODE + 0x100}
    return SampleRecord(PID, PID + 1, 5, 0, (), registers_abi, tuple(numbered[at] for at in sorted(numbered)), stack)


TWO_RECORDS = struct.pack("<26Q", 0, 0, 0, 0, SP + 0x60, OTHER_CODE + 0x200, *[0] * 20)  # at SP + 0x20; the next one is the last


@pytest.mark.parametrize("abi", [AMD64, AARCH64], ids=lambda abi: abi.name)
@pytest.mark.parametrize("by", [Grouping.TID, Grouping.COMM])
def test_samples_of_both_machines_are_walked(abi: Abi, by: str) -> None:
    run = Run(abi, by=by)
    run.files[run.second].elf = None
    run.give(run.second, None)
    record = sample(abi, TWO_RECORDS, SP + 0x20)
    run.walks.walk(make_unfinished_walk(record, RegisterLayout(abi, registers_mask(abi)), kernel=False), tuple(run.spans))
    [stack] = cast("list[Stack]", run.collected.stacks)
    assert (stack.samples, stack.pid, stack.end) == (1, PID, End.GUESS_FAILED)
    assert stack.tid == (PID + 1 if by == Grouping.TID else 0)
    assert [(frame.address, frame.guessed) for frame in map(unpack_frame, stack.frames)] == [
        (OTHER_CODE + 0x100, False),
        (OTHER_CODE + 0x1FF, True),
    ]
    assert [task.process for task in run.collected.stacks.tasks] == ["chain"]


def test_a_sample_that_cannot_be_walked_has_a_reason() -> None:
    cases = [(b"", 0, NO_REGISTERS), (bytes(8), 1, NO_64_BITS), (b"", REGISTERS_64, NO_STACK), (bytes(8), REGISTERS_64, "")]
    assert [find_loss_reason(sample(AMD64, stack, 0, registers_abi=kind)) for stack, kind, _ in cases] == [why for *_, why in cases]


def test_samples_without_a_program_counter_are_refused() -> None:
    with pytest.raises(FormatError, match="no program counter"):
        RegisterLayout(AMD64, 0)


# -- counts that the kernel program sends apart from stacks


WAITED = UnfinishedWalk(1, 7, 9, "program", End.NO_TABLE, Start([], 0, 1, frames=[OffCpu.SLEEPING.frame]), 0, b"", 0, hash=5)


def off_cpu() -> tuple[Collected, CountedStacks]:
    collected = Collected("cpu-clock", "bpf", 99)
    return collected, CountedStacks(ProfilePlan(off_cpu=True), Processes(MappingResolver(TracedFiles())), collected)


def test_time_of_a_thread_that_ran_again_is_lost_with_that_reason() -> None:
    """It waited when sampling began, and its stack was to be read from here."""
    collected, counted = off_cpu()
    record = WAITED._replace(end=End.NO_PROCESS, asleep=True)
    counted.count_lost(record.unwalked, RAN_AGAIN)
    counted.add_counts({(key, 7, 0): SampleCount(1, 1000) for key in (5, record.waiting_hash, 6)}, last=True)
    assert collected.lost == {RAN_AGAIN: 2, NOT_RECEIVED: 1}


def test_time_off_the_cpu_is_lost_once() -> None:
    """Its stack is not walked, and then its time is counted; a sample on the CPU is counted nowhere else."""
    collected, counted = off_cpu()
    for hashed in (5, 6, 0):
        counted.count_lost(WAITED._replace(hash=hashed).unwalked, NO_TABLE_IN_TIME)
    frames = memoryview(array("Q", WAITED.start.frames))
    counted.keep_stack(NewStack(6, 7, 0, End.OUTERMOST, "program", frames))  # this one is known after all
    counted.add_counts({(5, 7, 0): SampleCount(3, 1000), (6, 7, 0): SampleCount(2, 1000)}, last=True)
    assert (collected.lost, collected.stacks.samples) == ({NO_TABLE_IN_TIME: 4}, 2)


def test_a_sample_has_the_name_that_its_process_had_then() -> None:
    """When its stack is walked, the process may have executed another program, or be gone."""
    collected = Collected("cpu-clock", "copies", 99)
    processes = Processes(MappingResolver(TracedFiles()))
    counted = CountedStacks(ProfilePlan(), processes, collected)
    processes.set_scanned(7, [], "before", 1)
    record = UnfinishedWalk(1, 7, 7, "", End.NO_TABLE, Start([], 0, 1), 0, b"", 0, task=counted.name_task(7, 7))
    processes.apply(CommRecord(7, 7, "after", by_exec=True), 2)
    counted.count_walked(record, memoryview(array("Q", [5])), End.OUTERMOST)
    rows = collected.stacks.tree.rows
    assert [collected.stacks.tasks[task].process for task in rows.second[: rows.count]] == ["before"]


def test_frames_that_are_used_again_stay_in_the_kept_stack() -> None:
    """The stack of a thread off the CPU is found with both of its keys, as it was."""
    collected, counted = off_cpu()
    frames = array("Q", [OffCpu.LOCK.frame, 5, 6])
    where = Start([0] * 32, 0, 0, frames=(OffCpu.LOCK.frame,))
    record = UnfinishedWalk(1, 7, 8, "a", End.NO_TABLE, where, 0, b"", 0, hash=99)
    counted.count_walked(record, memoryview(frames), End.OUTERMOST)
    frames[1] = 1000
    counted.add_counts(
        {(99, 7, 0): SampleCount(1, 1), (record.waiting_hash, 7, 0): SampleCount(1, 1), (99, 7, 8): SampleCount(1, 1)}, last=True
    )
    assert [stack.frames for stack in collected.stacks] == [(OffCpu.LOCK.frame, 5, 6), (OffCpu.WAITING.frame, 5, 6)]
    assert collected.lost == {NOT_RECEIVED: 1}


# -- stacks that wait: their bytes are in a file, and none is mixed up with another

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


def test_those_that_are_dropped_are_named() -> None:
    with closing(WaitingStacks(limit=2)) as stacks:
        for number, hashed in enumerate((0, 8, 9), 1):
            one = waiting(number, b"x")
            where = WHERE._replace(frames=[OffCpu.SLEEPING.frame])
            dropped = stacks.add(one._replace(record=one.record._replace(pid=number, hash=hashed, start=where)))
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
        assert stacks.count_by_file() == {2: 1}
        assert next(stacks.take_due()).number == 1
        assert (stacks.has_due, len(stacks), stacks.bytes, stacks.used_files()) == (True, 2, 2, {7})
        assert len(stacks.add(waiting(3, b"xx"))) == 1  # the oldest that is due
        assert not stacks.has_due
        assert [one.number for one in taken(stacks, {2, 3})] == [2, 3]


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


@pytest.mark.parametrize("has_room", [True, False])
def test_a_minimal_root_lacks_the_usual_folder_and_without_room_they_are_dropped(
    has_room: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "nowhere"))
    monkeypatch.setattr(growing, "TEMPORARY_FOLDERS", (str(tmp_path / "var/tmp"), str(tmp_path)) if has_room else ())
    with closing(WaitingStacks()) as stacks:
        assert stacks.add(waiting(1, b"x")) == ([] if has_room else [UnwalkedStack(1, 1)])
        assert len(list(taken(stacks, {1}))) == has_room


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
        stacks.add_samples(stacks.find_or_add(stacks.tasks.find_number(1, tid), array("Q", [tid]), End.OUTERMOST), tid)
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
