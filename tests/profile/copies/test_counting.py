"""Samples with registers and a copy of the stack: each is walked and counted, or lost with the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from sframegen.base.errors import FormatError
from sframegen.format.abi import AARCH64, AMD64
from sframegen.profile.collected import Collected
from sframegen.profile.events.event_records import REGISTERS_64, SampleRecord
from sframegen.profile.following.files import CodeSpan, TracedFile, TracedFiles
from sframegen.profile.following.follower import MappingResolver
from sframegen.profile.following.processes import Processes
from sframegen.profile.packed_frames import unpacked_frame
from sframegen.profile.walk.copied_samples import (
    NO_64_BITS,
    NO_REGISTERS,
    NO_STACK,
    Counting,
    RegisterLayout,
    registers_mask,
)
from sframegen.stack.abi.machines import conventions_of
from sframegen.stack.walking.frames import End

if TYPE_CHECKING:
    from sframegen.format.abi import Abi
    from sframegen.profile.tables.table_builder import TableBuilder

PID = 4242
BASE, PAGE = 0x10_0000, 0x1000
STACK = 0x7000_0000


class NoTables:
    """What makes none."""

    pending = 0

    def ready(self) -> list[object]:
        return []


class Run:
    """A process with a page of each of some files, none of which is here."""

    def __init__(self, abi: Abi, files: int = 1, *, threads: bool = False) -> None:
        self.abi, self.collected = abi, Collected("cpu-clock", "copies", 99)
        numbers = range(1, files + 1)
        self.collected.files = {number: TracedFile(number, f"/no/such/file{number}") for number in numbers}
        spans = [
            CodeSpan(start, start + PAGE, start - 0x3000, number) for number in numbers if (start := BASE + PAGE * (number - 1))
        ]
        self.processes = Processes(MappingResolver(TracedFiles()))
        self.processes.set_scanned(PID, spans, "chain", 1)
        self._counting = Counting(abi, self.collected, cast("TableBuilder", NoTables()), threads=threads, kernel=False)
        self._layout = RegisterLayout(abi, registers_mask(abi))

    def sample(self, stack: bytes, fp: int, *, tid: int = PID, pid: int = PID, registers_abi: int = REGISTERS_64) -> None:
        known = conventions_of(self.abi).sampled
        assert known
        values = {self.abi.sp: STACK, self.abi.fp: fp}
        numbered = {at: values.get(number, 0) for number, at in known.places.items()} | {known.pc: BASE + 0x100}
        registers = tuple(numbered[at] for at in sorted(numbered))
        self._counting.take(SampleRecord(pid, tid, 5, 0, (), registers_abi, registers, stack), self._layout, self.processes)
        self._counting.finish()


def words(*values: int) -> bytes:
    return b"".join(value.to_bytes(8, "little") for value in values)


TWO_RECORDS = words(0, 0, 0, 0, STACK + 0x60, BASE + 0x200, *[0] * 20)  # at STACK + 0x20; the next one is the last


@pytest.mark.parametrize("abi", [AMD64, AARCH64], ids=lambda abi: abi.name)
def test_samples_of_both_machines_are_walked(abi: Abi) -> None:
    run = Run(abi)
    run.sample(TWO_RECORDS, STACK + 0x20)
    [stack] = run.collected.stacks
    assert (stack.samples, stack.pid, stack.end) == (1, PID, End.GUESS_FAILED)
    assert [(frame.address, frame.guessed) for frame in map(unpacked_frame, stack.frames)] == [(0x3100, False), (0x31FF, True)]
    assert [task.process for task in run.collected.stacks.tasks] == ["chain"]


@pytest.mark.parametrize("threads", [True, False])
def test_threads_are_told_apart_if_that_is_wanted(threads: bool) -> None:
    run = Run(AMD64, threads=threads)
    for tid in (PID, PID + 1):
        run.sample(TWO_RECORDS, STACK + 0x20, tid=tid)
    stacks = run.collected.stacks
    assert {stack.tid: stack.samples for stack in stacks} == ({PID: 1, PID + 1: 1} if threads else {0: 2})
    stacks.keep_threads(frozenset([PID]))
    assert stacks.samples == (1 if threads else 0)


def test_what_cannot_be_walked_is_counted_with_the_reason() -> None:
    run = Run(AMD64)
    run.sample(b"", 0, registers_abi=0)
    run.sample(bytes(8), 0, registers_abi=1)
    run.sample(b"", 0)
    run.sample(bytes(8), 0, pid=PID + 9)
    assert run.collected.lost == {NO_REGISTERS: 1, NO_64_BITS: 1, NO_STACK: 1, End.NO_PROCESS.words: 1}
    assert run.collected.stacks.samples == 0


def test_a_stack_may_lead_through_any_number_of_files() -> None:
    frames = 600
    run = Run(AMD64, frames)
    records = [word for number in range(1, frames) for word in (STACK + 16 * number, BASE + PAGE * number + 0x100)]
    run.sample(words(*records, 0, 0), STACK)
    assert [(len(stack.frames), stack.end) for stack in run.collected.stacks] == [(frames, End.GUESS_FAILED)]


def test_samples_without_a_program_counter_are_refused() -> None:
    with pytest.raises(FormatError, match="no program counter"):
        RegisterLayout(AMD64, 0)
