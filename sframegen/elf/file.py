"""Opens and memory-maps 64-bit ELF files: gives their headers, segments and sections, and bytes by offset or address."""

from __future__ import annotations

import errno
import io
import mmap
import os
import stat
from bisect import bisect_right
from contextlib import contextmanager
from functools import cached_property
from itertools import count
from types import MappingProxyType

from sframegen.base.errors import FormatError
from sframegen.base.quick_typing import TYPE_CHECKING, BinaryIO, NamedTuple
from sframegen.elf.compressed import ELFCOMPRESS_ZLIB, decompress
from sframegen.elf.records import (
    ADDRESS_SPACE,
    CHDR_SIZE,
    EHDR_SIZE,
    PF,
    PHDR_SIZE,
    PN_XNUM,
    PT,
    RECORDS,
    SHF,
    SHN,
    SHT,
    ByteOrder,
    Chdr,
    Ehdr,
    Phdr,
    R,
    Shdr,
    read_strings,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from sframegen.elf.ranges import Range

# The tool that unpacks a compressed file, by magic number. Kernel modules are often stored compressed.
UNPACKERS = {b"\xfd7zXZ\0": "unxz", b"\x28\xb5\x2f\xfd": "unzstd", b"\x1f\x8b": "gunzip"}
# The fields of e_ident by offset, and the class of 64-bit files.
EI_CLASS, EI_DATA, EI_VERSION, ELFCLASS64 = 4, 5, 6, 2


class Relocated(NamedTuple):
    """The offsets of relocated fields in one section: those filled in, and those whose value is unknown."""

    filled: set[int]
    unknown: set[int]


class Externals(NamedTuple):
    """The functions that an object refers to but does not define. Its image in memory has invented addresses for them.

    `stubs`, `pointers`: by invented address, the name of the function there, or of the function that the pointer there leads to.
    `unresolved`: addresses of fields whose relocation was not applied.
    """

    stubs: Mapping[int, str] = MappingProxyType({})
    pointers: Mapping[int, str] = MappingProxyType({})
    unresolved: frozenset[int] = frozenset()


class Section(NamedTuple):
    """A section header with its number and name."""

    number: int
    name: str
    header: Shdr


class ElfFile:
    """A 64-bit ELF file in a read-only view of its bytes. Raises FormatError if its headers or tables are damaged."""

    def __init__(
        self, data: memoryview, name: str = "", status: os.stat_result | None = None, descriptor: int | None = None
    ) -> None:
        self.name = name
        self.data = data
        self.status = status  # the file's status when it was opened; None for bytes that are not in a file
        self.descriptor = descriptor  # the open file's descriptor, which the opener closes
        # Only for the image of a relocatable object: code whose address is not final (see Sources), the relocated fields of CFI
        # sections by section number, and the functions that its code refers to.
        self.floating: Sequence[Range] = ()
        self.relocated: Mapping[int, Relocated] | None = None
        self.externals = Externals()
        self.byte_order = self._identify()
        self.header = self.record(Ehdr, 0, "ELF header")
        self.shnum, self.shstrndx, self.phnum = self._read_counts()
        self.segments = self._read_table(Phdr, self.header.e_phoff, self.phnum, "program header table")
        self._loads = sorted((load for load in self.segments if load.p_type == PT.LOAD), key=lambda load: load.p_vaddr)
        self.sections = self._name_sections(self._read_table(Shdr, self.header.e_shoff, self.shnum, "section header table"))

    def error(self, message: str, place: str = "", offset: int | None = None) -> FormatError:
        return FormatError(message, place, offset, self.name)

    def record(self, kind: type[R], offset: int, place: str) -> R:
        """Return the record of type `kind` at a file offset. `place`: the name of its table, for messages."""
        code = RECORDS[kind, self.byte_order]
        if offset + code.size > len(self.data):
            raise self.error(f"expected {code.size} bytes, have {max(0, len(self.data) - offset)}", place, 0)
        return kind(*code.unpack_from(self.data, offset))

    def slice(self, offset: int, size: int, place: str) -> memoryview:
        """Return `size` bytes of the file. Raises FormatError if they reach past its end."""
        if offset + size > len(self.data):
            raise self.error(f"{size} bytes at file offset {offset:#x} reach past the end of the file ({len(self.data):#x})", place)
        return self.data[offset : offset + size]

    # -- sections and segments

    def section(self, name: str) -> Section | None:
        return next((section for section in self.sections if section.name == name), None)

    def contents(self, section: Section) -> memoryview:
        """Return a section's bytes, decompressed if they are compressed (zlib, zstd, or the older .zdebug form)."""
        header = section.header
        if header.sh_type == SHT.NOBITS:
            raise self.error("section has no bytes in the file", section.name)
        raw = self.slice(header.sh_offset, header.sh_size, section.name)
        if header.sh_flags & SHF.COMPRESSED:
            chdr = self._compression(section)
            return self._expand(chdr.ch_type, raw[CHDR_SIZE:], chdr.ch_size, section.name)
        if section.name.startswith(".zdebug") and bytes(raw[:4]) == b"ZLIB":  # then the size, and the data from byte 12 on
            return self._expand(ELFCOMPRESS_ZLIB, raw[12:], int.from_bytes(raw[4:12], "big"), section.name)
        return raw

    def contents_size(self, section: Section) -> int:
        """Return the size of `contents` without decompressing the section, which must not be in .zdebug form."""
        return self._compression(section).ch_size if section.header.sh_flags & SHF.COMPRESSED else section.header.sh_size

    def _compression(self, section: Section) -> Chdr:
        header = section.header
        if header.sh_size < CHDR_SIZE:
            raise self.error(f"expected {CHDR_SIZE} bytes of compression header, have {header.sh_size}", section.name, 0)
        return self.record(Chdr, header.sh_offset, section.name)

    def stored_contents(self, section: Section) -> memoryview:
        """Return a section's bytes as stored, perhaps compressed; an empty view if it has none in the file."""
        header = section.header
        size = 0 if header.sh_type in (SHT.NULL, SHT.NOBITS) else header.sh_size
        return self.slice(header.sh_offset, size, section.name)

    def at(self, address: int, size: int) -> memoryview:
        """Return `size` bytes at a link-time address. Raises FormatError if no single PT_LOAD has all of them in the file."""
        index = bisect_right(self._loads, address, key=lambda load: load.p_vaddr) - 1
        if index >= 0:
            load = self._loads[index]
            if address + size <= load.p_vaddr + load.p_filesz:
                return self.slice(load.p_offset + address - load.p_vaddr, size, "PT_LOAD")
        raise self.error(f"no segment maps {size} bytes at address {address:#x}", "program header table")

    def executable_ranges(self) -> list[Range]:
        """Return the ascending (start, end) addresses of executable PT_LOADs, without ELF header and program header table."""
        header = self.header
        tables = max(EHDR_SIZE, header.e_phoff + self.phnum * PHDR_SIZE if header.e_phoff == EHDR_SIZE else 0)
        ranges = []
        for load in self.executable_loads():
            if load.p_vaddr + load.p_filesz >= ADDRESS_SPACE:
                raise self.error(f"PT_LOAD at {load.p_vaddr:#x} has no valid size", "program header table")
            skip = max(0, tables - load.p_offset)
            if skip < load.p_filesz:
                ranges.append((load.p_vaddr + skip, load.p_vaddr + load.p_filesz))
        return sorted(ranges)

    def executable_loads(self) -> list[Phdr]:
        """Return the executable PT_LOADs that have bytes in the file, by ascending address."""
        return [load for load in self._loads if load.p_flags & PF.X and load.p_filesz]

    @cached_property
    def relocation_tables(self) -> dict[int, list[Section]]:
        """The relocation sections, of any type, by the number of the section that they apply to."""
        tables: dict[int, list[Section]] = {}
        for section in self.sections:
            if section.header.sh_type in (SHT.RELA, SHT.REL, SHT.CREL) or section.header.sh_flags & SHF.INFO_LINK:
                tables.setdefault(section.header.sh_info, []).append(section)
        return tables

    # -- reading the tables

    def _identify(self) -> ByteOrder:
        ident = bytes(self.data[:16])
        if ident[:4] != b"\x7fELF":
            tool = next((tool for magic, tool in UNPACKERS.items() if ident.startswith(magic)), None)
            raise self.error("not an ELF file" if tool is None else f"compressed: unpack it with {tool} first")
        if len(self.data) < EHDR_SIZE:
            raise self.error(f"expected {EHDR_SIZE} bytes, have {len(self.data)}", "ELF header", 0)
        elf_class, data, ident_version = ident[EI_CLASS], ident[EI_DATA], ident[EI_VERSION]
        if elf_class != ELFCLASS64:
            raise self.error("a 32-bit ELF file: SFrame is for 64-bit ABIs" if elf_class == 1 else f"unknown ELF class {elf_class}")
        if data not in (1, 2):
            raise self.error(f"unknown byte order {data}", "ELF header", EI_DATA)
        if ident_version != 1:
            raise self.error(f"unknown ELF version {ident_version}", "ELF header", EI_VERSION)
        return "little" if data == 1 else "big"

    def _read_counts(self) -> tuple[int, int, int]:
        """Return (shnum, shstrndx, phnum). Section header 0 has the numbers that are too large for the ELF header."""
        header = self.header
        shnum, shstrndx, phnum = header.e_shnum, header.e_shstrndx, header.e_phnum
        if header.e_shoff and (shnum == 0 or shstrndx == SHN.XINDEX or phnum == PN_XNUM):
            section_0 = self.record(Shdr, header.e_shoff, "section header table")
            shnum = shnum or section_0.sh_size
            shstrndx = section_0.sh_link if shstrndx == SHN.XINDEX else shstrndx
            phnum = section_0.sh_info if phnum == PN_XNUM else phnum
        return (shnum if header.e_shoff else 0), shstrndx, (phnum if header.e_phoff else 0)

    def _read_table(self, kind: type[R], offset: int, count: int, place: str) -> list[R]:
        code = RECORDS[kind, self.byte_order]
        entry_size = self.header.e_phentsize if kind is Phdr else self.header.e_shentsize
        if count and entry_size != code.size:
            raise self.error(f"entries of {entry_size} bytes, expected {code.size}", place)
        return list(map(kind._make, code.iter_unpack(self.slice(offset, count * code.size, place))))

    def _name_sections(self, headers: list[Shdr]) -> list[Section]:
        if not headers or self.shstrndx == SHN.UNDEF:
            return [Section(number, "", header) for number, header in enumerate(headers)]
        if self.shstrndx >= len(headers):
            raise self.error(f"names are in section {self.shstrndx} of {len(headers)}", "section header table")
        strings = headers[self.shstrndx]
        table = bytes(self.slice(strings.sh_offset, strings.sh_size, "section names"))
        offsets = tuple([header.sh_name for header in headers])
        if max(offsets) >= len(table):
            bad = next(number for number, offset in enumerate(offsets) if offset >= len(table))
            raise self.error(f"name of section {bad} is outside the table of names", "section names", offsets[bad])
        try:
            return list(map(Section, count(), read_strings(table, offsets), headers))
        except FormatError as error:
            raise self.error(error.message, "section names") from error

    def _expand(self, kind: int, raw: memoryview, size: int, place: str) -> memoryview:
        try:
            return decompress(kind, raw, size)
        except ValueError as error:
            raise self.error(str(error), place) from error


def open_elf(path: str | Path) -> ElfFile:
    """Open and map the ELF file at `path`. Raises FormatError, or OSError if it cannot be opened."""
    data, status = map_file(path)
    return ElfFile(data, str(path), status)


@contextmanager
def opened_elf(path: str | Path) -> Iterator[ElfFile]:
    """Yield the ElfFile of `open_elf`, with its descriptor open until the end of the block. Raises as `open_elf` does."""
    descriptor = open_regular(os.fspath(path), str(path))
    try:
        data, status = map_descriptor(descriptor, str(path))
        yield ElfFile(data, str(path), status, descriptor)
    finally:
        os.close(descriptor)


PIPE_BYTES = 1 << 16  # a pipe's capacity


def open_regular(name: str, display_path: str, flags: int = 0, *, directory: int | None = None) -> int:
    """Open a regular file and return its descriptor. `display_path`: its name in errors. Raises FormatError for others, OSError."""
    try:  # O_NONBLOCK, because opening a FIFO would wait for a writer
        descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | flags, dir_fd=directory)
    except OSError as error:
        raise OSError(error.errno, error.strerror, display_path) from error
    try:
        check_regular(os.fstat(descriptor).st_mode, display_path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def open_text(path: str | os.PathLike[str], most: int, newline: str | None = None) -> io.TextIOWrapper:
    """Open a user's text file: a regular file, or a pipe such as `<(command)` that yields at most `most` bytes.

    `newline`: as for open(). Raises FormatError for longer pipes and other kinds of files, and OSError.
    """
    display_path = os.fsdecode(path)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISFIFO(mode):
            beginning = _first_bytes(descriptor, display_path)
        else:
            check_regular(mode, display_path)
    except BaseException:
        os.close(descriptor)
        raise
    file: BinaryIO = os.fdopen(descriptor, "rb")
    if stat.S_ISFIFO(mode):
        with file:
            data = beginning + file.read(max(most + 1 - len(beginning), 0))
        if len(data) > most:
            raise FormatError(f"more than {most:,} bytes come from this pipe: write them to a file", file=display_path)
        file = io.BytesIO(data)
    return io.TextIOWrapper(file, encoding="utf-8", errors="surrogateescape", newline=newline)


def _first_bytes(pipe: int, display_path: str) -> bytes:
    """Return the bytes that a pipe has now, and make later reads block. Raises FormatError for a FIFO without a writer."""
    try:
        beginning = os.read(pipe, PIPE_BYTES)
        if not beginning and not os.readlink(f"/proc/self/fd/{pipe}").startswith("pipe:"):  # noqa: PTH115 - without pathlib, which takes longer
            raise FormatError("nobody writes to this FIFO", file=display_path)
    except BlockingIOError:  # there is a writer, which has not written yet
        beginning = b""
    os.set_blocking(pipe, True)
    return beginning


def check_regular(mode: int, display_path: str) -> None:
    """Raise an error unless the file is a regular one: OSError for a directory, otherwise FormatError."""
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), display_path)
    if not stat.S_ISREG(mode):
        raise FormatError("not a regular file", file=display_path)


def map_descriptor(descriptor: int, display_path: str, *, small: int = 0) -> tuple[memoryview, os.stat_result]:
    """Return the bytes of an open file, mapped read-only, and its status. Raises FormatError if it is empty, and OSError.

    Files of at most `small` bytes are read instead of mapped, which is faster when there are thousands of them.
    """
    status = os.fstat(descriptor)
    if status.st_size == 0:
        raise FormatError("the file is empty", file=display_path)
    if status.st_size > small:
        try:
            return memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)), status
        except ValueError as error:  # after os.fstat, the file was truncated to 0 bytes
            raise FormatError("the file is empty", file=display_path) from error
    return memoryview(os.pread(descriptor, status.st_size, 0)), status


def read_beginning(name: str, display_path: str, size: int, flags: int = 0, *, directory: int | None = None) -> bytes:
    """Return up to `size` bytes from the start of a file. Parameters and errors are those of `open_regular`."""
    descriptor = open_regular(name, display_path, flags, directory=directory)
    try:
        return os.pread(descriptor, size, 0)
    finally:
        os.close(descriptor)


def map_file(path: str | Path, *, small: int = 0) -> tuple[memoryview, os.stat_result]:
    """Open the file at `path`, map it as `map_descriptor` does, and close it. Raises FormatError, or OSError if that fails."""
    descriptor = open_regular(os.fspath(path), str(path))
    try:
        return map_descriptor(descriptor, str(path), small=small)
    finally:
        os.close(descriptor)
