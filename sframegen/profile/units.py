"""What the numbers of a profile count: samples, or time where the time off the CPU is in it."""

from __future__ import annotations

from enum import Enum

from sframegen.base.text import count_of

MICROSECOND = 1000  # nanoseconds
SECOND = 1_000_000  # microseconds


class Unit(Enum):
    """The value is its name in formats."""

    SAMPLES = "samples"
    MICROSECONDS = "microseconds"

    def shown(self, number: int) -> str:
        """Return a number of them for users."""
        return count_of(number, "sample") if self is Unit.SAMPLES else f"{number / SECOND:,.3f} s"
