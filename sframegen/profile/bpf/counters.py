"""What the kernel program counts: samples and time of stacks, and statistics."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple, TypeAlias

CountKey: TypeAlias = tuple[int, int, int]  # hash, pid, tid of NewStack


class Statistic(IntEnum):
    """What the kernel program counts besides the ends of walks, which have the numbers before these. walker.h says what each is."""

    SAMPLES = 16
    KERNEL_MODE = 17
    FRAMES = 18
    GUESSED = 19
    FILTERED = 20
    IDLE = 21
    RING_FULL = 22
    COUNTS_FULL = 23
    BUSY = 24
    OTHER_ABI = 25
    PROCESSES_FULL = 26
    SHORT = 27
    SHORT_TIME = 28
    BLOCKS_FULL = 29
    REMEMBERED = 30


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
