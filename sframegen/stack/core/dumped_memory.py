"""The memory in a core file."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

from sframegen.elf.records import MAX_ADDRESS, PT_LOAD

if TYPE_CHECKING:
    from sframegen.elf.file import ElfFile


class Dumped(NamedTuple):
    """A PT_LOAD: addresses [start, end) were mapped, [start, data_end) are in the core from `offset`."""

    start: int
    end: int
    data_end: int
    offset: int
    flags: int


class DumpedMemory:
    """All PT_LOADs of a core, ascending. Raises FormatError if they overlap, in memory or in the file.

    A core may be truncated: `missing` bytes are not in it.
    """

    def __init__(self, elf: ElfFile) -> None:
        self._data = elf.data
        self.missing = 0
        self.parts: list[Dumped] = []
        size = len(elf.data)
        end = total = 0
        for load in sorted((load for load in elf.segments if load.p_type == PT_LOAD), key=lambda load: load.p_vaddr):
            place = f"PT_LOAD at {load.p_vaddr:#x}"
            stop = load.p_vaddr + load.p_memsz
            if load.p_vaddr < end:
                raise elf.error(f"overlaps the one before, which ends at {end:#x}", place)
            if load.p_filesz > load.p_memsz or stop > MAX_ADDRESS:
                raise elf.error(f"no valid size: {load.p_filesz:#x} bytes in the file, {load.p_memsz:#x} in memory", place)
            there = max(0, min(load.p_filesz, size - load.p_offset))
            self.missing += load.p_filesz - there
            total += there
            end = stop
            if load.p_memsz:
                self.parts.append(Dumped(load.p_vaddr, stop, load.p_vaddr + there, load.p_offset, load.p_flags))
        if total > size:  # each byte counts once, else a small file could be an endless memory
            raise elf.error(f"PT_LOADs of {total} bytes in a file of {size} overlap", "program header table")
        self._starts = [part.start for part in self.parts]

    def read(self, address: int, size: int) -> memoryview:
        """Return the bytes at an address, fewer if its PT_LOAD ends."""
        at = bisect_right(self._starts, address) - 1
        if at < 0 or address >= self.parts[at].data_end:
            return self._data[:0]
        part = self.parts[at]
        offset = part.offset + address - part.start
        return self._data[offset : offset + min(size, part.data_end - address)]
