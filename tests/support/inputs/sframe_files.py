"""A writer of the smallest ELF files that hold an SFrame section, for any ABI."""

from __future__ import annotations

from pathlib import Path

from sframegen.elf.records import ET, PF, PT, RECORDS, SHF, SHT, Ehdr, Phdr, Shdr
from sframegen.format.abi import Abi

NAMES = b"\0.sframe\0.shstrtab\0"


def write_sframe_elf(path: Path, section: bytes, abi: Abi, address: int) -> Path:
    """A library with nothing but an `.sframe` section that is loaded at `address`, and PT_GNU_SFRAME over it."""
    section_at = 64 + 56
    names_at = section_at + len(section)
    headers_at = (names_at + len(NAMES) + 7) // 8 * 8
    ident = b"\x7fELF" + bytes([2, {"little": 1, "big": 2}[abi.byte_order], 1]) + bytes(9)
    records = {
        0: Ehdr(ident, ET.DYN, abi.machine, 1, 0, 64, headers_at, 0, 64, 56, 1, 64, 3, 2),
        64: Phdr(PT.GNU_SFRAME, PF.R, section_at, address, address, len(section), len(section), 8),
        headers_at: Shdr(*[0] * 10),
        headers_at + 64: Shdr(1, SHT.GNU_SFRAME, SHF.ALLOC, address, section_at, len(section), 0, 0, 8, 0),
        headers_at + 128: Shdr(9, SHT.STRTAB, 0, 0, names_at, len(NAMES), 0, 0, 1, 0),
    }
    data = bytearray(headers_at + 192)
    data[section_at:headers_at] = (section + NAMES).ljust(headers_at - section_at, b"\0")
    for offset, record in records.items():
        RECORDS[type(record), abi.byte_order].pack_into(data, offset, *record)
    path.write_bytes(data)
    return path
