"""The reader of ELF files: tables, names, notes, symbols, executable ranges, contents of sections, where the CFI is."""

from __future__ import annotations

from contextlib import suppress

from sframegen.base.errors import FormatError
from sframegen.code.context.plt import find_plt
from sframegen.conversion.cfi_sections import find_sources
from sframegen.elf.file import ElfFile
from sframegen.elf.notes import read_build_id, read_debug_link, read_notes
from sframegen.elf.records import SHT
from sframegen.elf.symbols import MAX_NAME, find_functions_named, last_functions_before, sorted_functions
from sframegen.format.abi import abi_of
from sframegen.format.locate import open_joined_sections, open_sframe

SEEDS = (
    "program", "big-endian", "tail", "no-sections", "many-sections", "many-segments", "injected",
    "gcc-library", "gcc-program", "gcc-stripped", "gcc-debug", "gcc-compressed", "gcc-object",
)  # fmt: skip


def run(data: bytes) -> None:
    with suppress(FormatError):
        elf = ElfFile(memoryview(data), "file")
        for part in (notes, symbols, addresses, contents, plt, find_sources, open_sframe, open_joined_sections):
            with suppress(FormatError):
                part(elf)


def notes(elf: ElfFile) -> None:
    list(read_notes(elf))
    read_build_id(elf)
    read_debug_link(elf)


def symbols(elf: ElfFile) -> None:
    functions = sorted_functions(elf)
    ends = [symbol.address + symbol.size for symbol in functions]
    assert {symbol.address for symbol in last_functions_before(elf, ends)} <= {symbol.address for symbol in functions}
    for symbol in functions:
        name = symbol.name.encode(errors="surrogateescape")
        assert not name or symbol.is_named(name) or "\ufffd" in symbol.name or len(name) >= MAX_NAME
    list(find_functions_named(elf, b"leaf"))


def addresses(elf: ElfFile) -> None:
    for start, end in elf.executable_ranges():
        assert start < end
        with suppress(FormatError):
            elf.at(start, min(end - start, 16))


def plt(elf: ElfFile) -> None:
    table = find_plt(elf, abi_of(elf)).make_functions()
    assert list(table.start) == sorted(table.start)


def contents(elf: ElfFile) -> None:
    for section in elf.sections[:100]:
        with suppress(FormatError):
            if section.header.sh_type != SHT.NOBITS:
                elf.contents(section)
