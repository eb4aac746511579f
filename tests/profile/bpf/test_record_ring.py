"""The ring buffer as the kernel shares it: which records are taken, and what is given back."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING

import pytest

from sframegen.profile.bpf.record_ring import BUSY, DATA_AT, DISCARDED, HEADER, RecordRing

if TYPE_CHECKING:
    from collections.abc import Iterator

SIZE = mmap.PAGESIZE
ENDS = (1, 8, 13, 100)


class Shared:
    """A program's side of the ring."""

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

    class Fence:
        def __enter__(self) -> None:
            pass

        def __exit__(self, *_: object) -> None:
            if late and shared.taken < shared.at:
                shared.write(*late.pop(0))

    ring._fence = Fence()  # type: ignore[assignment]
    shared.write(b"first")
    assert ring.take() == [b"first", b"late", b"later"]
    assert shared.taken == shared.at


def test_what_the_program_has_discarded_is_passed_over(made: tuple[RecordRing, Shared]) -> None:
    ring, shared = made
    shared.write(b"first")
    shared.write(bytes(48), DISCARDED)
    shared.write(b"last")
    assert ring.take() == [b"first", b"last"]
    assert shared.taken == shared.at
