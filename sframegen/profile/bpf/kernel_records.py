"""Decodes the records that the kernel program sends through the ring buffer. Layouts and numbers are those of walker.h."""

from __future__ import annotations

import struct
from array import array
from enum import IntEnum
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from sframegen.profile.packed_frames import PACKED_ADDRESS, OffCpu, is_off_cpu
from sframegen.profile.walk.copied_stack import Start
from sframegen.stack.walking.frames import BY_NUMBER, End
from sframegen.stack.walking.step import REGISTERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sframegen.base.columns import Column

CountKey: TypeAlias = tuple[int, int, int]  # hash, pid, tid of NewStack


class Statistic(IntEnum):
    """Numbers of the kernel program's counters, after those of the ends of walks. walker.h explains each."""

    SAMPLES = 16
    KERNEL_MODE = 17
    RING_FULL = 18
    COUNTS_FULL = 19
    BUSY = 20
    OTHER_ABI = 21
    PROCESSES_FULL = 22
    BLOCKS_FULL = 23
    REMEMBERED = 24


LOSS_REASONS = {
    Statistic.RING_FULL: "the ring buffer was full",
    Statistic.COUNTS_FULL: "the map of counts was full",
    Statistic.BUSY: "another sample was being taken on the CPU",
    Statistic.OTHER_ABI: "a 32-bit program",
    Statistic.BLOCKS_FULL: "too many threads were off the CPU at the same time",
}


class SampleCount(NamedTuple):
    """A number of samples, and the nanoseconds that they stand for, if any."""

    samples: int
    nanoseconds: int


NO_SAMPLES = SampleCount(0, 0)

RECORD_STACK, RECORD_UNFINISHED, RECORD_AREA = 1, 2, 3
STOPPED_EXACT, STOPPED_GUESSED, STOPPED_ASLEEP = 1, 2, 4  # flags of a walk that stopped

_TYPE = struct.Struct("=I")
_AREA = struct.Struct("=IIQQQ")  # type, pid, time, start, end
_STACK = struct.Struct("=IIQQIII4x16s")  # type, end, time, hash, pid, tid, number of frames, comm; the frames follow
_STOPPED = struct.Struct("=IIQQQQII")  # type, flags, pc, known registers, stack start, pages, stack size, file; registers follow
_REGISTER_BYTES = 8 * REGISTERS


class NewStack(NamedTuple):
    """A stack that the kernel program has not counted before. Its counts come with the key (`hash`, `pid`, `tid`)."""

    hash: int
    pid: int
    tid: int  # 0 if the profile does not distinguish threads
    end: End
    comm: str
    frames: Column  # packed, the innermost first

    def as_waiting(self) -> NewStack:
        """Return the same off-CPU stack for the time in which its thread was woken and waits for a CPU."""
        frames = array("Q", self.frames)
        waiting_hash = hash_while_waiting(self.hash, frames)
        frames[0] = OffCpu.WAITING.frame
        return self._replace(hash=waiting_hash, frames=frames)


class UnwalkedStack(NamedTuple):
    """A thread's stack that will not be walked. `hashes`: those with which its off-CPU time is counted nevertheless."""

    pid: int
    tid: int
    hashes: tuple[int, ...] = ()


class UnfinishedWalk(NamedTuple):
    """A walk that stopped at unknown code. `start`: the frame at which it goes on, with the frames that were walked before."""

    nanoseconds: int  # CLOCK_MONOTONIC
    pid: int
    tid: int
    comm: str
    end: End
    start: Start
    stack_start: int
    stack: bytes
    missing: int  # the number of the file at the PC, if its table was missing
    hash: int = 0  # with which the time of a thread off the CPU is counted; 0 for other samples
    asleep: bool = False  # the thread was asleep when profiling began, and its stack has yet to be read
    holes: int = 0  # a bit for each unreadable page, from that of `stack_start` on, which `stack` does not contain
    task: int | None = None  # the task's number, if it was named when it was sampled, because its name may change

    @property
    def waiting_hash(self) -> int:
        """Return the hash under which the thread's wait for a CPU is counted."""
        return hash_while_waiting(self.hash, self.start.frames)

    @property
    def unwalked(self) -> UnwalkedStack:
        return UnwalkedStack(self.pid, self.tid, (self.hash, self.waiting_hash) if self.hash else ())


class NewArea(NamedTuple):
    """New memory of a process at addresses [start, end). It tells that older mappings there were unmapped."""

    nanoseconds: int
    pid: int
    start: int
    end: int


KernelRecord: TypeAlias = NewStack | UnfinishedWalk | NewArea


def decode_record(record: bytes) -> KernelRecord:
    kind = _TYPE.unpack_from(record)[0]
    if kind == RECORD_AREA:
        _, pid, time, start, area_end = _AREA.unpack_from(record)
        return NewArea(time, pid, start, area_end)
    if kind == RECORD_STACK:
        _, end, _, stack_hash, pid, tid, count, comm = _STACK.unpack_from(record)
        words = memoryview(record)[_STACK.size : _STACK.size + 8 * count].cast("Q")
        return NewStack(stack_hash, pid, tid, BY_NUMBER[end], _decode_name(comm), words)
    return _decode_unfinished(record)


def _decode_unfinished(record: bytes) -> UnfinishedWalk:
    """Decode the record of a walk that stopped: `struct stopped`, then a stack record with its frames, then bytes of the stack."""
    _, flags, pc, known, stack_start, pages, size, missing = _STOPPED.unpack_from(record)
    at = _STOPPED.size + _REGISTER_BYTES
    registers = array("Q", record[_STOPPED.size : at])
    _, end, time, stack_hash, pid, tid, count, comm = _STACK.unpack_from(record, at)
    at += _STACK.size
    frames = array("Q", record[at : at + 8 * count]) if count else ()
    at += 8 * count
    exact, guessed = flags & STOPPED_EXACT > 0, flags & STOPPED_GUESSED > 0
    start = Start(registers, known, pc, exact=exact, frames=frames, guessed=guessed)
    stack, holes = record[at : at + size], ~pages & (1 << pages.bit_length()) - 1  # `pages` has the bits of readable pages
    off_cpu = is_off_cpu(frames)
    asleep = off_cpu and flags & STOPPED_ASLEEP > 0
    off_cpu_hash = stack_hash if off_cpu else 0
    name = _decode_name(comm)
    return UnfinishedWalk(time, pid, tid, name, BY_NUMBER[end], start, stack_start, stack, missing, off_cpu_hash, asleep, holes)


def hash_while_waiting(off_cpu_hash: int, frames: Sequence[int]) -> int:
    """Return the hash of the same stack while its thread waits for a CPU, by exchanging the reason in the hash."""
    return off_cpu_hash ^ OffCpu(frames[0] & PACKED_ADDRESS).hash ^ OffCpu.WAITING.hash


@lru_cache(1 << 10)
def _decode_name(comm: bytes) -> str:
    return comm.split(b"\0", 1)[0].decode("utf-8", "replace")
