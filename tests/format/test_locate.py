from __future__ import annotations

from sframegen.elf.file import ElfFile
from sframegen.elf.records import PT, SHF, SHT, Phdr
from sframegen.format.abi import AMD64
from sframegen.format.encode import Encoder
from sframegen.format.locate import find_unloaded_section, split_joined_sections
from sframegen.format.model import FunctionTable, Kind, Rule, Where
from tests.support.inputs.linker_inputs import Writer, inject_bytes, small_file
from tests.support.loops import for_each


def file_with(kind: int, flags: int, *, segment: int = 0) -> ElfFile:
    """A file with a section named .sframe, and a PT_GNU_SFRAME of that many bytes."""
    writer = Writer("little", 1)
    header = writer.put(".sframe", kind, flags, bytes(32))
    place = header.sh_offset
    return ElfFile(memoryview(writer.finish([Phdr(PT.GNU_SFRAME, 4, place, place, place, segment, segment, 8)])))


@for_each("padding", [0, 1, 63, 64, 65, 191, 192, 400])
def test_sections_that_a_linker_joined_are_found_one_by_one(padding: int) -> None:
    table = FunctionTable(kinds=[Kind()], rules=[Rule(Where(AMD64.sp, 8), Where(None, -8, deref=True))])
    table.append(0x1000, 16, 0, [(0, 0)])
    parts = [Encoder(one, AMD64).encode(0x9000) for one in (table, FunctionTable(), table)]
    data = memoryview(bytes(padding).join(bytes(part) for part in parts) + bytes(padding))
    pieces = list(split_joined_sections(data, 0x9000))
    assert [bytes(piece.data) for piece in pieces] == parts
    starts = [0, len(parts[0]) + padding, len(parts[0]) + len(parts[1]) + 2 * padding]
    assert [piece.address for piece in pieces] == [0x9000 + start for start in starts]


def test_sections_that_are_not_loaded() -> None:
    unloaded = find_unloaded_section(file_with(SHT.PROGBITS, 0))
    assert unloaded is not None
    assert unloaded.name == ".sframe"
    assert find_unloaded_section(file_with(SHT.PROGBITS, SHF.ALLOC)) is None
    assert find_unloaded_section(file_with(SHT.PROGBITS, 0, segment=32)) is None
    assert find_unloaded_section(file_with(SHT.NOBITS, 0)) is None
    assert find_unloaded_section(ElfFile(memoryview(small_file()))) is None
    assert find_unloaded_section(ElfFile(memoryview(inject_bytes(small_file())))) is None
    assert find_unloaded_section(ElfFile(memoryview(inject_bytes(small_file(), unloaded=True)))) is not None
