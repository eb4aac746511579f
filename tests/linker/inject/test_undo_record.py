"""What a record covers and holds: overlapping writes, holes between new bytes, limits of what is read."""

from __future__ import annotations

from linker.files.copying import FilePart
from linker.inject import undo_record
from linker.inject.gaps import Gap
from linker.inject.undo_record import ENTRY, MAX_RANGES, TRAILER, UNBOUNDED, ZERO_CHUNK, UndoRecord, Write
from tests.support.loops import for_each

ORIGINAL = bytes(range(100))
GAPS = (Gap(0, 16), Gap(40, 8))


def test_the_last_of_overlapping_writes_counts() -> None:
    writes = [Write(10, b"aaaa"), Write(30, b"c"), Write(12, b"bbbb"), Write(31, b"d"), Write(11, b"x")]
    assert [(at, bytes(data)) for at, data in undo_record.merge_writes(writes)] == [(10, b"axbbbb"), (30, b"c"), (31, b"d")]


@for_each(
    ("offset", "found"),
    [
        (0, []),  # new, before everything
        (15, []),
        (16, [(0, 4)]),
        (16 + 39, [(39, 4)]),
        (16 + 40, []),  # new, in the second gap
        (16 + 47, []),
        (16 + 48, [(40, 4)]),
        (16 + 8 + 99, [(99, 4)]),
        (16 + 8 + 100, []),  # new, after the end
    ],
)
def test_what_is_overwritten_is_in_no_gap(offset: int, found: list[tuple[int, int]]) -> None:
    assert undo_record.find_overwritten_ranges(100, [(offset, 4)], GAPS) == found


def test_zeros_around_new_bytes_are_covered() -> None:
    pieces = [(4, bytearray(b"ab")), (8, bytearray(b"c"))]
    assert b"".join(undo_record.fill_holes_with_zeros(2, pieces, 11)) == b"\0\0ab\0\0c\0\0"
    assert b"".join(undo_record.fill_holes_with_zeros(4, pieces, UNBOUNDED)) == b"ab\0\0c"
    assert b"".join(undo_record.fill_holes_with_zeros(3, [], 5)) == b"\0\0"
    assert list(undo_record.fill_holes_with_zeros(3, [], UNBOUNDED)) == []


@for_each("size", [ZERO_CHUNK - 1, ZERO_CHUNK, ZERO_CHUNK + 1, 2 * ZERO_CHUNK + 1])
def test_a_large_hole_comes_in_chunks(size: int) -> None:
    chunks = list(undo_record.fill_holes_with_zeros(7, [], 7 + size))
    assert sum(map(len, chunks)) == size
    assert max(map(len, chunks)) <= ZERO_CHUNK


def made(writes: list[Write], gaps: tuple[Gap, ...] = (), start: int | None = None) -> bytes:
    """The changed file with its record; the record's place is `start`, or the end of all that is written."""
    new = bytearray()
    for at, byte in enumerate(ORIGINAL):
        new += bytes(sum(gap.size for gap in gaps if gap.at == at)) + bytes([byte])
    for offset, data in writes:
        new += bytes(max(0, offset + len(data) - len(new)))
        new[offset : offset + len(data)] = data
    new += bytes(max(0, (start or 0) - len(new)))
    return bytes(new) + undo_record.make_record(memoryview(ORIGINAL), writes, gaps, start)


WRITES = [Write(3, b"gap"), Write(20, b"old"), Write(16 + 41, b"in"), Write(16 + 8 + 100, b"after")]


@for_each("start", [None, 150])
def test_a_record_is_read_back(start: int | None) -> None:
    changed = made(WRITES, GAPS, start)
    found = undo_record.read_verified(memoryview(changed))
    assert found == UndoRecord(100, [(4, ORIGINAL[4:7])], start or 129, GAPS)
    assert found.parts == [FilePart(16, 0, 40), FilePart(64, 40, 60)]
    assert found.covered == [(20, 23), (0, 16), (56, 64), (124, start or 129)]
    size = undo_record.compute_record_size(
        undo_record.find_overwritten_ranges(100, [(at, len(data)) for at, data in WRITES], GAPS), GAPS
    )
    assert size == len(changed) - found.start


def test_a_change_of_what_is_covered_spoils_the_record() -> None:
    good = made(WRITES, GAPS)
    covered, elsewhere = (0, 15, 20, 22, 56, 63, 124, 128), (16, 19, 23, 55, 64, 123)
    for place in (*covered, *elsewhere, *range(129, len(good))):  # the record itself, too
        changed = bytearray(good)
        changed[place] ^= 1
        assert place >= 129 or undo_record.read_unverified(memoryview(changed)) is not None
        assert (undo_record.read_verified(memoryview(changed)) is not None) == (place in elsewhere), place


def trailer(body: bytes, *, original_size: int = 0, count: int = 0, size: int | None = None) -> memoryview:
    size = len(body) + TRAILER.size if size is None else size
    return memoryview(body + TRAILER.pack(original_size, count, 0, size, undo_record.MAGIC))


def test_a_record_is_within_its_file() -> None:
    data = bytes(10)
    for size in (TRAILER.size, TRAILER.size + 10):
        assert undo_record.read_unverified(trailer(data, size=size)) == UndoRecord(0, [], 10 + TRAILER.size - size)
    for size in (0, TRAILER.size - 1, TRAILER.size + 11):
        assert undo_record.read_unverified(trailer(data, size=size)) is None
    assert undo_record.read_unverified(trailer(data, original_size=10, size=TRAILER.size)) is not None
    assert undo_record.read_unverified(trailer(data, original_size=11, size=TRAILER.size)) is None
    assert undo_record.read_unverified(trailer(b"")[1:]) is None


@for_each(("offset", "length"), [(97, 3), (98, 3), (0, 4)])
def test_an_entry_is_within_the_record_and_the_original(offset: int, length: int) -> None:
    """Its bytes are in the record, and their place in the original."""
    body = ENTRY.pack(offset, length) + b"abc"
    found = undo_record.read_unverified(memoryview(bytes(100) + bytes(trailer(body, original_size=100, count=1))))
    assert found == (UndoRecord(100, [(97, b"abc")], 100) if (offset, length) == (97, 3) else None)
    for count in (0, 2):
        other = undo_record.read_unverified(memoryview(bytes(100) + bytes(trailer(body, original_size=100, count=count))))
        assert other == (None if count else UndoRecord(100, [], 100))


def test_the_number_of_entries_has_a_limit() -> None:
    body = ENTRY.pack(0, 0) * (MAX_RANGES + 1)
    assert undo_record.read_unverified(trailer(body, count=MAX_RANGES)) is not None
    assert undo_record.read_unverified(trailer(body, count=MAX_RANGES + 1)) is None
