"""A core file as a snapshot of its process."""

from __future__ import annotations

from bisect import bisect_right
from itertools import islice
from typing import TYPE_CHECKING

from sframegen.elf.file import open_elf
from sframegen.elf.records import ET_CORE, MAX_ADDRESS, PF_R, PF_W, PF_X
from sframegen.format.abi import abi_of
from sframegen.stack.abi.registers import registers_of
from sframegen.stack.core.dumped_memory import DumpedMemory
from sframegen.stack.core.link_map import LinkMap
from sframegen.stack.core.mapped_files import NOTHING, Finder, MappedFile
from sframegen.stack.core.process_notes import AT_ENTRY, AT_PHDR, AT_SYSINFO_EHDR, CoreNotes, FileRange
from sframegen.stack.snapshot.mappings import VDSO, Mapping, Mappings
from sframegen.stack.snapshot.memory import KeptMemory
from sframegen.stack.snapshot.snapshot import StackError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from sframegen.elf.file import ElfFile
    from sframegen.stack.abi.registers import ThreadRegisters
    from sframegen.stack.core.dumped_memory import Dumped

MAX_READ = 1 << 28  # bytes of one read: the largest known section has 1 << 25; a core can have a file mapped any number of times


class Core:
    """A snapshot. Raises FormatError for a file that is not a core, or is damaged; StackError if other files do not match it."""

    def __init__(self, path: Path | str, exe: Path | None = None, sysroot: Path | None = None, tid: int | None = None) -> None:
        """`exe`: the program, if it is not at its path; `sysroot`: a folder with the files of another machine.

        `tid`: this thread only.
        """
        elf = open_elf(path)
        if elf.header.e_type != ET_CORE:
            raise elf.error("not a core file")
        self.abi = abi_of(elf)
        self._notes = CoreNotes(elf, self.abi)
        self.pid = self._notes.pid
        self._tids = [tid] if tid else list(self._notes.threads)
        if not set(self._tids) <= set(self._notes.threads):
            raise StackError(f"thread {tid}: not in {path}")
        self._dumped = DumpedMemory(elf)
        self._finder = Finder(self.abi, sysroot)
        self._remarks: list[str] = []
        if self._dumped.missing:
            self._remarks.append(f"cut off: {self._dumped.missing} bytes of memory are missing")
        ranges = self._notes.files or self._listed(exe)
        self.executable = self._program(ranges)
        if exe:
            self._finder.given[self.executable] = exe
        self._files: dict[str, MappedFile] = {}
        for row in ranges:
            if row.path not in self._files:
                self._files[row.path] = MappedFile(row.path, self._dumped, self._finder)
            self._files[row.path].ranges.append(row)
        self.mappings = Mappings(list(self._rows(ranges)))
        self.memory = KeptMemory(self._read, elf.byte_order)
        if exe and ((program := self._files.get(self.executable)) is None or program.elf is None):
            raise StackError(f"{exe}: {program.remark if program else 'the core does not say where its program was mapped'}")

    def threads(self) -> Sequence[int]:
        """Return all threads; the first one ended the process."""
        return self._tids

    def thread_name(self, tid: int) -> str:
        return self._notes.name if tid == self.pid else ""

    def idle(self, tid: int) -> None:
        """Return None: a core file does not say."""

    def registers(self, tid: int) -> ThreadRegisters:
        thread = self._notes.threads[tid]
        registers = registers_of(self.abi, thread.general, thread.floating, thread.masks)
        if registers is None:
            raise StackError(f"thread {tid}: it runs 32-bit code, for which there is no SFrame")
        return registers

    def file_of(self, mapping: Mapping) -> ElfFile | None:
        file = self._files.get(mapping.path)
        if file is None:
            return None
        file.wanted = True
        return file.elf

    def remarks(self) -> list[str]:
        """Return remarks on the core, and on the files that were used so far."""
        return self._remarks + [f"{file.path}: {file.remark}" for file in self._files.values() if file.wanted and file.remark]

    def _listed(self, exe: Path | None) -> list[FileRange]:
        """Return the mapped files from the dynamic linker's list, if the core does not name them."""
        try:
            return LinkMap(self._dumped, self._notes.auxv, self._finder).ranges(str(exe) if exe else "")
        except StackError as error:
            if exe:
                raise
            self._remarks.append(str(error))
            return []

    def _program(self, ranges: list[FileRange]) -> str:
        """Return the path of the file that was mapped at the program's headers, or at its entry."""
        for kind in (AT_PHDR, AT_ENTRY):
            address = self._notes.auxv.get(kind, 0)
            for row in ranges:
                if row.start <= address < row.end:
                    return row.path
        return ""

    def _rows(self, ranges: list[FileRange]) -> Iterator[Mapping]:
        """Return the PT_LOADs, cut where files begin or end, and the mapped files without a PT_LOAD, which gdb omits."""
        starts = [row.start for row in ranges]
        numbers = {path: number for number, path in enumerate(self._files, 1)}
        vdso = self._notes.auxv.get(AT_SYSINFO_EHDR, 0)
        end = 0
        for part in [*self._dumped.parts, None]:
            for row in _within(ranges, starts, end, part.start if part else MAX_ADDRESS):
                flags = self._files[row.path].flags(row)
                yield _mapping(row, flags, row.offset, row.path, numbers[row.path])
            if part is None:
                return
            at = part.start
            for row in _within(ranges, starts, part.start, part.end):
                if at < row.start:
                    yield _mapping(part._replace(start=at, end=row.start), part.flags)
                yield _mapping(row, part.flags, row.offset, row.path, numbers[row.path])
                at = row.end
            if at < part.end:
                yield _mapping(part._replace(start=at), part.flags, path=VDSO if at <= vdso < part.end else "")
            end = part.end

    def _read(self, address: int, size: int) -> bytes:
        """Read from the core, else from the file that was mapped there."""
        found = bytearray()
        while len(found) < min(size, MAX_READ):
            at, rest = address + len(found), size - len(found)
            piece = self._dumped.read(at, rest) or self._left_out(at, rest)
            if not piece:
                break
            found += piece
        return bytes(found)

    def _left_out(self, address: int, size: int) -> memoryview:
        row = self.mappings.find(address)
        file = self._files.get(row.path) if row else None
        return file.read(row, address, size) if row and file else NOTHING


def _within(ranges: list[FileRange], starts: list[int], start: int, end: int) -> Iterator[FileRange]:
    """Return the parts of the ranges at addresses [start, end)."""
    at = max(bisect_right(starts, start) - 1, 0)
    for row in islice(ranges, at, None):
        if row.start >= end:
            return
        first, last = max(row.start, start), min(row.end, end)
        if first < last:
            yield FileRange(first, last, row.offset + first - row.start, row.path)


def _mapping(place: Dumped | FileRange, flags: int, offset: int = 0, path: str = "", number: int = 0) -> Mapping:
    readable, writable, executable = bool(flags & PF_R), bool(flags & PF_W), bool(flags & PF_X)
    return Mapping(place.start, place.end, readable, writable, executable, offset, "", number, path)
