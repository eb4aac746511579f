"""Objects of the usual form, which compiled code reads: it says what the readers of all objects say, or nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from linker.merge.inputs import InputObject, ObjectReader, UnusualObject, UsualObject
from sframegen import add_section
from sframegen.base.errors import FormatError
from sframegen.elf.file import ElfFile
from sframegen.format.abi import AARCH64, AMD64, Abi
from tests.fuzz.seeds import seed
from tests.support.loops import for_each

if TYPE_CHECKING:
    from pathlib import Path

    from sframegen.format.layouts import FormatVersion
    from tests.support.peers import Compiler

SOURCE = """
int other(int); static __attribute__((noinline)) int own(int a) { volatile int room[40] = {a}; return room[0]; }
int one(int a) { return own(a) + other(a); } int two(int a) { return other(own(a)) - 1; }
"""
HEADERS = 64  # bytes of the ELF header


def said(given: InputObject) -> object:
    """All that a merge asks of an object."""
    return (
        given.name,
        given.is_relocatable,
        given.abi.name,
        [(code.number, code.name, code.size, code.relocations, bytes(given.contents(code))) for code in given.code],
        [(bytes(piece.section.data), list(piece.numbers), list(piece.offsets)) for piece in given.described_sections()],
    )


def opened(data: bytes, abi: Abi = AMD64) -> InputObject:
    return ObjectReader(abi).open(memoryview(data), "input")


@for_each("flags", [(), ("-ffunction-sections",), ("-g",)])
@for_each("version", [2, 3])
def test_what_compilers_and_gnu_as_make_has_the_usual_form(
    version: FormatVersion, flags: tuple[str, ...], compile_c: Compiler, tmp_path: Path
) -> None:
    compiled = compile_c(SOURCE, "-c", "-O2", *flags, name="made.o")
    add_section(compiled, output=tmp_path / "made.o", version=version)
    gnu = [compile_c(SOURCE, "-c", "-O2", "-Wa,--gsframe", name="gnu.o", peer_binutils=True)] if not flags else []
    for path in (tmp_path / "made.o", *gnu):
        data = path.read_bytes()
        found = opened(data)
        assert isinstance(found, UsualObject)
        assert said(found) == said(UnusualObject(memoryview(data), "input"))
        assert len(found.code) == (3 if "-ffunction-sections" in flags else 1)
        assert isinstance(opened(data, AARCH64), UnusualObject)


def places_of_headers(data: bytes) -> list[int]:
    """Offsets of the ELF header, the section headers, the names, the symbols, the relocations and the SFrame header."""
    elf = ElfFile(memoryview(data), "input")
    spans = [(0, HEADERS), (elf.header.e_shoff, elf.header.e_shoff + 64 * elf.shnum)]
    for section in elf.sections:
        at, size = section.header.sh_offset, section.header.sh_size
        if section.name in (".shstrtab", ".symtab", ".rela.sframe", ".sframe"):
            spans.append((at, at + min(size, 256)))
    return [at for start, end in spans for at in range(start, end)]


@for_each("values", [(0, 1, 2), (6, 0x20, 0x7F), (0x80, 0xFE, 0xFF)])
def test_a_changed_byte_is_read_as_by_the_readers_of_all_objects(values: tuple[int, ...]) -> None:
    data = seed("object-sframe")
    assert isinstance(opened(data), UsualObject)
    usual = 0
    for at in places_of_headers(data):
        for value in values:
            changed = data[:at] + bytes([value]) + data[at + 1 :]
            try:
                found = opened(changed)
            except FormatError:
                continue
            if isinstance(found, UsualObject):
                assert said(found) == said(UnusualObject(memoryview(changed), "input"))
                usual += 1
    assert usual > len(places_of_headers(data)) * len(values) // 4  # so that something was compared
