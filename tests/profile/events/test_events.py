"""Events: their names and the kernel's refusals, records byte by byte, ring buffers made here, and the kernel's."""

from __future__ import annotations

import errno
import mmap
import os
import re
import struct
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import count
from pathlib import Path
from typing import cast
from unittest.mock import MagicMock, Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sframegen.base.errors import FormatError, SframegenError
from sframegen.profile.bpf import record_ring
from sframegen.profile.bpf.record_ring import BUSY, DATA_AT, DISCARDED, RecordRing, RingReader
from sframegen.profile.events import attributes, names
from sframegen.profile.events.attributes import TYPE_SOFTWARE, EventAttributes, EventError, EventFlag, SampleType, open_event
from sframegen.profile.events.cpu_rings import GAP, CpuRings, RingBuffer
from sframegen.profile.events.event_records import (
    COMM_EXEC,
    HEADER,
    CommRecord,
    MmapRecord,
    RecordKind,
    RecordReader,
    SampleRecord,
    TaskRecord,
)
from sframegen.profile.events.names import BY_NAME, EVENTS, find_event
from sframegen.profile.events.timed_records import TimedRecord, split_records
from sframegen.profile.stacks import growing


def test_only_events_of_the_machine_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(asked: EventAttributes, _pid: int, _cpu: int) -> int:
        if any((asked.type, asked.config) == (BY_NAME[name].type, BY_NAME[name].config) for name in ("cpu-clock", "page-faults")):
            return os.open("/dev/null", os.O_RDONLY)
        raise EventError("no", errno.ENOENT)

    monkeypatch.setattr(names, "open_event", opened)
    assert find_event("faults") is BY_NAME["page-faults"]
    with pytest.raises(EventError, match=r"^this machine has no cycles events; choose one of cpu-clock, page-faults$"):
        find_event("cycles")
    with pytest.raises(EventError, match=r"^cpuclock: unknown event; choose one of cpu-clock, page-faults$"):
        find_event("cpuclock")


def test_no_two_events_are_the_same() -> None:
    assert len({(event.type, event.config) for event in EVENTS}) == len(EVENTS)
    assert len(BY_NAME) == sum(1 + len(event.aliases) for event in EVENTS)


def test_refusals_are_in_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(attributes, "_LIBC", type("Library", (), {"syscall": staticmethod(lambda *_: -1)}))
    for name in ("PARANOID", "MAX_RATE"):
        monkeypatch.setattr(attributes, name, tmp_path / "level")
    own, other = 7, 8
    monkeypatch.setattr(attributes, "_is_own_process", lambda pid: pid == own)
    wrong = {}
    for level, number, pid, flags, message in (
        (3, errno.EACCES, -1, 0, "^cycles events of all processes need root, or CAP_BPF and CAP_PERFMON$"),
        (3, errno.EPERM, own, 0, r"^cycles events of your own processes .* of 1 or less \(it is 3\)$"),
        (3, errno.EACCES, own, EventFlag.EXCLUDE_KERNEL, r"^cycles events of your own processes .* of 2 or less"),
        (3, errno.EACCES, other, 0, "cycles events of other users' processes need root or CAP_PERFMON$"),
        (3, errno.EMFILE, -1, 0, "ulimit -n"),
        (3, errno.ENOENT, -1, 0, "^this machine has no cycles events$"),
        (3, errno.EOPNOTSUPP, -1, 0, "^this machine has no cycles events$"),
        (3, errno.ESRCH, 7, 0, "^process 7: no such process$"),
        (3, errno.ENOSYS, 7, 0, "^this kernel has no perf events$"),
        (3, errno.EINVAL, 7, 0, "refuses cycles events: Invalid argument$"),
        (3, errno.EINVAL, 7, EventFlag.FREQUENCY, "^99,999 samples per second are more than .*max_sample_rate allows: 3$"),
        (1, errno.EACCES, 7, 0, "^process 7: cycles events of other users' processes need root or CAP_PERFMON$"),
        (1, errno.EACCES, 0, 0, "^cycles events are not allowed, though .* is 1: a container or a policy forbids them$"),
    ):
        (tmp_path / "level").write_text(f"{level}\n")
        monkeypatch.setattr("ctypes.get_errno", lambda number=number: number)
        with pytest.raises(EventError) as caught:
            open_event(EventAttributes(0, flags=flags, period=99_999), pid, -1, name="cycles")
        if caught.value.number != number or not re.search(message, caught.value.message):
            wrong[message] = caught.value.message
    assert wrong == {}


S = SampleType
SUFFIXED = EventAttributes(TYPE_SOFTWARE, sample_type=S.TID | S.TIME | S.CPU, flags=EventFlag.SAMPLE_ID_ALL)
ENDS_OF_RECORDS = struct.pack("=IIQII", 10, 11, 12345, 3, 0)
EVERYTHING = EventAttributes(TYPE_SOFTWARE, sample_type=sum(S), user_registers=0b10110)
# pid tid, time, cpu; callchain; registers; stack
SAMPLE = (
    ENDS_OF_RECORDS
    + struct.pack("=QQQ", 2, 0xFF, 0x401000)
    + struct.pack("=QQQQ", 2, 101, 102, 104)
    + struct.pack("=Q", 16) + b"stack of 16 byte" + struct.pack("=Q", 8)
)  # fmt: skip


def mmap2(path: bytes, *, protection: int = 5, tail: bytes = ENDS_OF_RECORDS) -> MmapRecord:
    body = struct.pack("=IIQQQIIQQII", 10, 11, 0x1000, 0x2000, 0x3000, 254, 1, 99, 7, protection, 2) + path + tail
    record = RecordReader(SUFFIXED).read(RecordKind.MMAP2, 0, body)
    assert isinstance(record, MmapRecord)
    return record


def test_a_mapping_names_its_file_by_inode() -> None:
    assert mmap2(b"/lib/a.so\0\0\0\0\0\0\0") == (10, 11, 0x1000, 0x3000, 0x3000, True, "/lib/a.so", 254, 1, 99, 7)
    assert not mmap2(b"//anon\0\0", protection=3).executable


def test_records_of_threads() -> None:
    reader = RecordReader(SUFFIXED)
    comm = struct.pack("=II", 10, 11) + b"name\xff\0\0\0" + ENDS_OF_RECORDS
    assert reader.read(RecordKind.COMM, COMM_EXEC, comm) == CommRecord(10, 11, "name\udcff", by_exec=True)
    task = struct.pack("=IIIIQ", 10, 1, 11, 2, 99) + ENDS_OF_RECORDS
    assert reader.read(RecordKind.FORK, 0, task) == TaskRecord(True, 10, 1, 11, 2)
    assert reader.read(RecordKind.EXIT, 0, task) == TaskRecord(False, 10, 1, 11, 2)
    assert reader.read(64, 0, b"") is None


def test_a_sample_with_all_parts() -> None:
    sample = RecordReader(EVERYTHING).read(RecordKind.SAMPLE, 0, SAMPLE)
    assert isinstance(sample, SampleRecord)
    assert sample == SampleRecord(10, 11, 12345, 3, (0xFF, 0x401000), 2, (101, 102, 104), memoryview(b"stack of"))


def test_a_sample_of_a_thread_without_user_registers_or_stack() -> None:
    attributes = EventAttributes(TYPE_SOFTWARE, sample_type=S.REGS_USER | S.STACK_USER, user_registers=0xFF)
    sample = RecordReader(attributes).read(RecordKind.SAMPLE, 0, ENDS_OF_RECORDS + struct.pack("=QQ", 0, 0))
    assert sample == SampleRecord(10, 11, 12345, 3, stack=memoryview(b""))


def test_a_sample_that_is_cut_is_refused() -> None:
    for size in range(len(SAMPLE)):
        with pytest.raises(FormatError):
            RecordReader(EVERYTHING).read(RecordKind.SAMPLE, 0, SAMPLE[:size])


def test_a_name_without_end_is_refused() -> None:
    with pytest.raises(FormatError, match="no end"):
        mmap2(b"/lib/a.so", tail=b"\1" * 24)
    with pytest.raises(FormatError, match="no end"):
        mmap2(b"", tail=ENDS_OF_RECORDS)  # the zeros of the suffix are not its end


@given(st.sampled_from(RecordKind), st.integers(0, 0xFFFF), st.binary(max_size=200), st.sampled_from([SUFFIXED, EVERYTHING]))
def test_any_bytes_are_read_or_refused(kind: RecordKind, misc: int, body: bytes, attributes: EventAttributes) -> None:
    with suppress(FormatError):
        RecordReader(attributes).read(kind, misc, body)


SIZE = mmap.PAGESIZE


class MadeRing:
    def __init__(self) -> None:
        self.file = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the ring
        self.file.truncate(2 * SIZE)
        self.file.flush()
        self.pages = mmap.mmap(self.file.fileno(), 2 * SIZE)
        self.pages[1040:1056] = struct.pack("=QQ", SIZE, SIZE)
        self.head = 0
        self.ring = RingBuffer(self.file.fileno(), 1)

    def write(self, data: bytes) -> None:
        for byte in data:
            self.pages[SIZE + self.head % SIZE] = byte
            self.head += 1
        self.pages[1024:1032] = struct.pack("=Q", self.head)

    @property
    def tail(self) -> int:
        value: int = struct.unpack("=Q", self.pages[1032:1040])[0]
        return value

    def records(self) -> tuple[int, list[tuple[int, int, bytes]]]:
        """Return how many were lost, and the kinds, numbers and bytes of the new ones."""
        found: list[TimedRecord] = []
        return split_records(self.ring.take(), 7, found), [(kind, number, body) for _, number, kind, _, body in found]

    def close(self) -> None:
        self.ring.close()
        self.pages.close()
        self.file.close()


@pytest.fixture
def made() -> Iterator[MadeRing]:
    ring = MadeRing()
    yield ring
    ring.close()


def record(kind: int, body: bytes) -> bytes:
    return struct.pack("=IHH", kind, 0, 8 + len(body)) + body


@given(st.lists(st.tuples(st.integers(20, 90), st.integers(2, 120)), max_size=60), st.integers(1, 4))
def test_records_come_whole_and_in_order_around_the_end(made_of: list[tuple[int, int]], at_a_time: int) -> None:
    made = MadeRing()
    bodies = [(kind, bytes([kind]) * (words * 8)) for kind, words in made_of]
    for first in range(0, len(bodies), at_a_time):
        some = bodies[first : first + at_a_time]
        for kind, body in some:
            made.write(record(kind, body))
        assert made.records() == (0, [(kind, number, body) for number, (kind, body) in enumerate(some, 7)])
        assert made.tail == made.head
    made.close()


def test_what_comes_before_room_is_given_back_fills_the_buffer_too(made: MadeRing) -> None:
    """A processor that is taken away from us then may be away for long, and the kernel has no room meanwhile."""

    def fill(*_: object) -> None:
        if made.tail == 0:
            made.write(record(RecordKind.EXIT, bytes(56)))

    made.write(record(RecordKind.COMM, bytes(24)))
    made.ring._fence = MagicMock()
    made.ring._fence.__exit__.side_effect = fill
    assert (len(made.ring.take()), made.ring.filled) == (32, 32 + 64)
    assert len(made.ring.take()) == made.ring.filled == 64
    assert (made.ring.take(), made.ring.filled) == (b"", 0)


def test_lost_records_are_counted(made: MadeRing) -> None:
    made.write(record(RecordKind.LOST, struct.pack("=QQ", 1, 40)))
    made.write(record(RecordKind.LOST, struct.pack("=QQ", 1, 2)))
    lost, found = made.records()
    assert [kind for kind, _, _ in found] == [RecordKind.LOST] * 2
    assert lost == 42


def test_times_are_where_records_of_their_kind_have_them(made: MadeRing) -> None:
    made.write(struct.pack("=IHH3Q", RecordKind.SAMPLE, 5, 32, 1, 77, 2))
    made.write(struct.pack("=IHH4Q", RecordKind.MMAP2, 6, 40, 1, 2, 78, 3))
    found: list[TimedRecord] = []
    split_records(made.ring.take(), 1, found)
    assert [(time, kind, misc) for time, _, kind, misc, _ in found] == [(77, RecordKind.SAMPLE, 5), (78, RecordKind.MMAP2, 6)]


REFUSED = [
    *((record(kind, bytes(size)), f"{size} bytes are too few") for kind, size in ((RecordKind.SAMPLE, 8), (RecordKind.EXIT, 0))),
    *((struct.pack("=IHHQ", 1, 0, size, 0), f"a record of {size} bytes") for size in (0, 7, 24)),
]


@pytest.mark.parametrize(("data", "why"), REFUSED)
def test_a_record_without_a_time_or_of_a_wrong_size_is_refused(made: MadeRing, data: bytes, why: str) -> None:
    made.write(data)
    with pytest.raises(FormatError, match=why):
        made.records()


def test_more_bytes_than_there_is_room_are_refused(made: MadeRing) -> None:
    made.pages[1024:1032] = struct.pack("=Q", SIZE + 8)
    with pytest.raises(FormatError, match="ring buffer"):
        made.records()


def test_a_descriptor_that_is_no_event_is_refused() -> None:
    read, write = os.pipe()
    with pytest.raises(EventError, match="ring buffer of 1 pages is refused"):
        RingBuffer(read, 1)
    os.close(read)
    os.close(write)


@pytest.mark.parametrize(
    ("number", "end"),
    [
        (errno.EPERM, ": raise kernel.perf_event_mlock_kb, or run as root"),
        (errno.EMFILE, ": raise the limit with `ulimit -n`"),
        (errno.ENOMEM, ""),
    ],
)
def test_what_helps_depends_on_why_it_is_refused(number: int, end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mmap, "mmap", Mock(side_effect=OSError(number, os.strerror(number))))
    with pytest.raises(EventError, match=re.escape(f"({os.strerror(number)}){end}") + "$") as caught:
        RingBuffer(-1, 1)
    assert caught.value.number == number


# -- records of all CPUs in the order of time, and where some may be missing

SUFFIX = struct.Struct("=IIQII")  # process and thread, time, CPU
BYTES = HEADER.size + SUFFIX.size


class Ring:
    """What a buffer has: `times` of its records. `meanwhile`: bytes that come before their room is given back."""

    def __init__(self, times: list[int], surely_complete: int, meanwhile: int = 0) -> None:
        self.times, self.surely_complete, self.meanwhile = times, surely_complete, meanwhile
        self.filled = 0

    def take(self) -> bytes:
        times, self.times = self.times, []
        self.filled = BYTES * len(times) + self.meanwhile
        return b"".join(HEADER.pack(RecordKind.COMM, 0, BYTES) + SUFFIX.pack(1, 1, time, 0, 0) for time in times)


def times(found: CpuRings, now: int) -> list[int]:
    return [record[0] for record in found.take_until(now)]


def rings(*by_cpu: Ring) -> CpuRings:
    found = CpuRings()
    found.by_cpu = {cpu: (-1, ring) for cpu, ring in enumerate(by_cpu)}  # type: ignore[misc] # it has what is asked
    found.collect()
    return found


def test_records_of_two_cpus_come_in_the_order_of_time() -> None:
    found = rings(Ring([2, 5, 9], 10 * BYTES), Ring([1, 5, 7], 10 * BYTES))
    assert times(found, 7) == [1, 2, 5, 5, 7]
    assert times(found, 8) == []
    assert times(found, 9) == [9]


@pytest.mark.parametrize(("room", "meanwhile", "begins"), [(3, 0, None), (2, 0, 9), (1, 0, 5), (-1, 0, 2), (11, 9, 9)])
def test_a_buffer_without_room_has_a_gap_from_the_record_that_filled_it(room: int, meanwhile: int, begins: int | None) -> None:
    """The kernel says so later, with its next record: until then a mapping that it could not write is not missed.

    `meanwhile`: records that filled it before its room was given back: the gap is after what was taken."""
    taken = rings(Ring([2, 5, 9], room * BYTES, meanwhile * BYTES), Ring([3], 10 * BYTES)).take_until(1 << 63)
    gaps = [(at, end) for at, _, kind, end, _ in taken if kind == GAP]
    assert [at for at, _ in gaps] == ([] if begins is None else [begins])
    assert all(end > 9 for _, end in gaps)
    assert len(taken) - len(gaps) == 4


def test_what_comes_meanwhile_is_left_for_the_next_time() -> None:
    found = rings(Ring([2, 5], 10 * BYTES))
    [(_, ring)] = found.by_cpu.values()
    taken = times(found, 3)
    ring.times = [4]  # type: ignore[attr-defined] # see above
    found.collect_unless_full()
    assert taken == [2]
    assert times(found, 9) == [4, 5]


class Shared:
    def __init__(self, ours: mmap.mmap, theirs: mmap.mmap) -> None:
        self.ours, self.theirs = ours, theirs
        self.at = 0

    def write(self, record: bytes, flags: int = 0) -> None:
        whole = record_ring.HEADER.pack(len(record) | flags) + record
        for number, byte in enumerate(whole):
            place = (self.at + number) % SIZE
            self.theirs[DATA_AT + place] = self.theirs[DATA_AT + SIZE + place] = byte  # mapped twice
        self.at += -(-len(whole) // 8) * 8
        self.theirs[:8] = self.at.to_bytes(8, "little")

    @property
    def taken(self) -> int:
        return int.from_bytes(self.ours[:8], "little")


@pytest.fixture
def shared_ring(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[RecordRing, Shared]]:
    maps = [mmap.mmap(-1, mmap.PAGESIZE), mmap.mmap(-1, DATA_AT + 2 * SIZE)]
    shared = Shared(*maps)
    monkeypatch.setattr(mmap, "mmap", lambda *_, **__: maps.pop(0))
    ring = RecordRing(-1, SIZE)
    yield ring, shared
    ring.close()


def test_records_come_once_and_in_order_also_over_the_end(shared_ring: tuple[RecordRing, Shared]) -> None:
    ring, shared = shared_ring
    for turn in range(200):
        some = [bytes([turn, size]) * size for size in (1, 8, 13, 100)]
        for record in some:
            shared.write(record)
        assert ring.take() == some
        assert shared.taken == shared.at
    assert shared.at > 2 * SIZE
    assert ring.take() == []


def test_what_is_still_written_waits_with_all_after_it(shared_ring: tuple[RecordRing, Shared]) -> None:
    ring, shared = shared_ring
    shared.write(b"first")
    busy = shared.at
    shared.write(b"second", BUSY)
    shared.write(b"third")
    assert ring.take() == [b"first"]
    assert shared.taken == busy
    end, shared.at = shared.at, busy
    shared.write(b"second")
    shared.theirs[:8] = end.to_bytes(8, "little")
    assert ring.take() == [b"second", b"third"]


def test_what_comes_before_room_is_given_back_is_taken_at_once(shared_ring: tuple[RecordRing, Shared]) -> None:
    """The kernel wakes only for a record that comes when all before it are taken."""
    ring, shared = shared_ring
    late = [(b"late", 0), (bytes(48), DISCARDED), (b"later", 0)]

    def write_late(*_: object) -> None:
        if late and shared.taken < shared.at:
            shared.write(*late.pop(0))

    ring._fence = MagicMock()
    ring._fence.__exit__.side_effect = write_late
    shared.write(b"first")
    assert ring.take() == [b"first", b"late", b"later"]
    assert shared.taken == shared.at


# -- what a ring buffer has had: all of it, in order, however long nobody asks for it

LARGE = 1000


class ManyRecords:
    def __init__(self, at_each: int = 3) -> None:
        self.fileno, self.given, self.looks, self.at_each = -1, 0, 0, at_each

    def wait(self, milliseconds: int) -> None:
        pass

    def take(self) -> list[bytes]:
        self.looks += 1
        self.given += self.at_each
        return [numbered_record(number) for number in range(self.given - self.at_each, self.given)]

    def close(self) -> None:
        pass


def numbered_record(number: int) -> bytes:
    return number.to_bytes(8, "little") * (LARGE // 8 - number % 3)


def reader_of(ring: ManyRecords, in_memory: int = 10 * LARGE, limit: int = 1 << 30) -> RingReader:
    return RingReader(cast("RecordRing", ring), in_memory=in_memory, limit=limit)


@pytest.fixture(autouse=True)
def _a_few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_ring, "BATCH_SIZE", 5 * LARGE)


@pytest.mark.parametrize("in_memory", [0, 10 * LARGE, 1 << 30])
def test_all_records_come_in_order(in_memory: int) -> None:
    ring = ManyRecords()
    with closing(reader_of(ring, in_memory)) as reader:
        for _ in range(20):
            reader.empty_ring()
        found = reader.take_records(0)
        assert found == [numbered_record(number) for number in range(6)]  # no more at once
        assert reader.has_more
        while len(found) < ring.given - 3:
            found += reader.take_records(0)
        assert found == [numbered_record(number) for number in range(len(found))]


@pytest.fixture
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_ring, "monotonic_ns", count(100).__next__)


@pytest.mark.sampled
@pytest.mark.usefixtures("_clock")
def test_a_buffer_that_was_full_is_used_in_parts() -> None:
    ring = ManyRecords(15)
    with closing(reader_of(ring, 0)) as reader:
        reader.empty_ring()
        ring.at_each = 0
        found = [(len(reader.take_records(0)), reader.taken_until) for _ in range(4)]
        assert found == [(6, 0), (6, 0), (3, 100), (0, 104)]


@pytest.mark.sampled
@pytest.mark.usefixtures("_clock")
def test_it_says_until_when_all_were_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    ring = ManyRecords()
    with closing(reader_of(ring)) as reader:
        for _ in range(4):
            reader.empty_ring()
        reader.take_records(0)
        assert reader.taken_until == 101
        monkeypatch.setattr(ring, "take", list)
        reader.take_records(0)
        assert reader.taken_until == 103
        reader.take_records(0)  # of the fifth look
        assert not reader.has_more
        reader.take_records(0)
        assert reader.taken_until == 107


def test_beyond_the_limit_the_ring_buffer_is_left_alone() -> None:
    ring = ManyRecords()
    with closing(reader_of(ring, limit=4 * LARGE)) as reader:
        for _ in range(5):
            reader.empty_ring()
        assert ring.looks == 2
        reader.take_records(0)
        reader.empty_ring()
        assert ring.looks == 3


def test_without_room_for_a_file_they_stay_in_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "missing"))
    monkeypatch.setattr(growing, "TEMPORARY_FOLDERS", ())
    ring = ManyRecords()
    with closing(reader_of(ring, 4 * LARGE)) as reader:
        for _ in range(5):
            reader.empty_ring()
        assert ring.looks == 2
        assert reader.take_records(0) == [numbered_record(number) for number in range(6)]


def test_without_a_thread_it_ends_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
    with closing(reader_of(ManyRecords())) as reader, pytest.raises(SframegenError, match=r"can't start new thread: .*`ulimit -v`"):
        reader.start(1.0, lambda: None)
