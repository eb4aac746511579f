"""Finds signatures and checksums that a change of the file would invalidate: in the file, its attributes, or files beside it."""

from __future__ import annotations

import struct
from pathlib import PurePath
from typing import TYPE_CHECKING, TypeVar

from linker.files.rights import CONTENT_ATTRIBUTES, Source, list_attributes
from sframegen.elf.notes import read_valid_notes
from sframegen.elf.records import SHT

if TYPE_CHECKING:
    from pathlib import Path

    from sframegen.elf.file import ElfFile, Section

P = TypeVar("P", bound=PurePath)

# Signed kernel modules, and kernels for kexec on s390x and POWER, end with a PKCS #7 signature, APPENDED_INFO and the marker.
APPENDED_MARKER = b"~Module signature appended~\n"
APPENDED_INFO = struct.Struct(">5B3xI")  # struct module_signature; its last field, always big-endian, is the signature's size
SIGNATURE_SECTIONS = {
    ".signature": "by elfsign",
    ".SUNW_signature": "by Solaris' elfsign",
    "signature": "by bsign",
    ".sha256_sig": "of an AppImage",
    ".codesign": "by OpenHarmony's signing tool",
}
# libgcrypt's checksum of itself for FIPS 140. Its build writes the type in big-endian order on all machines.
CHECKSUM_NOTES = {(b"FDO\0", 0xCAFE2A8E), (b"FDO\0", 0x8E2AFECA)}
CHECKSUM_FILES = (".{name}.hmac", "fipscheck/{name}.hmac")  # FIPS 140 checksums of GnuTLS and of fipscheck


def find_signatures(elf: ElfFile, path: Path, source: Source) -> list[str]:
    """Return a few words about each signature and checksum of the file at `path`, which is open as `source`."""
    filled = [section.name for section in elf.sections if section.name in SIGNATURE_SECTIONS and has_nonzero_byte(elf, section)]
    return [
        *(["a signature appended to it"] if appended_signature_size(elf) else []),
        *(f"a signature {SIGNATURE_SECTIONS[name]} in {name}" for name in filled),
        *("a FIPS 140 checksum in a note" for note in read_valid_notes(elf) if (note.name, note.type) in CHECKSUM_NOTES),
        *(f"its attribute {name}" for name in list_attributes(source.descriptor) if name in CONTENT_ATTRIBUTES),
        *(f"a checksum in {checksum}" for checksum in checksum_file_paths(path) if checksum.exists()),
    ]


def checksum_file_paths(path: P) -> list[P]:
    """Return the paths that a checksum file for `path` may have."""
    paths = [path.parent / pattern.format(name=path.name) for pattern in CHECKSUM_FILES]
    return [*paths, path.with_suffix(".chk")] if path.suffix == ".so" else paths  # NSS writes .chk files


def has_nonzero_byte(elf: ElfFile, section: Section) -> bool:
    """Return True if the section has a nonzero byte. In unsigned AppImages, the section for the signature is all zeros."""
    header = section.header
    return header.sh_type != SHT.NOBITS and any(elf.slice(header.sh_offset, header.sh_size, section.name))


def appended_signature_size(elf: ElfFile) -> int:
    """Return the number of bytes that an appended signature and its marker take, 0 without one."""
    size = APPENDED_INFO.size + len(APPENDED_MARKER)
    if bytes(elf.data[-len(APPENDED_MARKER) :]) != APPENDED_MARKER:
        return 0
    signature_size: int = APPENDED_INFO.unpack_from(elf.data, len(elf.data) - size)[-1]
    return min(signature_size + size, len(elf.data))
