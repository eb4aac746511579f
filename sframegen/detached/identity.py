"""The file of a detached section: its build-id and load layout, which must both be those of the file that uses it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sframegen.elf.notes import build_id_of
from sframegen.elf.records import PT, ByteOrder

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sframegen.elf.file import ElfFile
    from sframegen.elf.records import Ehdr, Phdr

BUILD_ID_BYTES = range(2, 65)  # linkers make 8 to 32; the first byte names a directory


class LoadExtent(NamedTuple):
    """The fields of a PT_LOAD that must agree."""

    flags: int
    offset: int
    address: int
    file_size: int
    memory_size: int


class Identity(NamedTuple):
    """The build-id alone is not enough: tools that change the layout of a file keep it."""

    build_id: bytes
    byte_order: ByteOrder
    file_type: int
    machine: int
    loads: tuple[LoadExtent, ...]

    def differs_in(self, other: Identity) -> str:
        """Return in what another file differs; "" if a section for one is a section for the other."""
        if self.build_id != other.build_id:
            return "build-id"
        return "" if self == other else "load layout"


def identity_of(elf: ElfFile) -> Identity | None:
    """Return None for a file without a build-id, or with one of an unusable size. Raises FormatError for damaged notes."""
    return identity_with(build_id_of(elf), elf.header, elf.byte_order, elf.segments)


def identity_with(build_id: bytes | None, header: Ehdr, byte_order: ByteOrder, segments: Iterable[Phdr]) -> Identity | None:
    """Return the identity from a file's headers, wherever they were read."""
    if build_id is None or len(build_id) not in BUILD_ID_BYTES:
        return None
    loads = [
        LoadExtent(one.p_flags, one.p_offset, one.p_vaddr, one.p_filesz, one.p_memsz) for one in segments if one.p_type == PT.LOAD
    ]
    return Identity(build_id, byte_order, header.e_type, header.e_machine, tuple(loads))


def path_in_store(build_id: bytes) -> str:
    """The place of a section in a store, as debuggers find debug files: `.build-id/ab/cdef....sframe`."""
    name = build_id.hex()
    return f".build-id/{name[:2]}/{name[2:]}.sframe"
