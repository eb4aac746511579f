"""Finds signatures and checksums of a whole file, which a change invalidates: in the file, its attributes, or beside it."""

from __future__ import annotations

import struct
from pathlib import PurePath
from typing import TYPE_CHECKING, TypeVar

from linker.files.rights import OF_CONTENT, Source, attributes
from sframegen.elf.notes import sound_notes
from sframegen.elf.records import SHT

if TYPE_CHECKING:
    from pathlib import Path

    from sframegen.elf.file import ElfFile, Section

P = TypeVar("P", bound=PurePath)

# At the end of signed kernel modules, and of kernels for kexec on s390x and POWER: a PKCS #7 signature, APPENDED_INFO, the marker.
APPENDED_MARKER = b"~Module signature appended~\n"
APPENDED_INFO = struct.Struct(">5B3xI")  # the last is the size of the signature; big-endian everywhere
SECTIONS = {
    ".signature": "by elfsign",
    ".SUNW_signature": "by Solaris' elfsign",
    "signature": "by bsign",
    ".sha256_sig": "of an AppImage",
    ".codesign": "by OpenHarmony's signing tool",
}
# libgcrypt's checksum of itself for FIPS 140; its build writes the type in big-endian order whatever the machine's.
NOTES = {(b"FDO\0", 0xCAFE2A8E), (b"FDO\0", 0x8E2AFECA)}
BESIDE = (".{name}.hmac", "fipscheck/{name}.hmac")  # FIPS 140: GnuTLS', fipscheck's


def signatures(elf: ElfFile, path: Path, source: Source) -> list[str]:
    """Return signatures and checksums of the file at `path`, held open as `source`, in a few words each."""
    filled = [section.name for section in elf.sections if section.name in SECTIONS and is_filled(elf, section)]
    return [
        *(["a signature appended to it"] if appended_size(elf) else []),
        *(f"a signature {SECTIONS[name]} in {name}" for name in filled),
        *("a FIPS 140 checksum in a note" for note in sound_notes(elf) if (note.name, note.type) in NOTES),
        *(f"its attribute {name}" for name in attributes(source.descriptor) if name in OF_CONTENT),
        *(f"a checksum in {place}" for place in beside(path) if place.exists()),
    ]


def beside(path: P) -> list[P]:
    """Return the paths where a checksum file for `path` would be."""
    places = [path.parent / place.format(name=path.name) for place in BESIDE]
    return [*places, path.with_suffix(".chk")] if path.suffix == ".so" else places  # NSS'


def is_filled(elf: ElfFile, section: Section) -> bool:
    """Return True if the section has a nonzero byte: unsigned AppImages have zeros in place of a signature."""
    header = section.header
    return header.sh_type != SHT.NOBITS and any(elf.slice(header.sh_offset, header.sh_size, section.name))


def appended_size(elf: ElfFile) -> int:
    """Return the size of the signature at the end of the file, in bytes."""
    size = APPENDED_INFO.size + len(APPENDED_MARKER)
    if bytes(elf.data[-len(APPENDED_MARKER) :]) != APPENDED_MARKER:
        return 0
    signature: int = APPENDED_INFO.unpack_from(elf.data, len(elf.data) - size)[-1]
    return min(signature + size, len(elf.data))
