"""Makes a relocatable object with the SFrame section of a linked image, which the next link of the image includes.

Later links may move output sections, but not the code within them. So each function's start is relative to a symbol at the start
of its output section, such as `_stext` in a kernel, and nothing else in the section depends on addresses. The section is plain
data with a name of its own, because GNU ld rewrites the input of an output section named `.sframe`, and refuses Version 3 before
2.46.
"""

from __future__ import annotations

import struct
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from linker.objects.function_places import start_relocation
from sframegen.elf.ranges import align_up, index_of_containing_range
from sframegen.elf.records import (
    EHDR_SIZE,
    ET,
    RELA_SIZE,
    SHDR_SIZE,
    SHF,
    SHN,
    SHT,
    STB,
    STRUCT_BYTE_ORDERS,
    SYM_SIZE,
    UNUSED_SECTION,
    Rela,
    Shdr,
    Sym,
    pack_records,
)
from sframegen.elf.symbols import MAX_NAME, SymbolTable, find_addresses_named, symbol_tables
from sframegen.format.layouts import HEADER_SIZE
from sframegen.format.locate import IMAGE_SECTION

if TYPE_CHECKING:
    from pathlib import Path

    from sframegen.elf.file import ElfFile
    from sframegen.format.encode import Encoder

NAMES = (IMAGE_SECTION, f".rela{IMAGE_SECTION}", ".symtab", ".strtab", ".note.GNU-stack")
ALIGN = 8


class Anchors:
    """The symbols at the starts of an image's code sections, to which relocations can refer."""

    def __init__(self, elf: ElfFile) -> None:
        """Choose the shortest name of the global symbols at each code section's start. Raises FormatError without symbols."""
        self._elf = elf
        code = [section for section in elf.sections if section.header.sh_flags & SHF.EXECINSTR and section.header.sh_size]
        self._sections = sorted(code, key=lambda section: section.header.sh_addr)
        self._ranges = [(s.header.sh_addr, s.header.sh_addr + s.header.sh_size) for s in self._sections]
        starts = {section.header.sh_addr for section in code}
        table = next(symbol_tables(elf), None)
        if table is None:
            raise elf.error("no symbol table: give the image that its first link made, before it is stripped")
        symbols = SymbolTable(elf, table)
        candidates: dict[int, list[bytes]] = {}
        for name, info, _, section, value, _ in symbols.rows():
            if value in starts and info >> 4 != STB.LOCAL and SHN.UNDEF < section < SHN.LORESERVE:
                candidates.setdefault(value, []).append(symbols.name_bytes(name))
        candidates = {start: [name for name in names if 0 < len(name) < MAX_NAME] for start, names in candidates.items()}
        self._names = {start: min(names, key=lambda name: (len(name), name)) for start, names in candidates.items() if names}

    def symbol_and_addend(self, address: int) -> tuple[bytes, int]:
        """Return (symbol, addend) for an address in code. Raises FormatError if no symbol is at the start of its section."""
        number = index_of_containing_range(self._ranges, address)
        if number is None:
            raise self._elf.error(f"no section holds the function at {address:#x}")
        start, _ = self._ranges[number]
        if start not in self._names:
            name = self._sections[number].name
            raise self._elf.error(f"no global symbol at its start, {start:#x}: define one in the linker script", name)
        return self._names[start], address - start


def make_linkable_object(elf: ElfFile, encoder: Encoder) -> bytes:
    """Return the object's bytes. Raises FormatError if the code section of a function has no symbol at its start."""
    order, layout, anchors = elf.byte_order, encoder.layout, Anchors(elf)
    relocation_type = start_relocation(encoder.abi.sframe_id, layout.start_width)
    numbers: dict[bytes, int] = {}  # symbol's name -> its number
    relocations = []
    for function, start in enumerate(encoder.table.start):
        symbol, addend = anchors.symbol_and_addend(start)
        number = numbers.setdefault(symbol, len(numbers) + 1)
        relocations.append(Rela(HEADER_SIZE + function * layout.index_size, number << 32 | relocation_type, addend))
    names = [b"", *(name.encode() for name in NAMES), *numbers]  # of sections, then of symbols: one string table has both
    name_table = b"".join(name + b"\0" for name in names)
    name_offsets = list(accumulate((len(name) + 1 for name in names), initial=0))
    symbol_names = name_offsets[1 + len(NAMES) : -1]
    symbols = [Sym(0, 0, 0, 0, 0, 0), *(Sym(offset, STB.GLOBAL << 4, 0, SHN.UNDEF, 0, 0) for offset in symbol_names)]
    contents = [bytes(encoder.encode_unplaced()), pack_records(relocations, order), pack_records(symbols, order), name_table, b""]
    data, extents = bytearray(EHDR_SIZE), []
    for content in contents:
        data += bytes(align_up(len(data), ALIGN) - len(data))
        extents.append((len(data), len(content)))
        data += content
    header_fields = (  # type, flags, link, info, alignment, entry size
        (SHT.PROGBITS, SHF.ALLOC, 0, 0, ALIGN, 0),
        (SHT.RELA, SHF.INFO_LINK, 3, 1, ALIGN, RELA_SIZE),
        (SHT.SYMTAB, 0, 4, 1, ALIGN, SYM_SIZE),
        (SHT.STRTAB, 0, 0, 0, 1, 0),
        (SHT.PROGBITS, 0, 0, 0, 1, 0),
    )
    headers = [UNUSED_SECTION]
    for name, extent, (section_type, flags, *others) in zip(name_offsets[1 : 1 + len(NAMES)], extents, header_fields, strict=True):
        headers.append(Shdr(name, section_type, flags, 0, *extent, *others))
    data += bytes(align_up(len(data), ALIGN) - len(data))
    header = elf.header._replace(
        e_type=ET.REL, e_entry=0, e_phoff=0, e_phentsize=0, e_phnum=0, e_shoff=len(data), e_shentsize=SHDR_SIZE,
        e_shnum=len(headers), e_shstrndx=4,
    )  # fmt: skip
    data[:EHDR_SIZE] = pack_records([header], order)
    return bytes(data) + pack_records(headers, order)


def check_linkable(elf: ElfFile, encoder: Encoder, written: Path) -> list[str]:
    """Return findings about a written object, as pyelftools reads it: its contents, and each function's address in the image."""
    from elftools.elf.elffile import ELFFile  # noqa: PLC0415 - only where results are read back

    with written.open("rb") as stream:
        file: Any = ELFFile(stream)
        section, rela, symbols, strings = (file.get_section_by_name(name) for name in NAMES[:4])
        if section["sh_type"] != "SHT_PROGBITS" or section["sh_flags"] != SHF.ALLOC or section["sh_addralign"] != ALIGN:
            return [f"the header of {IMAGE_SECTION} is not the planned one"]
        text = strings.data()
        ends = ((at, text.find(b"\0", at)) for at in (symbol["st_name"] for symbol in symbols.iter_symbols()))
        names = [text[at:end] for at, end in ends]  # as bytes: they need not be UTF-8
        addresses = find_addresses_named(elf, names)
        rows = struct.iter_unpack(f"{STRUCT_BYTE_ORDERS[elf.byte_order]}QQq", rela.data())
        starts = [addresses[names[info >> 32]] + addend for _, info, addend in rows]
        findings = ["the function starts are not the planned ones"] * (starts != encoder.table.start.tolist())
        return findings + [f"{IMAGE_SECTION} is not the planned one"] * (section.data() != bytes(encoder.encode_unplaced()))
