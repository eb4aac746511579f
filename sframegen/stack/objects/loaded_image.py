"""A loaded ELF object: its program headers, read from the memory of the process, and the address where it is loaded.

The input is an executable mapping. The headers are read from the mappings of the same file, or from the file. The segment whose
bytes the mapping has then gives the bias: the load address minus the link-time address. Code in anonymous memory may have been
moved there from a file that is mapped around it: then it is compared with the file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sframegen.base.errors import FormatError
from sframegen.detached.detached_file import Identity, make_identity
from sframegen.elf.file import ElfFile
from sframegen.elf.notes import parse_notes, select_build_id
from sframegen.elf.records import EHDR_SIZE, PF, PHDR_SIZE, PN_XNUM, PT, RECORDS, SHDR_SIZE, Ehdr, Phdr, Shdr
from sframegen.stack.mappings import MAX_VDSO, VDSO, Mapping
from sframegen.stack.walking.frames import ADDRESS_MASK

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from sframegen.stack.snapshot import MovedCode, Snapshot

PAGE_MASK = 0xFFF
MAX_SEGMENTS = 1 << 17  # twice the largest e_phnum
CHECKED_CODE = 64  # bytes of moved code by which a known object is recognised
MAX_NOTES = 1024  # bytes of notes that identify an object; the build-id is among the first


@dataclass
class LoadedImage:
    """An object that a process has loaded. `row`: one of its mappings. `bias`: the load address minus the link-time address.

    `checked_bytes`: (address, bytes), by which a later look at the memory can tell whether the object is still there.
    """

    row: Mapping
    header: Ehdr
    segments: list[Phdr]
    bias: int
    file: ElfFile | None  # None if it cannot be opened
    checked_bytes: list[tuple[int, bytes]] = field(default_factory=list)

    def address(self, vaddr: int) -> int:
        """Return the run-time address of a link-time address."""
        return self.bias + vaddr & ADDRESS_MASK


def file_identity(file: ElfFile) -> Hashable:
    """Return a key for a file that is the same when it is opened again, so that results can be cached under it."""
    status = file.status
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns) if status else bytes(file.data)


def read_identity(image: LoadedImage, snapshot: Snapshot) -> Identity | None:
    """Read from memory what a detached section for the object must match: its build-id, header and segments; None without one."""
    notes = [segment for segment in image.segments if segment.p_type == PT.NOTE]
    for segment in notes:
        raw = snapshot.memory.read(image.address(segment.p_vaddr), min(segment.p_filesz, MAX_NOTES))
        try:
            build_id = select_build_id(parse_notes(memoryview(raw), snapshot.abi.byte_order, segment.p_align))
        except FormatError:  # the notes are cut off or damaged
            continue
        if build_id is not None:
            return make_identity(build_id, image.header, snapshot.abi.byte_order, image.segments)
    return None


def read_loaded_image(snapshot: Snapshot, row: Mapping, moved: MovedCode) -> LoadedImage | None:
    """Return the ELF object that an executable mapping belongs to; None for code without one."""
    if not row.inode and row.path != VDSO:
        return _find_moved_image(snapshot, row, moved)
    return _read_image(snapshot, row, PF.X)


def _find_moved_image(snapshot: Snapshot, row: Mapping, moved: MovedCode) -> LoadedImage | None:
    """Return the object whose code a program has moved to huge pages in anonymous memory.

    It is the file mapped around the code, which must equal the file's code byte for byte.
    """
    compared: set[Hashable] = set()
    for other in snapshot.mappings.nearest_rows(row):
        image = _read_image(snapshot, other, 0)
        if image is None or image.file is None or (other.file, image.bias) in compared:
            continue
        compared.add((other.file, image.bias))
        for segment in image.segments:
            code_start, code_end = image.address(segment.p_vaddr), image.address(segment.p_vaddr + segment.p_filesz)
            is_code = segment.p_type == PT.LOAD and segment.p_flags & PF.X
            if is_code and code_start & ~PAGE_MASK <= row.start < row.end <= (code_end + PAGE_MASK) & ~PAGE_MASK:
                start, end = max(code_start, row.start), min(code_end, row.end)
                offset = segment.p_offset + start - code_start
                code = image.file.data[offset : offset + end - start]
                if len(code) == end - start and moved.is_same(snapshot.memory.read, start, code):
                    image.checked_bytes.append((start, bytes(code[:CHECKED_CODE])))
                    return image
    return None


def _read_image(snapshot: Snapshot, row: Mapping, flags: int) -> LoadedImage | None:
    """Return the object of a file's mapping, which must be of a segment with these flags; None if there is none."""
    reader = _Reader(snapshot, row)
    try:
        header, segments = reader.headers()
    except FormatError:
        return None
    bias = _find_bias(segments, row, flags)
    if bias is None:
        return None
    image = LoadedImage(row, header, segments, bias, reader.file, reader.checked_bytes)
    for segment in segments:
        if segment.p_type == PT.NOTE:
            address, size = image.address(segment.p_vaddr), min(segment.p_filesz, MAX_NOTES)
            image.checked_bytes.append((address, snapshot.memory.read(address, size)))
    return image


def _find_bias(segments: Iterable[Phdr], row: Mapping, flags: int) -> int | None:
    """Return the bias, computed from the segment with these flags whose bytes are mapped; None without such a segment."""
    end = row.offset + row.end - row.start
    for segment in segments:
        is_mapped = segment.p_offset & ~PAGE_MASK < end and row.offset < segment.p_offset + segment.p_filesz
        if segment.p_type == PT.LOAD and segment.p_flags & flags == flags and is_mapped:
            return row.start - (segment.p_vaddr - segment.p_offset + row.offset) & ADDRESS_MASK
    return None


class _Reader:
    """Reads an object's headers: from memory if they are mapped, else from the file."""

    def __init__(self, snapshot: Snapshot, row: Mapping) -> None:
        self.snapshot = snapshot
        self.checked_bytes: list[tuple[int, bytes]] = []
        self.rows = snapshot.mappings.nearest_rows_of_file(row)  # the nearest first, because a file can be loaded twice
        self.file = self._read_vdso(row) if row.path == VDSO else snapshot.file_of(row)

    def headers(self) -> tuple[Ehdr, list[Phdr]]:
        """Return the ELF header and the segments. Raises FormatError if there are none.

        If the file's headers differ from those in memory, the file was replaced: from then on it is ignored.
        """
        abi = self.snapshot.abi
        raw = self._read(0, EHDR_SIZE)
        if raw[:5] != b"\x7fELF\2":
            raise FormatError("not a 64-bit ELF file")
        header = Ehdr(*RECORDS[Ehdr, abi.byte_order].unpack(raw))
        count = header.e_phnum
        if count == PN_XNUM:
            count = Shdr(*RECORDS[Shdr, abi.byte_order].unpack(self._read(header.e_shoff, SHDR_SIZE))).sh_info
        if header.e_machine != abi.machine or header.e_phentsize != PHDR_SIZE or not 0 < count <= MAX_SEGMENTS:
            raise FormatError("its program headers are not readable")
        table = self._read(header.e_phoff, count * PHDR_SIZE)
        if self.file is not None:
            data = self.file.data
            if data[:EHDR_SIZE] != raw or data[header.e_phoff : header.e_phoff + len(table)] != table:
                self.file = None
        return header, list(map(Phdr._make, RECORDS[Phdr, abi.byte_order].iter_unpack(table)))

    def _read(self, offset: int, size: int) -> bytes:
        """Return bytes at an offset of the file, from memory or from the file. Raises FormatError if they are in neither."""
        for row in self.rows:
            if row.readable and row.offset <= offset and offset + size <= row.offset + row.end - row.start:
                address = row.start + offset - row.offset
                data = self.snapshot.memory.read(address, size)
                if len(data) == size:
                    self.checked_bytes.append((address, data))
                    return data
        if self.file is None:
            raise FormatError("not mapped, and there is no file")
        return bytes(self.file.slice(offset, size, "headers"))

    def _read_vdso(self, row: Mapping) -> ElfFile | None:
        data = self.snapshot.memory.read(row.start, min(row.end - row.start, MAX_VDSO))
        try:
            return ElfFile(memoryview(data), VDSO)
        except FormatError:
            return None
