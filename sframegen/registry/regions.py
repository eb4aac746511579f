"""Keeps the registered code of a process: regions of addresses, each with a source of the rules to unwind its code.

Requests and their errors are those of codectl, a proposed system call by which a process registers code (docs/registration.md).
"""

from __future__ import annotations

import errno
from bisect import insort
from typing import TYPE_CHECKING, NamedTuple, Protocol

from sframegen.base.errors import FormatError
from sframegen.elf.ranges import START, find_overlapping, index_of_containing_range
from sframegen.elf.records import ADDRESS_SPACE

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from sframegen.format.model import Match


class Memory(Protocol):
    """Memory of a process."""

    def read(self, address: int, size: int) -> bytes:
        """Return the bytes at an address, fewer if readable memory ends. Never raises."""


class CodeRules(Protocol):
    """A source of unwind rules: tables of code made at run time, or an SFrame section."""

    def look_up(self, pc: int) -> Match | None:
        """Return the row that covers address `pc` of the process. Raises FormatError if the section or table is damaged."""


class Region(NamedTuple):
    """Code at addresses [start, end) of a process. `key`: identifies it when it is unregistered."""

    start: int
    end: int
    key: Hashable
    rule_source: CodeRules


class RegistryError(OSError):
    """A refused request to register or unregister code, with the `errno` of the proposed system call."""


class BudgetError(FormatError):
    """Tables exceed the limit of what is read; they are not damaged."""


class Registry:
    """The registered regions of a process by address, without overlaps."""

    def __init__(self) -> None:
        self._regions: list[Region] = []  # ascending

    def __iter__(self) -> Iterator[Region]:
        return iter(self._regions)

    def __len__(self) -> int:
        return len(self._regions)

    def register(self, region: Region) -> Region:
        """Add a region, and return it. Raises RegistryError: EINVAL for an empty region, EEXIST for an overlap."""
        if not 0 <= region.start < region.end <= ADDRESS_SPACE:
            raise RegistryError(errno.EINVAL, f"no code at {region.start:#x} to {region.end:#x}")
        for other in find_overlapping(self._regions, region.start, region.end):
            raise RegistryError(errno.EEXIST, f"{region.start:#x} to {region.end:#x} overlaps {other.start:#x} to {other.end:#x}")
        insort(self._regions, region, key=START)
        return region

    def unregister(self, key: Hashable) -> list[Region]:
        """Remove the regions with a key, and return them. Raises RegistryError: EINVAL if there are none."""
        removed = [region for region in self._regions if region.key == key]
        if not removed:
            raise RegistryError(errno.EINVAL, "not registered")
        self._regions = [region for region in self._regions if region.key != key]
        return removed

    def find(self, pc: int) -> Region | None:
        index = index_of_containing_range(self._regions, pc)
        return None if index is None else self._regions[index]
