"""The objects of a process in the list of its dynamic linker, for cores that do not name the mapped files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sframegen.elf.dynamic import DT_DEBUG, DT_NULL, dynamic_segment
from sframegen.elf.records import DYN_SIZE, MAX_ADDRESS, PT_INTERP, PT_LOAD
from sframegen.stack.core.process_notes import AT_BASE, AT_ENTRY, AT_EXECFN, FileRange
from sframegen.stack.snapshot.memory import PAGE
from sframegen.stack.snapshot.snapshot import StackError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sframegen.elf.file import ElfFile
    from sframegen.stack.core.dumped_memory import DumpedMemory
    from sframegen.stack.core.mapped_files import Finder

MAX_OBJECTS = 65_536
MAX_PATH = 4096
MAX_DYNAMIC = 1024  # entries
R_MAP = 8  # in struct r_debug
LINK_MAP_SIZE = 32  # of its public fields: l_addr, l_name, l_ld, l_next


class LinkMap:
    """The list, read from the memory of the process. It is in writable memory, which cores contain."""

    def __init__(self, memory: DumpedMemory, auxv: dict[int, int], finder: Finder) -> None:
        self._memory, self._auxv, self._finder = memory, auxv, finder

    def ranges(self, program: str) -> list[FileRange]:
        """Return the mapped ranges of all objects whose files can be opened, ascending and without overlaps.

        `program`: its path, instead of the core's. Raises StackError if not even the program can be opened.
        """
        path = program or self._text(self._auxv.get(AT_EXECFN, 0))
        if not path:
            raise StackError("it does not name the files that were mapped, nor the program: give the program's file")
        try:
            elf = self._finder.open(path)
        except StackError as error:
            raise StackError(f"{path}: {error}") from None
        entry = self._auxv.get(AT_ENTRY, 0)
        bias = (entry - elf.header.e_entry) % MAX_ADDRESS
        if bias % PAGE:
            raise StackError(f"{path}: another file: the process was entered at {entry:#x}")
        found = list(_ranges_of(elf, bias, path))
        for address, name in list(self._loaded(elf, bias)) or self._interpreter(elf):
            try:
                found += _ranges_of(self._finder.open(name), address, name)
            except StackError:
                continue  # its mappings have no file then
        return _without_overlaps(sorted(found))

    def _loaded(self, program: ElfFile, bias: int) -> Iterator[tuple[int, str]]:
        """Return (l_addr, l_name) of all objects except the program."""
        entry = self._word(self._r_debug(program, bias) + R_MAP)
        for _ in range(MAX_OBJECTS):
            fields = self._memory.read(entry, LINK_MAP_SIZE) if entry else b""
            if len(fields) < LINK_MAP_SIZE:
                return
            address, name, _, entry = (int.from_bytes(fields[at : at + 8], program.byte_order) for at in range(0, LINK_MAP_SIZE, 8))
            path = self._text(name)
            if path.startswith("/"):  # else the program or the vdso
                yield address, path

    def _r_debug(self, program: ElfFile, bias: int) -> int:
        """Return the address that the dynamic linker wrote into the program's dynamic section; 0 if it did not."""
        segment = dynamic_segment(program)
        if segment is None:
            return 0
        start = segment.p_vaddr + bias
        for entry in range(start, start + MAX_DYNAMIC * DYN_SIZE, DYN_SIZE):
            tag = self._word(entry % MAX_ADDRESS)
            if tag == DT_DEBUG:
                return self._word(entry + 8)
            if tag == DT_NULL:
                break
        return 0

    def _interpreter(self, program: ElfFile) -> Iterator[tuple[int, str]]:
        """Return the dynamic linker itself, for cores from before it has a list."""
        base = self._auxv.get(AT_BASE, 0)
        for segment in program.segments if base else ():
            if segment.p_type == PT_INTERP:
                name = bytes(program.data[segment.p_offset : segment.p_offset + min(segment.p_filesz, MAX_PATH)])
                yield base, name.partition(b"\0")[0].decode(errors="surrogateescape")

    def _word(self, address: int) -> int:
        """Return the word at an address; 0 if the core does not have it."""
        return int.from_bytes(self._memory.read(address, 8), self._finder.abi.byte_order)

    def _text(self, address: int) -> str:
        return bytes(self._memory.read(address, MAX_PATH)).partition(b"\0")[0].decode(errors="surrogateescape")


def _ranges_of(elf: ElfFile, bias: int, path: str) -> Iterator[FileRange]:
    for load in elf.segments:
        if load.p_type == PT_LOAD and load.p_filesz:
            start = (load.p_vaddr + bias) % MAX_ADDRESS & -PAGE
            end = start + (load.p_vaddr % PAGE + load.p_filesz + PAGE - 1 & -PAGE)
            yield FileRange(start, end, load.p_offset & -PAGE, path)


def _without_overlaps(ranges: list[FileRange]) -> list[FileRange]:
    """Drop ranges that a list in damaged memory repeats."""
    found: list[FileRange] = []
    for row in ranges:
        if not found or row.start >= found[-1].end:
            found.append(row)
    return found
