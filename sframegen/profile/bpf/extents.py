"""Allocates extents (ranges of elements) of an array that the kernel program reads. Reuses one only once nothing refers to it."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING

from sframegen.profile.bpf.libbpf import LoadError

if TYPE_CHECKING:
    from collections.abc import Callable

QUARANTINE = 1.0  # seconds after which no run of the kernel program can still use a retired extent


class Extents:
    """Allocates extents, each identified by its first element. `referenced` returns those in use, perhaps by several processes."""

    def __init__(self, elements: int, referenced: Callable[[], set[int]]) -> None:
        self._free: list[tuple[int, int]] = [(0, elements)]  # (first, count), sorted, not adjacent
        self._counts: dict[int, int] = {}  # sizes of extents in use or retired, by first element
        self._retired: deque[tuple[float, int]] = deque()  # (time, first)
        self._referenced = referenced

    def allocate(self, count: int) -> int | None:
        """Return the first element of a new extent; None if there is no room."""
        first = self._take(count)
        if first is None:
            self._release_retired()
            first = self._take(count)
        return first

    def retire(self, first: int) -> None:
        """Retire a process's extent. Forked children may still use it."""
        self._retired.append((monotonic(), first))

    def _take(self, count: int) -> int | None:
        """Cut an extent from the first free range that is large enough; None if there is none."""
        for index, (first, free_count) in enumerate(self._free):
            if free_count >= count:
                self._free[index : index + 1] = [(first + count, free_count - count)] if free_count > count else []
                self._counts[first] = count
                return first
        return None

    def _release_retired(self) -> None:
        """Release the extents that were retired long enough ago, and that no process uses."""
        now = monotonic()
        releasable: list[int] = []
        while self._retired and now - self._retired[0][0] >= QUARANTINE:
            releasable.append(self._retired.popleft()[1])
        try:
            used = self._referenced() if releasable else set()
        except LoadError:  # the map cannot be read now: release nothing
            used = set(releasable)
        for first in releasable:
            if first in used:
                self._retired.append((now, first))
            else:
                self._release(first)

    def _release(self, first: int) -> None:
        """Return an extent to the free ranges, joining adjacent ones."""
        count = self._counts.pop(first)
        following = bisect_left(self._free, (first, 0))
        if following < len(self._free) and self._free[following][0] == first + count:
            count += self._free.pop(following)[1]
        if following and sum(self._free[following - 1]) == first:  # the range before ends there
            first, before = self._free.pop(following - 1)
            count += before
        insort(self._free, (first, count))
