from __future__ import annotations

from sframegen.elf.file import ElfFile
from sframegen.elf.records import PT_GNU_SFRAME, SHF_ALLOC, SHT_NOBITS, SHT_PROGBITS, Phdr
from sframegen.format.locate import unloaded_of
from tests.support.inputs.linker_inputs import Writer, inject_bytes, small_file


def file_with(kind: int, flags: int, *, segment: int = 0) -> ElfFile:
    """A file with a section named .sframe, and a PT_GNU_SFRAME of that many bytes."""
    writer = Writer("little", 1)
    header = writer.put(".sframe", kind, flags, bytes(32))
    place = header.sh_offset
    return ElfFile(memoryview(writer.finish([Phdr(PT_GNU_SFRAME, 4, place, place, place, segment, segment, 8)])))


def test_sections_that_are_not_loaded() -> None:
    unloaded = unloaded_of(file_with(SHT_PROGBITS, 0))
    assert unloaded is not None
    assert unloaded.name == ".sframe"
    assert unloaded_of(file_with(SHT_PROGBITS, SHF_ALLOC)) is None
    assert unloaded_of(file_with(SHT_PROGBITS, 0, segment=32)) is None
    assert unloaded_of(file_with(SHT_NOBITS, 0)) is None
    assert unloaded_of(ElfFile(memoryview(small_file()))) is None
    assert unloaded_of(ElfFile(memoryview(inject_bytes(small_file())))) is None
    assert unloaded_of(ElfFile(memoryview(inject_bytes(small_file(), unloaded=True)))) is not None
