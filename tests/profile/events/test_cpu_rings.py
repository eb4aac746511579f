"""Records of all CPUs in the order of time, and where some may be missing."""

from __future__ import annotations

import struct

import pytest

from sframegen.profile.events.cpu_rings import CpuRings
from sframegen.profile.events.event_records import HEADER, Gap, RecordKind
from sframegen.profile.events.ring import RawRecord

SUFFIX = struct.Struct("=IIQII")  # process and thread, time, CPU
SIZE = HEADER.size + SUFFIX.size


class Ring:
    """What a buffer has: `times` of its records."""

    def __init__(self, times: list[int], surely_whole: int) -> None:
        self.times, self.surely_whole, self.lost = times, surely_whole, 0

    def records(self) -> list[RawRecord]:
        times, self.times = self.times, []
        return [RawRecord(RecordKind.COMM, 0, SUFFIX.pack(1, 1, time, 0, 0)) for time in times]


def rings(*by_cpu: Ring) -> CpuRings:
    found = CpuRings()
    found.by_cpu = {cpu: (-1, ring) for cpu, ring in enumerate(by_cpu)}  # type: ignore[misc] # it has what is asked
    found.collect()
    return found


def test_records_of_two_cpus_come_in_the_order_of_time() -> None:
    found = rings(Ring([2, 5, 9], 10 * SIZE), Ring([1, 5, 7], 10 * SIZE))
    assert [at for at, _ in found.until(7)] == [1, 2, 5, 5, 7]
    assert [at for at, _ in found.until(8)] == []
    assert [at for at, _ in found.until(9)] == [9]


@pytest.mark.parametrize(("room", "begins"), [(3, None), (2, 9), (1, 5), (-1, 2)])
def test_a_buffer_without_room_has_a_gap_from_the_record_that_filled_it(room: int, begins: int | None) -> None:
    """The kernel says so later, with its next record: until then a mapping that it could not write is not missed."""
    taken = rings(Ring([2, 5, 9], room * SIZE), Ring([3], 10 * SIZE)).until(1 << 63)
    gaps = [(at, one) for at, one in taken if isinstance(one, Gap)]
    assert [at for at, _ in gaps] == ([] if begins is None else [begins])
    assert all(one.end > 9 for _, one in gaps)
    assert len(taken) - len(gaps) == 4


def test_what_comes_meanwhile_is_left_for_the_next_time() -> None:
    found = rings(Ring([2, 5], 10 * SIZE))
    [(_, ring)] = found.by_cpu.values()
    taken = found.until(3)
    ring.times = [4]  # type: ignore[attr-defined] # see above
    found.collect_some()
    assert [at for at, _ in taken] == [2]
    assert [at for at, _ in found.until(9)] == [4, 5]
