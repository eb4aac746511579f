"""Records of perf events, as in ring buffers and perf.data files: bytes -> what happened. Every length is checked."""

from __future__ import annotations

import os
import struct
import sys
from enum import IntEnum, IntFlag
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from cfi.errors import FormatError
from sframegen.profile.events.attributes import EventFlag, SampleType

if TYPE_CHECKING:
    from sframegen.profile.events.attributes import EventAttributes

HEADER = Struct("=IHH")  # kind, misc, size with this header
PROT_EXEC = 4
REGISTERS_64 = 2  # of a process of 64 bits; 1: of 32 bits; 0: none, because a thread of the kernel was sampled


class RecordKind(IntEnum):
    MMAP = 1
    LOST = 2
    COMM = 3
    EXIT = 4
    FORK = 7
    SAMPLE = 9
    MMAP2 = 10
    LOST_SAMPLES = 13


# Numbers, because thousands of records come in a second, and an enumeration takes as long as the rest of a comparison.
LOST, FORK, SAMPLE, MMAP2 = map(int, (RecordKind.LOST, RecordKind.FORK, RecordKind.SAMPLE, RecordKind.MMAP2))


class Misc(IntFlag):
    MMAP_DATA = 1 << 13
    COMM_EXEC = 1 << 13
    BUILD_ID = 1 << 14  # MMAP2


MMAP_DATA, COMM_EXEC, BUILD_ID = map(int, (Misc.MMAP_DATA, Misc.COMM_EXEC, Misc.BUILD_ID))


class ReadFormat(IntFlag):
    ENABLED = 1
    RUNNING = 2
    ID = 4
    GROUP = 8
    LOST = 16


class MmapRecord(NamedTuple):
    """Addresses [start, end) of process `pid` are mapped from `offset` in a file.

    It has either device, inode and generation, or a build-id; a MMAP record has neither.
    """

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
    build_id: bytes = b""


class CommRecord(NamedTuple):
    """A thread has a new name. `by_exec`: because its process executes another program: it has no old mappings any more."""

    pid: int
    tid: int
    name: str
    by_exec: bool


class TaskRecord(NamedTuple):
    """A thread begins (`begins`: FORK) or ends (EXIT). It is a process of its own if `pid` differs from the parent's."""

    begins: bool
    pid: int
    parent_pid: int
    tid: int
    parent_tid: int


class LostRecord(NamedTuple):
    records: int


class SampleRecord(NamedTuple):
    """What the attributes do not ask for is 0 or empty. `registers`: in the order of the mask's bits."""

    ip: int = 0
    pid: int = 0
    tid: int = 0
    time: int = 0  # nanoseconds of the event's clock
    id: int = 0
    cpu: int = 0
    period: int = 0
    callchain: tuple[int, ...] = ()
    registers_abi: int = 0
    registers: tuple[int, ...] = ()
    stack: bytes | memoryview = b""  # from the stack pointer on; only the bytes that the kernel could read


EventRecord: TypeAlias = MmapRecord | CommRecord | TaskRecord | LostRecord | SampleRecord

# (bit, its part of a structure, names of the values; `_` is not kept): parts of fixed size, in the order of a sample.
SAMPLE_FIELDS: tuple[tuple[SampleType, str, tuple[str, ...]], ...] = (
    (SampleType.IDENTIFIER, "Q", ("id",)),
    (SampleType.IP, "Q", ("ip",)),
    (SampleType.TID, "II", ("pid", "tid")),
    (SampleType.TIME, "Q", ("time",)),
    (SampleType.ADDR, "Q", ("_",)),
    (SampleType.ID, "Q", ("id",)),
    (SampleType.STREAM_ID, "Q", ("_",)),
    (SampleType.CPU, "II", ("cpu", "_")),
    (SampleType.PERIOD, "Q", ("period",)),
)
# The same of the suffix of all other records.
SUFFIX_FIELDS: tuple[tuple[SampleType, str, tuple[str, ...]], ...] = (
    (SampleType.TID, "II", ("pid", "tid")),
    (SampleType.TIME, "Q", ("time",)),
    (SampleType.ID, "Q", ("id",)),
    (SampleType.STREAM_ID, "Q", ("_",)),
    (SampleType.CPU, "II", ("cpu", "_")),
    (SampleType.IDENTIFIER, "Q", ("id",)),
)
MMAP_FIELDS = Struct("=IIQQQ")
MMAP2_FIELDS = Struct("=IIQQQIIQQII")
BUILD_ID_AT, MAX_BUILD_ID = MMAP_FIELDS.size, 20  # a byte of length, three of nothing, the bytes
COMM_FIELDS = Struct("=II")
TASK_FIELDS = Struct("=IIIIQ")  # the last is a time, which is that of the suffix
LOST_FIELDS = Struct("=QQ")  # id, count
LOST_SAMPLES_FIELDS = Struct("=Q")
ADDRESSES = 1 << 64
BRANCH_ENTRY = 24
BRANCH_HAS_INDEX = 1 << 17


class _Fields:
    """A structure with the fields that a sample type asks for."""

    def __init__(self, fields: tuple[tuple[SampleType, str, tuple[str, ...]], ...], sample_type: int) -> None:
        chosen = [(code, names) for bit, code, names in fields if sample_type & bit]
        self.layout = Struct("=" + "".join(code for code, _ in chosen))
        self._names = [name for _, names in chosen for name in names]

    def read(self, body: bytes, at: int) -> dict[str, int]:
        found = dict(zip(self._names, self.layout.unpack_from(body, at), strict=True))
        found.pop("_", None)
        return found


class RecordReader:
    """Reads the records of events with the same attributes."""

    def __init__(self, attributes: EventAttributes) -> None:
        self._sample_type = attributes.sample_type
        self._read_format = attributes.read_format
        self._branch_index = bool(attributes.branch_sample_type & BRANCH_HAS_INDEX)
        self._registers = Struct(f"={attributes.user_registers.bit_count()}Q")
        self._sample = _Fields(SAMPLE_FIELDS, attributes.sample_type)
        has_suffix = attributes.flags & EventFlag.SAMPLE_ID_ALL
        self._suffix = _Fields(SUFFIX_FIELDS, attributes.sample_type if has_suffix else 0)
        self._read = {
            RecordKind.MMAP: self._mmap,
            RecordKind.MMAP2: self._mmap2,
            RecordKind.COMM: self._comm,
            RecordKind.FORK: self._task,
            RecordKind.EXIT: self._task,
            RecordKind.LOST: self._lost,
            RecordKind.LOST_SAMPLES: self._lost_samples,
            RecordKind.SAMPLE: self._sampled,
        }

    def read(self, kind: int, misc: int, body: bytes) -> EventRecord | None:
        """Return what a record says; None for a kind that is not read. Raises FormatError if it is too short for its kind."""
        read = self._read.get(kind)  # type: ignore[call-overload] # any number may come
        try:
            return read(kind, misc, body) if read else None
        except struct.error:
            raise FormatError(f"{len(body)} bytes are too few", f"{RecordKind(kind).name} record") from None

    def time_of(self, kind: int, body: bytes) -> int:
        """Return the time of a record that is not a sample, from its suffix; 0 without one. Raises FormatError."""
        at = len(body) - self._suffix.layout.size
        if at < 0:
            raise FormatError(f"{len(body)} bytes are too few", f"record of kind {kind}")
        return self._suffix.read(body, at).get("time", 0)

    def _text(self, body: bytes, at: int) -> str:
        """Return the string up to its NUL, which must come before the suffix."""
        end = body.find(b"\0", at, len(body) - self._suffix.layout.size)
        if end < 0:
            raise FormatError("its name has no end", "record", at)
        return os.fsdecode(body[at:end])

    def _mmap(self, _: int, misc: int, body: bytes) -> MmapRecord:
        pid, tid, start, size, offset = MMAP_FIELDS.unpack_from(body)
        return MmapRecord(
            pid, tid, start, _end(start, size), offset, not misc & MMAP_DATA, self._text(body, MMAP_FIELDS.size)
        )  # fmt: skip

    def _mmap2(self, _: int, misc: int, body: bytes) -> MmapRecord:
        pid, tid, start, size, offset, major, minor, inode, generation, protection, _flags = MMAP2_FIELDS.unpack_from(body)
        path, executable = self._text(body, MMAP2_FIELDS.size), bool(protection & PROT_EXEC)
        end = _end(start, size)
        if misc & BUILD_ID:
            build_id = body[BUILD_ID_AT + 4 : BUILD_ID_AT + 4 + min(body[BUILD_ID_AT], MAX_BUILD_ID)]
            return MmapRecord(pid, tid, start, end, offset, executable, path, build_id=build_id)
        return MmapRecord(pid, tid, start, end, offset, executable, path, major, minor, inode, generation)

    def _comm(self, _: int, misc: int, body: bytes) -> CommRecord:
        pid, tid = COMM_FIELDS.unpack_from(body)
        return CommRecord(pid, tid, self._text(body, COMM_FIELDS.size), bool(misc & COMM_EXEC))

    def _task(self, kind: int, _: int, body: bytes) -> TaskRecord:
        return TaskRecord(kind == FORK, *TASK_FIELDS.unpack_from(body)[:4])

    def _lost(self, _kind: int, _misc: int, body: bytes) -> LostRecord:
        return LostRecord(LOST_FIELDS.unpack_from(body)[1])

    def _lost_samples(self, _kind: int, _misc: int, body: bytes) -> LostRecord:
        return LostRecord(LOST_SAMPLES_FIELDS.unpack_from(body)[0])

    def _sampled(self, _kind: int, _misc: int, body: bytes) -> SampleRecord:
        wanted = self._sample_type
        cursor = _Cursor(body, self._sample.layout.size)
        fixed = self._sample.read(body, 0)
        callchain: tuple[int, ...] = ()
        abi, registers, stack = 0, (), memoryview(b"")
        if wanted & SampleType.READ:
            cursor.skip_counts(self._read_format)
        if wanted & SampleType.CALLCHAIN:
            callchain = cursor.words(cursor.word())
        if wanted & SampleType.RAW:
            cursor.skip(cursor.half())
        if wanted & SampleType.BRANCH_STACK:
            cursor.skip(cursor.word() * BRANCH_ENTRY + 8 * self._branch_index)
        if wanted & SampleType.REGS_USER:
            abi = cursor.word()
            registers = self._registers.unpack(cursor.part(self._registers.size)) if abi else ()
        if wanted & SampleType.STACK_USER and (size := cursor.word()):
            stack = cursor.part(size)
            stack = stack[: min(cursor.word(), size)]
        return SampleRecord(callchain=callchain, registers_abi=abi, registers=registers, stack=stack, **fixed)


class _Cursor:
    """Reads parts of variable size. Raises FormatError past the end."""

    def __init__(self, body: bytes, at: int) -> None:
        self._body = memoryview(body)
        self._at = at

    def part(self, size: int) -> memoryview:
        at = self._at
        self.skip(size)
        return self._body[at : at + size]

    def skip(self, size: int) -> None:
        if size > len(self._body) - self._at:
            raise FormatError(f"{size} bytes, {len(self._body) - self._at} are left", "SAMPLE record", self._at)
        self._at += size

    def word(self) -> int:
        return int.from_bytes(self.part(8), sys.byteorder)

    def half(self) -> int:
        return int.from_bytes(self.part(4), sys.byteorder)

    def words(self, count: int) -> tuple[int, ...]:
        return tuple(self.part(count * 8).cast("Q"))

    def skip_counts(self, form: int) -> None:
        """Skip the counters of a read: of the event, or of its group."""
        times = (form & (ReadFormat.ENABLED | ReadFormat.RUNNING)).bit_count()
        values = 1 + (form & (ReadFormat.ID | ReadFormat.LOST)).bit_count()
        counts = self.word() if form & ReadFormat.GROUP else 1
        self.skip(8 * (times + values * counts))


def _end(start: int, size: int) -> int:
    if start + size > ADDRESSES:
        raise FormatError(f"{size:#x} bytes at {start:#x}", "MMAP record", 8)
    return start + size
