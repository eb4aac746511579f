"""Records of all CPUs in the order of time, and where some may be missing."""

from __future__ import annotations

import struct

import pytest

from sframegen.profile.events.cpu_rings import GAP, CpuRings
from sframegen.profile.events.event_records import HEADER, RecordKind

SUFFIX = struct.Struct("=IIQII")  # process and thread, time, CPU
SIZE = HEADER.size + SUFFIX.size


class Ring:
    """What a buffer has: `times` of its records. `meanwhile`: bytes that come before their room is given back."""

    def __init__(self, times: list[int], surely_complete: int, meanwhile: int = 0) -> None:
        self.times, self.surely_complete, self.meanwhile = times, surely_complete, meanwhile
        self.filled = 0

    def take(self) -> bytes:
        times, self.times = self.times, []
        self.filled = SIZE * len(times) + self.meanwhile
        return b"".join(HEADER.pack(RecordKind.COMM, 0, SIZE) + SUFFIX.pack(1, 1, time, 0, 0) for time in times)


def times(found: CpuRings, now: int) -> list[int]:
    return [record[0] for record in found.take_until(now)]


def rings(*by_cpu: Ring) -> CpuRings:
    found = CpuRings()
    found.by_cpu = {cpu: (-1, ring) for cpu, ring in enumerate(by_cpu)}  # type: ignore[misc] # it has what is asked
    found.collect()
    return found


def test_records_of_two_cpus_come_in_the_order_of_time() -> None:
    found = rings(Ring([2, 5, 9], 10 * SIZE), Ring([1, 5, 7], 10 * SIZE))
    assert times(found, 7) == [1, 2, 5, 5, 7]
    assert times(found, 8) == []
    assert times(found, 9) == [9]


@pytest.mark.parametrize(("room", "begins"), [(3, None), (2, 9), (1, 5), (-1, 2)])
def test_a_buffer_without_room_has_a_gap_from_the_record_that_filled_it(room: int, begins: int | None) -> None:
    """The kernel says so later, with its next record: until then a mapping that it could not write is not missed."""
    taken = rings(Ring([2, 5, 9], room * SIZE), Ring([3], 10 * SIZE)).take_until(1 << 63)
    gaps = [(at, end) for at, _, kind, end, _ in taken if kind == GAP]
    assert [at for at, _ in gaps] == ([] if begins is None else [begins])
    assert all(end > 9 for _, end in gaps)
    assert len(taken) - len(gaps) == 4


def test_a_buffer_that_became_full_before_its_room_was_given_back_has_a_gap_after_what_was_taken() -> None:
    taken = rings(Ring([2, 5], 10 * SIZE, meanwhile=9 * SIZE)).take_until(1 << 63)
    assert [at for at, _, kind, _, _ in taken if kind == GAP] == [5]


def test_what_comes_meanwhile_is_left_for_the_next_time() -> None:
    found = rings(Ring([2, 5], 10 * SIZE))
    [(_, ring)] = found.by_cpu.values()
    taken = times(found, 3)
    ring.times = [4]  # type: ignore[attr-defined] # see above
    found.collect_unless_full()
    assert taken == [2]
    assert times(found, 9) == [4, 5]
