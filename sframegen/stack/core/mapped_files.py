"""The files that the process of a core had mapped. Memory that the core omits is read from them, if they are unchanged."""

from __future__ import annotations

from bisect import bisect_right
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from cfi.errors import FormatError
from sframegen.elf.dynamic import DT_DEBUG, DT_NULL, dynamic_segment
from sframegen.elf.file import ElfFile, open_elf
from sframegen.elf.notes import build_id_of
from sframegen.elf.records import DYN_SIZE, EHDR_SIZE, PF_R, PF_W, PF_X, PT_LOAD, RECORDS, Ehdr
from sframegen.stack.snapshot.mappings import DELETED
from sframegen.stack.snapshot.memory import PAGE
from sframegen.stack.snapshot.snapshot import StackError

if TYPE_CHECKING:
    from sframegen.elf.records import ByteOrder
    from sframegen.format.abi import Abi
    from sframegen.stack.core.dumped_memory import DumpedMemory
    from sframegen.stack.core.process_notes import FileRange
    from sframegen.stack.snapshot.mappings import Mapping

MAX_COMPARED = 4096  # bytes of a dynamic section
NOTHING = memoryview(b"")


class Finder:
    """Opens files from the paths that a process of another machine or time used."""

    def __init__(self, abi: Abi, sysroot: Path | None = None) -> None:
        self.abi = abi
        self.sysroot = sysroot
        self.given: dict[str, Path] = {}  # files that the user names, by the path in the process

    def open(self, path: str) -> ElfFile:
        """Open it under the sysroot, else at its path. Raises StackError with the reason."""
        name = path.removesuffix(DELETED)
        found = self.given.get(path)
        if found is None and self.sysroot is not None:
            under = self.sysroot / name.lstrip("/")
            found = under if under.exists() else None
        try:
            elf = open_elf(found or Path(name))
        except OSError as error:
            raise StackError(error.strerror or "it cannot be read") from None
        except FormatError as error:
            raise StackError(error.message) from None
        if (elf.header.e_machine, elf.byte_order) != (self.abi.machine, self.abi.byte_order):
            raise StackError(f"not a file of {self.abi.name}")
        return elf


class MappedFile:
    """A mapped file, opened on first use. `remark` is reported if it was `wanted`."""

    def __init__(self, path: str, memory: DumpedMemory, finder: Finder) -> None:
        self.path = path
        self.ranges: list[FileRange] = []  # ascending
        self.remark = ""
        self.wanted = False
        self._memory = memory
        self._finder = finder
        self._bases: list[int] = []

    @cached_property
    def elf(self) -> ElfFile | None:
        """The file; None if it cannot be opened, or is not the file that was mapped."""
        try:
            elf = self._finder.open(self.path)
            self._bases = _bases(elf, self.ranges)
            self.remark = file_difference(elf, self._bases[0], self._memory)
        except StackError as error:
            self.remark = str(error)
            return None
        return elf

    def read(self, row: Mapping, address: int, size: int) -> memoryview:
        """Return bytes of `row` that the core omits; none if the process may have changed them, as relocation does."""
        if row.writable:
            return NOTHING
        self.wanted = True
        if self.elf is None or self.flags(row) & (PF_R | PF_W) != PF_R:
            return NOTHING
        offset = row.offset + address - row.start
        return self.elf.data[offset : offset + min(size, row.end - address)]

    def flags(self, row: Mapping | FileRange) -> int:
        """Return the flags of a mapping's PT_LOAD. A page of a file may be in two of them: the address decides.

        Without a PT_LOAD, the flags are those of code that cannot be read.
        """
        at = bisect_right(self._bases, row.start) - 1 if self.elf else -1
        if self.elf is None or at < 0:
            return PF_X
        end = row.end - self._bases[at] + _first_page(self.elf)
        flags = (load.p_flags for load in reversed(self.elf.segments) if load.p_type == PT_LOAD and load.p_vaddr < end)
        return next(flags, PF_X)


def file_difference(elf: ElfFile, start: int, memory: DumpedMemory) -> str:
    """Raises StackError if the core shows that another file was mapped from `start`.

    Return a remark if neither build-id nor first page can decide, else nothing.
    """
    page = memory.read(start, PAGE)
    was, build_id = _build_id(_headers(bytes(page), elf.byte_order)), _build_id(elf)
    if was is not None and was != build_id:
        raise StackError(f"another file: its build-id is {build_id.hex() if build_id else 'none'}, the core has {was.hex()}")
    if was is not None or (page and page == elf.data[: len(page)]):
        return ""
    dynamic = dynamic_segment(elf)
    bias = start - _first_page(elf)
    if dynamic is None or not (there := memory.read(dynamic.p_vaddr + bias, min(dynamic.p_filesz, MAX_COMPARED))):
        return "the core has nothing by which to tell whether it is the same file"
    mine = elf.data[dynamic.p_offset : dynamic.p_offset + len(there)]
    if not _same_dynamic(bytes(mine), bytes(there), bias, elf.byte_order):
        raise StackError("another file: its dynamic section is not the one in the core")
    return "the core does not have its build-id; its dynamic section is the same"


def _same_dynamic(file: bytes, memory: bytes, bias: int, byte_order: ByteOrder) -> bool:
    """Return True if they differ only by the changes of the dynamic linker: it moves addresses, and writes DT_DEBUG."""
    if len(file) != len(memory):
        return False
    for at in range(0, len(file) - DYN_SIZE + 1, DYN_SIZE):
        tag, value, there_tag, there = (
            int.from_bytes(data[at + place : at + place + 8], byte_order) for data in (file, memory) for place in (0, 8)
        )
        if tag != there_tag or (tag != DT_DEBUG and there not in (value, value + bias)):
            return False
        if tag == DT_NULL:
            break
    return True


def _first_page(elf: ElfFile) -> int:
    return next(load.p_vaddr for load in elf.segments if load.p_type == PT_LOAD) & -PAGE


def _bases(elf: ElfFile, ranges: list[FileRange]) -> list[int]:
    """Return the start of each place where the file is mapped as an object. Raises StackError if there is none."""
    loads = [load for load in elf.segments if load.p_type == PT_LOAD]
    if not loads:
        raise StackError("another file: it has no segments")
    span = max(load.p_vaddr + load.p_memsz for load in loads) - _first_page(elf)
    found: list[int] = []
    for row in ranges:
        if row.offset == loads[0].p_offset & -PAGE and (not found or row.start >= found[-1] + span):
            found.append(row.start)
    if not found:
        raise StackError("another file: its segments do not fit the mappings")
    return found


def _headers(page: bytes, byte_order: ByteOrder) -> ElfFile | None:
    """Return the first page of a file as an ELF file without section headers; None if it is not one."""
    if len(page) < EHDR_SIZE:
        return None
    code = RECORDS[Ehdr, byte_order]
    header = Ehdr(*code.unpack_from(page))._replace(e_shoff=0, e_shnum=0, e_shstrndx=0)
    try:
        return ElfFile(memoryview(code.pack(*header) + page[EHDR_SIZE:]))
    except FormatError:
        return None


def _build_id(elf: ElfFile | None) -> bytes | None:
    try:
        return build_id_of(elf) if elf else None
    except FormatError:
        return None
