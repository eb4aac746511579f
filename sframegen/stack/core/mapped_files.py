"""The files that a core's process had mapped: what a core leaves out is read from them, if they are the same files still."""

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
    from sframegen.stack.core.notes import FileRange
    from sframegen.stack.snapshot.mappings import Mapping

MAX_COMPARED = 4096  # bytes of a dynamic section
NOTHING = memoryview(b"")


class Finder:
    """Opens the files that a process of another machine, or of another time, knew by their paths."""

    def __init__(self, abi: Abi, sysroot: Path | None = None) -> None:
        self.abi = abi
        self.sysroot = sysroot
        self.given: dict[str, Path] = {}  # files that the user names, by the process' path

    def open(self, path: str) -> ElfFile:
        """Under the sysroot, else where it was. Raises StackError with the reason."""
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
    """A file that was mapped, opened when it is first asked for. `remark` is to be told where it was `wanted`."""

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
        """None where it is not to be had, or is another file than the one that was mapped."""
        try:
            elf = self._finder.open(self.path)
            self._bases = _bases(elf, self.ranges)
            self.remark = difference(elf, self._bases[0], self._memory)
        except StackError as error:
            self.remark = str(error)
            return None
        return elf

    def read(self, row: Mapping, address: int, size: int) -> memoryview:
        """What the core leaves out of `row`; nothing where the process may have changed it, as it does by relocation."""
        if row.writable:
            return NOTHING
        self.wanted = True
        if self.elf is None or self.flags(row) & (PF_R | PF_W) != PF_R:
            return NOTHING
        offset = row.offset + address - row.start
        return self.elf.data[offset : offset + min(size, row.end - address)]

    def flags(self, row: Mapping | FileRange) -> int:
        """The flags of the PT_LOAD that a mapping is of: a file's pages may be in two of them, only addresses tell.

        Code that cannot be read, where there is none.
        """
        at = bisect_right(self._bases, row.start) - 1 if self.elf else -1
        if self.elf is None or at < 0:
            return PF_X
        end = row.end - self._bases[at] + _first_page(self.elf)
        flags = (load.p_flags for load in reversed(self.elf.segments) if load.p_type == PT_LOAD and load.p_vaddr < end)
        return next(flags, PF_X)


def difference(elf: ElfFile, start: int, memory: DumpedMemory) -> str:
    """Raises StackError where a core shows that it was not this file that was mapped from `start`.

    What neither build-id nor first page could tell is the result, else nothing.
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
    """True if they differ only as the dynamic linker changes it: addresses are moved, DT_DEBUG is written."""
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
    """Where each of the places begins at which a file is mapped as an object is. Raises StackError where there is none."""
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
    """The beginning of a file, without the section headers at its end; None where that is not what the page is."""
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
