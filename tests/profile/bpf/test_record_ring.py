"""The ring buffer as the kernel shares it: which records are taken, and what is given back."""

from __future__ import annotations

import mmap
import threading
from contextlib import closing
from itertools import count
from typing import TYPE_CHECKING, cast
from unittest.mock import MagicMock, Mock

import pytest

from sframegen.base.errors import SframegenError
from sframegen.profile.bpf import record_ring
from sframegen.profile.bpf.record_ring import BUSY, DATA_AT, DISCARDED, HEADER, RecordRing, RingReader
from sframegen.profile.stacks import growing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SIZE = mmap.PAGESIZE
ENDS = (1, 8, 13, 100)


class Shared:
    def __init__(self, ours: mmap.mmap, theirs: mmap.mmap) -> None:
        self.ours, self.theirs = ours, theirs
        self.at = 0

    def write(self, record: bytes, flags: int = 0) -> None:
        whole = HEADER.pack(len(record) | flags) + record
        for number, byte in enumerate(whole):
            place = (self.at + number) % SIZE
            self.theirs[DATA_AT + place] = self.theirs[DATA_AT + SIZE + place] = byte  # mapped twice
        self.at += -(-len(whole) // 8) * 8
        self.theirs[:8] = self.at.to_bytes(8, "little")

    @property
    def taken(self) -> int:
        return int.from_bytes(self.ours[:8], "little")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[RecordRing, Shared]]:
    maps = [mmap.mmap(-1, mmap.PAGESIZE), mmap.mmap(-1, DATA_AT + 2 * SIZE)]
    shared = Shared(*maps)
    monkeypatch.setattr(mmap, "mmap", lambda *_, **__: maps.pop(0))
    ring = RecordRing(-1, SIZE)
    yield ring, shared
    ring.close()


def test_records_come_once_and_in_order_also_over_the_end(made: tuple[RecordRing, Shared]) -> None:
    ring, shared = made
    for turn in range(200):
        some = [bytes([turn, size]) * size for size in ENDS]
        for record in some:
            shared.write(record)
        assert ring.take() == some
        assert shared.taken == shared.at
    assert shared.at > 2 * SIZE
    assert ring.take() == []


def test_what_is_still_written_waits_with_all_after_it(made: tuple[RecordRing, Shared]) -> None:
    ring, shared = made
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


def test_what_comes_before_room_is_given_back_is_taken_at_once(made: tuple[RecordRing, Shared]) -> None:
    """The kernel wakes only for a record that comes when all before it are taken."""
    ring, shared = made
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
        return [record(number) for number in range(self.given - self.at_each, self.given)]

    def close(self) -> None:
        pass


def record(number: int) -> bytes:
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
        assert found == [record(number) for number in range(6)]  # no more at once
        assert reader.has_more
        while len(found) < ring.given - 3:
            found += reader.take_records(0)
        assert found == [record(number) for number in range(len(found))]


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
        assert reader.take_records(0) == [record(number) for number in range(6)]


def test_without_a_thread_it_ends_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
    with closing(reader_of(ManyRecords())) as reader, pytest.raises(SframegenError, match=r"can't start new thread: .*`ulimit -v`"):
        reader.start(1.0, lambda: None)
