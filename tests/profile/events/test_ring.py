"""Ring buffers: a made one, which is a file, and the kernel's."""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfi.errors import FormatError
from sframegen.profile.events.attributes import EventError
from sframegen.profile.events.event_records import RecordKind
from sframegen.profile.events.ring import RawRecord, RingBuffer

if TYPE_CHECKING:
    from collections.abc import Iterator

SIZE = mmap.PAGESIZE


class MadeRing:
    """What the kernel does, to a file that is mapped."""

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


@given(st.lists(st.tuples(st.integers(20, 90), st.integers(0, 120)), max_size=60), st.integers(1, 4))
def test_records_come_whole_and_in_order_around_the_end(made_of: list[tuple[int, int]], at_a_time: int) -> None:
    made = MadeRing()
    bodies = [(kind, bytes([kind]) * (words * 8)) for kind, words in made_of]
    for first in range(0, len(bodies), at_a_time):
        some = bodies[first : first + at_a_time]
        for kind, body in some:
            made.write(record(kind, body))
        assert list(made.ring.records()) == [RawRecord(kind, 0, body) for kind, body in some]
        assert made.tail == made.head
    made.close()


def test_lost_records_are_counted(made: MadeRing) -> None:
    made.write(record(RecordKind.LOST, struct.pack("=QQ", 1, 40)))
    made.write(record(RecordKind.LOST, struct.pack("=QQ", 1, 2)))
    assert [one.kind for one in made.ring.records()] == [RecordKind.LOST] * 2
    assert made.ring.lost == 42


@pytest.mark.parametrize("size", [0, 7, 24, 65535])
def test_a_record_of_a_wrong_size_is_refused(made: MadeRing, size: int) -> None:
    made.write(struct.pack("=IHHQ", 1, 0, size, 0))
    with pytest.raises(FormatError, match=f"a record of {size} bytes"):
        list(made.ring.records())


def test_more_bytes_than_there_is_room_are_refused(made: MadeRing) -> None:
    made.pages[1024:1032] = struct.pack("=Q", SIZE + 8)
    with pytest.raises(FormatError, match="ring buffer"):
        list(made.ring.records())


def test_a_descriptor_that_is_no_event_is_refused() -> None:
    read, write = os.pipe()
    with pytest.raises(EventError, match="ring buffer of 1 pages is refused"):
        RingBuffer(read, 1)
    os.close(read)
    os.close(write)
