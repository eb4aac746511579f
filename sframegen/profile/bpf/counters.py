"""What the kernel program counts: samples and time of stacks, and statistics."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple, TypeAlias

CountKey: TypeAlias = tuple[int, int, int]  # hash, pid, tid of NewStack


class Statistic(IntEnum):
    """What the kernel program counts besides the ends of walks, which have the numbers before these. walker.h says what each is."""

    SAMPLES = 16
    KERNEL_MODE = 17
    IDLE = 18
    RING_FULL = 19
    COUNTS_FULL = 20
    BUSY = 21
    OTHER_ABI = 22
    PROCESSES_FULL = 23
    SHORT = 24
    SHORT_TIME = 25
    BLOCKS_FULL = 26
    REMEMBERED = 27


LOST = {
    Statistic.RING_FULL: "the ring buffer was full",
    Statistic.COUNTS_FULL: "the map of counts was full",
    Statistic.BUSY: "another sample was being taken on the CPU",
    Statistic.OTHER_ABI: "a 32-bit program",
    Statistic.BLOCKS_FULL: "too many threads were off the CPU at the same time",
}


class Counted(NamedTuple):
    """`nanoseconds`: the time that the samples stand for; 0 if they stand for none."""

    samples: int
    nanoseconds: int


NOTHING = Counted(0, 0)
