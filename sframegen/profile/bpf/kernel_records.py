"""What the kernel program sends through the ring buffer. walker.h has the layouts and the numbers."""

from __future__ import annotations

import struct
from typing import NamedTuple, TypeAlias

from sframegen.profile.walk.copied_stack import Start
from sframegen.stack.walking.ends import End
from sframegen.stack.walking.step import REGISTERS

RECORD_STACK, RECORD_UNFINISHED, RECORD_MOMENT, RECORD_AREA = 1, 2, 3, 4
STOPPED_EXACT, STOPPED_GUESSED = 1, 2  # flags of a walk that stopped

_TYPE = struct.Struct("=I")
_MOMENT = struct.Struct("=IIQQII")
_AREA = struct.Struct("=IIQQQ")
_STACK = struct.Struct("=IIQQIIII16s")
_STOPPED = struct.Struct(f"=IIQQQIIQ{REGISTERS}Q")


class NewStack(NamedTuple):
    """A stack that was not counted before: `hash` with `pid` and `tid` is its key in the counts. `frames` are packed."""

    hash: int
    pid: int
    tid: int  # 0 if threads are not told apart
    end: End
    comm: str
    frames: memoryview


class Unfinished(NamedTuple):
    """A walk that met unknown code. `where`: it stopped in the frame at this PC, which is not among those walked."""

    nanoseconds: int  # CLOCK_MONOTONIC
    cpu: int
    pid: int
    tid: int
    comm: str
    end: End
    where: Start
    stack_start: int
    stack: bytes
    missing: int  # at the PC: the number of the file whose table was missing, if that is why
    serial: int  # the word that it was checked with


class SampledMoment(NamedTuple):
    """A finished sample in time; (hash, pid, tid) as in NewStack, except that `tid` is always that of the thread."""

    nanoseconds: int
    cpu: int
    hash: int
    pid: int
    tid: int


class NewArea(NamedTuple):
    """The process gets memory at addresses [start, end): what was mapped there before is not there any more."""

    nanoseconds: int
    pid: int
    start: int
    end: int


KernelRecord: TypeAlias = NewStack | Unfinished | SampledMoment | NewArea


def decode_record(record: bytes) -> KernelRecord:
    kind = _TYPE.unpack_from(record)[0]
    if kind == RECORD_MOMENT:
        _, cpu, time, key, pid, tid = _MOMENT.unpack_from(record)
        return SampledMoment(time, cpu, key, pid, tid)
    if kind == RECORD_AREA:
        _, pid, time, start, area_end = _AREA.unpack_from(record)
        return NewArea(time, pid, start, area_end)
    if kind == RECORD_STACK:
        _, end, _, key, pid, tid, number, _, comm = _STACK.unpack_from(record)
        words = memoryview(record)[_STACK.size : _STACK.size + 8 * number].cast("Q")
        return NewStack(key, pid, tid, End(end), _name(comm), words)
    _, flags, pc, known, start, size, missing, serial, *registers = _STOPPED.unpack_from(record)
    _, end, time, _, pid, tid, number, cpu, comm = _STACK.unpack_from(record, _STOPPED.size)
    at = _STOPPED.size + _STACK.size
    frames = struct.unpack_from(f"={number}Q", record, at)
    at += 8 * number
    where = Start(registers, known, pc, bool(flags & STOPPED_EXACT), frames, bool(flags & STOPPED_GUESSED))
    return Unfinished(time, cpu, pid, tid, _name(comm), End(end), where, start, record[at : at + size], missing, serial)


def _name(comm: bytes) -> str:
    return comm.split(b"\0", 1)[0].decode("utf-8", "replace")
