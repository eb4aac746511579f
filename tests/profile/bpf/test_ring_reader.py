"""What a ring buffer has had: all of it, in order, however long nobody asks for it."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import TYPE_CHECKING, cast

import pytest

from sframegen.base.errors import SframegenError
from sframegen.profile.bpf import record_ring
from sframegen.profile.bpf.record_ring import RingReader
from sframegen.profile.stacks import growing

if TYPE_CHECKING:
    from pathlib import Path

    from sframegen.profile.bpf.record_ring import RecordRing

WAIT = 60.0
SIZE = 1000


class Ring:
    """Has three records at each look, or as many as that."""

    def __init__(self, at_each: int = 3) -> None:
        self.fileno, self.given, self.looks, self.at_each = -1, 0, 0, at_each
        self.seen = threading.Event()

    def wait(self, milliseconds: int) -> None:
        pass

    def taken(self) -> list[bytes]:
        self.looks += 1
        if self.looks > 1:
            self.seen.set()
        self.given += self.at_each
        return [record(number) for number in range(self.given - self.at_each, self.given)]

    def close(self) -> None:
        pass


def record(number: int) -> bytes:
    return number.to_bytes(8, "little") * (SIZE // 8 - number % 3)


def reader_of(ring: Ring, in_memory: int = 10 * SIZE, limit: int = 1 << 30) -> RingReader:
    return RingReader(cast("RecordRing", ring), in_memory=in_memory, limit=limit)


@pytest.fixture(autouse=True)
def _a_few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_ring, "BATCH_SIZE", 5 * SIZE)


@pytest.mark.parametrize("in_memory", [0, 10 * SIZE, 1 << 30])
def test_all_records_come_in_order(in_memory: int) -> None:
    ring = Ring()
    with closing(reader_of(ring, in_memory)) as reader:
        for _ in range(20):
            reader.empty_ring()
        found = reader.take_records(0)
        assert found == [record(number) for number in range(6)]  # no more at once
        assert reader.has_more
        while len(found) < ring.given - 3:
            found += reader.take_records(0)
        assert found == [record(number) for number in range(len(found))]


@pytest.mark.sampled
def test_a_buffer_that_was_full_is_used_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100, 200))
    monkeypatch.setattr(record_ring, "monotonic_ns", lambda: next(clock))
    ring = Ring(15)
    with closing(reader_of(ring, 0)) as reader:
        reader.empty_ring()
        ring.at_each = 0
        found = [(len(reader.take_records(0)), reader.taken_until) for _ in range(4)]
        assert found == [(6, 0), (6, 0), (3, 100), (0, 104)]


@pytest.mark.sampled
def test_it_says_until_when_all_were_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100, 200))
    monkeypatch.setattr(record_ring, "monotonic_ns", lambda: next(clock))
    ring = Ring()
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
    ring = Ring()
    with closing(reader_of(ring, limit=4 * SIZE)) as reader:
        for _ in range(5):
            reader.empty_ring()
        assert ring.looks == 2
        reader.take_records(0)
        reader.empty_ring()
        assert ring.looks == 3


def test_without_room_for_a_file_they_stay_in_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "missing"))
    monkeypatch.setattr(growing, "TEMPORARY_FOLDERS", ())
    ring = Ring()
    with closing(reader_of(ring, 4 * SIZE)) as reader:
        for _ in range(5):
            reader.empty_ring()
        assert ring.looks == 2
        assert reader.take_records(0) == [record(number) for number in range(6)]


def test_without_a_thread_it_ends_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    with closing(reader_of(Ring())) as reader, pytest.raises(SframegenError, match=r"can't start new thread: .*`ulimit -v`"):
        reader.start(1.0, lambda: None)


def test_it_looks_while_nobody_asks() -> None:
    ring = Ring()
    with closing(reader_of(ring)) as reader:
        reader.start(0.001, lambda: None)
        assert ring.seen.wait(WAIT)
        reader.stop()
        assert reader.take_records(0)[0] == record(0)
