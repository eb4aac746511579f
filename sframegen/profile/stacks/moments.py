"""When each sample was taken: for formats that show time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sframegen.profile.stacks.merge_sort import merge_sort

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cfi.columns import Column
    from sframegen.profile.stacks.growing import Room


GONE = 0xFFFFFFFF  # in place of a row


class Moments:
    """`times`: nanoseconds of CLOCK_MONOTONIC; with them the CPU, and the row in the tree."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._times, self._cpus, self._rows = room.column("Q"), room.column("I"), room.column("I")
        self.count = 0

    def __len__(self) -> int:
        return self.count

    def add(self, nanoseconds: int, cpu: int, row: int) -> None:
        """Raises OSError, MemoryError if there is no room."""
        number = self.count
        for column, value in ((self._times, nanoseconds), (self._cpus, cpu), (self._rows, row)):
            if number >= len(column):
                self._room.grow(column, number + 1)
            column.view[number] = value
        self.count += 1

    def renumber(self, rows: Column) -> None:
        """Let each row be the one that `rows` has for it, and drop the moments of those that it has not (GONE)."""
        kept = 0
        times, cpus, view = self._times.view, self._cpus.view, self._rows.view
        for number in range(self.count):
            row = rows[view[number]]
            if row != GONE:
                times[kept], cpus[kept], view[kept] = times[number], cpus[number], row
                kept += 1
        self.count = kept

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """In the order in which they were added: (nanoseconds, CPU, row)."""
        return zip(*(column.view[: self.count] for column in (self._times, self._cpus, self._rows)), strict=True)

    def in_order(self) -> Iterator[tuple[int, int, int]]:
        """In the order of time: (nanoseconds, CPU, row)."""
        order, other = self._room.column("I"), self._room.column("I")
        for column in (order, other):
            self._room.grow(column, max(1, self.count))
        sorted_in = merge_sort(self._times.view[: self.count], order.view, other.view)
        times, cpus, rows = self._times.view, self._cpus.view, self._rows.view
        for number in (order if sorted_in == 0 else other).view[: self.count]:
            yield times[number], cpus[number], rows[number]
        for column in (order, other):
            self._room.drop(column)
