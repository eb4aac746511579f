"""Sections compressed with zstd, as other tools leave them."""

from __future__ import annotations

from pathlib import Path

from sframegen.elf.compressed import import_zstd
from sframegen.elf.file import open_elf
from sframegen.elf.records import SHDR_SIZE, SHF, ByteOrder, Chdr, pack_records
from sframegen.format.locate import find_unloaded_section

zstd = import_zstd()
ELFCOMPRESS_ZSTD = 2


def compressed(contents: bytes, order: ByteOrder) -> bytes:
    return pack_records([Chdr(ELFCOMPRESS_ZSTD, 0, len(contents), 8)], order) + bytes(zstd.compress(contents, 19))


def compress_section(file: Path) -> None:
    """Compress the unloaded SFrame section of a file, in its place. An undo record is then no longer valid."""
    elf = open_elf(file)
    section = find_unloaded_section(elf)
    assert section is not None
    header, data = section.header, bytearray(elf.data)
    contents = bytes(elf.contents(section))
    new = compressed(contents, elf.byte_order)
    assert len(new) <= len(contents)
    data[header.sh_offset : header.sh_offset + len(contents)] = new.ljust(len(contents), b"\0")
    at = elf.header.e_shoff + section.number * SHDR_SIZE
    data[at : at + SHDR_SIZE] = pack_records([header._replace(sh_flags=SHF.COMPRESSED, sh_size=len(new))], elf.byte_order)
    file.write_bytes(data)
