"""Ring buffers: a made one, which is a file, and the kernel's."""

from __future__ import annotations

import errno
import mmap
import os
import re
import struct
import tempfile
from typing import TYPE_CHECKING
from unittest.mock import MagicMock, Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sframegen.base.errors import FormatError
from sframegen.profile.events.attributes import EventError
from sframegen.profile.events.cpu_rings import GAP, CpuRings, RingBuffer
from sframegen.profile.events.event_records import HEADER, RecordKind
from sframegen.profile.events.timed_records import split_records

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sframegen.profile.events.timed_records import TimedRecord

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
        lost = split_records(self.ring.take(), 7, found)
        return lost, [(kind, number, body) for _, number, kind, _, body in found]

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
