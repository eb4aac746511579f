"""Decodes records of perf events: mappings, names, the begin and end of threads, and samples. Every length is checked.

Samples and the suffixes of other records must have the fields TID, TIME and CPU.
"""

from __future__ import annotations

import os
import struct
import sys
from enum import IntEnum
from struct import Struct
from typing import NamedTuple, TypeAlias

from sframegen.base.errors import FormatError
from sframegen.elf.records import ADDRESS_SPACE
from sframegen.profile.events.attributes import EventAttributes, SampleType

HEADER = Struct("=IHH")  # kind, misc, size including this header
PROT_EXEC = 4
COMM_EXEC = 1 << 13  # flag in `misc` of COMM
REGISTERS_64 = 2  # `registers_abi` of a 64-bit process; 1: of a 32-bit one; 0: no registers, because a kernel thread was sampled


class RecordKind(IntEnum):
    LOST = 2
    COMM = 3
    EXIT = 4
    FORK = 7
    SAMPLE = 9
    MMAP2 = 10


# Plain integers, because thousands of records come in a second, and reading an enumeration's member takes too long.
LOST, FORK, SAMPLE = map(int, (RecordKind.LOST, RecordKind.FORK, RecordKind.SAMPLE))


class MmapRecord(NamedTuple):
    """A new mapping: process `pid` maps addresses [start, end) from `offset` in a file."""

    pid: int
    tid: int
    start: int
    end: int
    offset: int
    executable: bool
    path: str
    major: int = 0
    minor: int = 0
    inode: int = 0
    generation: int = 0


class CommRecord(NamedTuple):
    """A thread's new name. `by_exec`: its process has executed another program, which replaced all mappings."""

    pid: int
    tid: int
    name: str
    by_exec: bool


class TaskRecord(NamedTuple):
    """The begin (FORK) or end (EXIT) of a thread. It begins a new process if `pid` differs from the parent's."""

    begins: bool
    pid: int
    parent_pid: int
    tid: int
    parent_tid: int


class SampleRecord(NamedTuple):
    """A sample. Fields that the attributes do not request are empty. `registers`: in the order of the bits in their mask."""

    pid: int
    tid: int
    time: int  # nanoseconds of the event's clock
    cpu: int
    callchain: tuple[int, ...] = ()
    registers_abi: int = 0
    registers: tuple[int, ...] = ()
    stack: bytes | memoryview = b""  # from the stack pointer on, as far as the kernel could read it


EventRecord: TypeAlias = MmapRecord | CommRecord | TaskRecord | SampleRecord

SAMPLE_HEAD = Struct("=IIQI4x")  # pid, tid, time, cpu
SUFFIX_SIZE = 24  # bytes: the same fields, at the end of other records
MMAP2_FIELDS = Struct("=IIQQQIIQQII")
COMM_FIELDS = Struct("=II")
TASK_FIELDS = Struct("=IIII8x")  # the last 8 bytes are the time, which the suffix also has


class RecordReader:
    """Reads the records of events with the same attributes."""

    def __init__(self, attributes: EventAttributes) -> None:
        self._sample_type = attributes.sample_type
        self._registers = Struct(f"={attributes.user_registers.bit_count()}Q")
        self._read = {
            RecordKind.MMAP2: _read_mapping,
            RecordKind.COMM: _read_name,
            RecordKind.FORK: _read_task,
            RecordKind.EXIT: _read_task,
            RecordKind.SAMPLE: self._read_sample,
        }

    def read(self, kind: int, misc: int, body: bytes) -> EventRecord | None:
        """Return the decoded record; None for an unused kind. Raises FormatError if it is too short for its kind."""
        read = self._read.get(kind)  # type: ignore[call-overload] # any number may come
        try:
            return read(kind, misc, body) if read else None
        except struct.error:
            raise FormatError(f"{len(body)} bytes are too few", f"{RecordKind(kind).name} record") from None

    def _read_sample(self, _kind: int, _misc: int, body: bytes) -> SampleRecord:
        """Decode a sample, whose fields depend on the attributes' sample type."""
        fields = self._sample_type
        cursor = _Cursor(body, SAMPLE_HEAD.size)
        pid, tid, time, cpu = SAMPLE_HEAD.unpack_from(body)
        callchain: tuple[int, ...] = ()
        abi, registers, stack = 0, (), memoryview(b"")
        if fields & SampleType.CALLCHAIN:
            callchain = cursor.read_words(cursor.read_word())
        if fields & SampleType.REGS_USER:
            abi = cursor.read_word()
            registers = self._registers.unpack(cursor.read_bytes(self._registers.size)) if abi else ()
        if fields & SampleType.STACK_USER and (size := cursor.read_word()):
            stack = cursor.read_bytes(size)
            stack = stack[: min(cursor.read_word(), size)]  # the kernel may fill less than the `size` bytes of the field
        return SampleRecord(pid, tid, time, cpu, callchain, abi, registers, stack)


def _read_text(body: bytes, at: int) -> str:
    """Return the string that begins at an offset. Its NUL must come before the suffix."""
    end = body.find(b"\0", at, len(body) - SUFFIX_SIZE)
    if end < 0:
        raise FormatError("its name has no end", "record", at)
    return os.fsdecode(body[at:end])


def _read_mapping(_kind: int, _misc: int, body: bytes) -> MmapRecord:
    pid, tid, start, size, offset, major, minor, inode, generation, protection, _flags = MMAP2_FIELDS.unpack_from(body)
    path, executable = _read_text(body, MMAP2_FIELDS.size), bool(protection & PROT_EXEC)
    if start + size > ADDRESS_SPACE:
        raise FormatError(f"{size:#x} bytes at {start:#x}", "MMAP2 record", 8)
    return MmapRecord(pid, tid, start, start + size, offset, executable, path, major, minor, inode, generation)


def _read_name(_kind: int, misc: int, body: bytes) -> CommRecord:
    pid, tid = COMM_FIELDS.unpack_from(body)
    return CommRecord(pid, tid, _read_text(body, COMM_FIELDS.size), bool(misc & COMM_EXEC))


def _read_task(kind: int, _misc: int, body: bytes) -> TaskRecord:
    return TaskRecord(kind == FORK, *TASK_FIELDS.unpack_from(body))


class _Cursor:
    """Reads the fields of variable size in a sample, one after the other. Raises FormatError past the end."""

    def __init__(self, body: bytes, at: int) -> None:
        self._body = memoryview(body)
        self._at = at

    def read_bytes(self, size: int) -> memoryview:
        at = self._at
        if size > len(self._body) - at:
            raise FormatError(f"{size} bytes, {len(self._body) - at} are left", "SAMPLE record", at)
        self._at += size
        return self._body[at : at + size]

    def read_word(self) -> int:
        return int.from_bytes(self.read_bytes(8), sys.byteorder)

    def read_words(self, count: int) -> tuple[int, ...]:
        return tuple(self.read_bytes(count * 8).cast("Q"))
