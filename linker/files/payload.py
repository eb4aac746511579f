"""Data after the ELF image in a file: the content of self-extracting programs and AppImages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from linker.files.signatures import appended_size
from sframegen.base.errors import Refusal, RefusedError
from sframegen.elf.records import EHDR_SIZE, PHDR_SIZE, SHDR_SIZE, SHT

if TYPE_CHECKING:
    from sframegen.elf.file import ElfFile

CHUNK = 1 << 20
# By first bytes; zeros may precede them.
KINDS = {
    b"PK\3\4": "a zip archive",
    b"hsqs": "a squashfs image, as in AppImages",
    b"DWARFS": "a DwarFS image, as in AppImages",
    b"\x1f\x8b": "gzip data",
    b"\xfd7zXZ": "xz data",
    b"\x28\xb5\x2f\xfd": "zstd data",
    b"7z\xbc\xaf": "a 7z archive",
}


def image_end(elf: ElfFile) -> int:
    """Return the file offset after everything that the headers name."""
    sections = [s.header for s in elf.sections if s.header.sh_type not in (SHT.NULL, SHT.NOBITS)]
    return max(
        EHDR_SIZE,
        elf.header.e_phoff + elf.phnum * PHDR_SIZE,
        elf.header.e_shoff + elf.shnum * SHDR_SIZE,
        *(s.p_offset + s.p_filesz for s in elf.segments),
        *(s.sh_offset + s.sh_size for s in sections),
    )


def check_end(elf: ElfFile) -> None:
    """Raises RefusedError where something other than zeros and a signature follows the image.

    Its readers look for it from the end of the file (zip), after the section headers (AppImages), or at an offset stored
    somewhere: no place for a segment suits them all.
    """
    start, end = image_end(elf), len(elf.data) - appended_size(elf)
    for at in range(start, end, CHUNK):
        piece = bytes(elf.data[at : min(at + CHUNK, end)])
        content = piece.lstrip(b"\0")
        if content:
            kind = next((f", {name}" for magic, name in KINDS.items() if content.startswith(magic)), "")
            raise RefusedError(
                Refusal.APPENDED_DATA,
                f"{end - start} bytes follow the ELF image at {start:#x}{kind}: they would not be found after a section; "
                "add it before they are appended",
                file=elf.name,
            )
