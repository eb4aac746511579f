"""Samples of running processes, each of which stops its process: what the kernel program made of them."""

from __future__ import annotations

import os
import signal
import struct
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, Self

from sframegen.profile.bpf.kernel_records import NewStack, Unfinished
from sframegen.profile.bpf.kernel_walker import KernelWalker
from sframegen.profile.bpf.sampling_settings import Sampling
from sframegen.profile.following.follower import Follower
from sframegen.profile.packed_frames import NO_FILE, unpacked_frame
from sframegen.profile.tables.make_table import make_table
from sframegen.profile.walk.copied_stack import CopyWalker, Start, span_columns
from sframegen.stack.live.process import host_abi
from sframegen.stack.walking.step import REGISTERS

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

    from sframegen.profile.following.files import CodeSpan
    from sframegen.profile.tables.make_table import MadeTable
    from sframegen.stack.walking.ends import End

FREQUENCY = 997
PATIENCE = 30.0  # seconds without a sample
ALL_REGISTERS = (1 << 16) - 1
ALL_BITS = (1 << 64) - 1
HELD, HELD_AT = struct.Struct(f"=I4xQ{REGISTERS}Q"), 8  # in struct shared


class NothingSampledError(Exception):
    """The processes wait for something, or have ended."""


class HeldSample(NamedTuple):
    """The registers of the sample whose process is stopped: `registers` by DWARF number, without the PC."""

    pc: int
    registers: tuple[int, ...]


class HoldingWalker(KernelWalker):
    """A sample stops its process."""

    def held(self) -> HeldSample | None:
        held, pc, *registers = HELD.unpack_from(self._shared, HELD_AT)
        return HeldSample(pc, tuple(registers)) if held else None

    def release(self) -> None:
        """The next sample may stop its process; the one that is stopped now is the caller's to continue."""
        self._shared[HELD_AT : HELD_AT + 4] = bytes(4)


class Walked(NamedTuple):
    """`frames`: packed."""

    frames: tuple[int, ...]
    end: End


class Sampled(NamedTuple):
    """`finished`: the kernel program walked it to its end; else user space did, from a copy of the stack.

    `known`: the spans that the kernel program had.
    """

    pid: int
    tid: int
    walked: Walked
    finished: bool
    registers: HeldSample
    known: tuple[CodeSpan, ...]


class Copy(NamedTuple):
    """Bytes of a stack, from that address on."""

    start: int
    stack: bytes


class HeldSamples:
    """Samples the processes that are followed, and their descendants. Raises LoadError, EventError."""

    def __init__(self) -> None:
        self._follower = Follower([])
        self._walker = HoldingWalker(set(), Sampling(frequency=FREQUENCY, threads=True, hold=True))
        self._copies = CopyWalker(host_abi(), lambda number: self._follower.files.by_number[number].elf)
        self.made: dict[int, MadeTable] = {}  # by number of the file
        self._published: dict[int, tuple[CodeSpan, ...]] = {}
        self._first = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._walker.close()
        self._follower.close()
        self._follower.files.close()

    def follow(self, pid: int) -> None:
        """Sample this process too, which has no children yet. A sample that was not taken is no more."""
        self._walker.poll(0)
        self._walker.release()
        self._walker.want(pid)
        self._follower.scan(pid)
        if self._first:
            self._walker.attach()
            self._first = False

    def take(self) -> Sampled:
        """Return the next sample, whose process is about to stop, and is left so. Raises NothingSampledError."""
        deadline = time.monotonic() + PATIENCE
        while True:
            records = [one for one in self._walker.poll(50) if isinstance(one, (NewStack, Unfinished))]
            registers = self._walker.held()
            if records and registers:
                (record,) = records
                known = self._published.get(record.pid, ())
                self._publish(record.pid)
                return Sampled(record.pid, record.tid, self._walked(record), isinstance(record, NewStack), registers, known)
            if time.monotonic() > deadline:
                raise NothingSampledError

    def go_on(self, pid: int) -> None:
        """The process may run, and is no longer what the sample was."""
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    def release(self) -> None:
        """Another sample may come. The kernel program knows the mappings as they are now."""
        self._publish()
        self._walker.release()

    def spans(self, pid: int) -> tuple[CodeSpan, ...]:
        return self._follower.spans(pid) or ()

    def unopened(self, files: Iterable[int]) -> list[str]:
        """Why files with these numbers could not be opened. A profile has that in its notes, and tries again."""
        known = self._follower.files.by_number
        found = [known[number] for number in files if number in known]
        return [f"{file.path}: {file.why}" for file in found if file.elf is None and file.why]

    def addresses(self, pid: int, frames: tuple[int, ...]) -> list[list[int]]:
        """Run-time addresses of packed frames: more than one where the process has mapped the same part of a file again."""
        spans = self.spans(pid)
        found = []
        for frame in map(unpacked_frame, frames):
            here = [(span, frame.address + span.bias & ALL_BITS) for span in spans if span.file == frame.file != NO_FILE]
            found.append([address for span, address in here if span.start <= address < span.end] or [frame.address])
        return found

    def walk_copy(self, sample: Sampled, copy: Copy) -> Walked:
        """The same walk in user space."""
        held = sample.registers
        start = Start(held.registers, ALL_REGISTERS, held.pc)
        end = self._copies.walk(span_columns(self.spans(sample.pid)), start, copy.start, copy.stack)
        return Walked(tuple(self._copies.frames()), end)

    def _walked(self, record: NewStack | Unfinished) -> Walked:
        """What the kernel program found, or what can be found where it stopped."""
        if isinstance(record, NewStack):
            return Walked(tuple(record.frames), record.end)
        spans = self._follower.spans(record.pid, record.nanoseconds)
        if spans is None:
            return Walked(tuple(record.where.frames), record.end)
        end = self._copies.walk(span_columns(spans), record.where, record.stack_start, record.stack)
        return Walked(tuple(self._copies.frames()), end)

    def _publish(self, *pids: int) -> None:
        """Give the kernel program the mappings of the processes, and of others that have changed, and the tables for them."""
        self._follower.drain()
        self._follower.check_files()
        for ended in self._follower.processes.ended:
            self._walker.forget(ended)
            self._published.pop(ended, None)
        self._follower.processes.ended.clear()
        epochs = {one: self._walker.epoch(one) for one in self._follower.processes.changed.union(pids)}
        self._follower.drain()
        for pid in pids:
            if self._follower.spans(pid) is None or self.unopened(span.file for span in self.spans(pid)):
                self._follower.scan(pid)
        for file in self._follower.files.take_new():
            if file.elf:
                self.made[file.number] = made = make_table(file.elf)
                self._walker.add_tables({file.number: made.table})
                self._copies.add_table(file.number, made.table)
        for one, epoch in epochs.items():
            spans = self._follower.spans(one)
            if spans and self._walker.publish(one, spans, epoch):
                self._published[one] = spans
            self._follower.processes.changed.discard(one)
