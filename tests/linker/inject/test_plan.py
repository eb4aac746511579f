"""What is planned for small files written here: layouts, what moves, what is refused and why."""

from __future__ import annotations

import io
import json
import struct
from typing import TYPE_CHECKING, Any

import pytest

from cfi.errors import FormatError, SframegenError
from linker.files.refusals import RefusedError
from linker.inject import undo_record
from linker.inject.image import find_build_id
from linker.inject.plan import describe, plan_injection
from sframegen.elf.file import ElfFile, open_elf
from sframegen.elf.notes import build_id_of
from sframegen.elf.records import (
    PF_R,
    PHDR_SIZE,
    PT_GNU_SFRAME,
    PT_LOAD,
    PT_NOTE,
    PT_PHDR,
    RECORDS,
    SHF_ALLOC,
    SHT_DYNSYM,
    SHT_GNU_SFRAME,
    SHT_NOBITS,
    SHT_SYMTAB,
    Ehdr,
    Phdr,
    Sym,
)
from tests.support.inputs.linker_inputs import inject_bytes, section_of, small_file

if TYPE_CHECKING:
    from sframegen.elf.records import ByteOrder
    from tests.support.peers import Compiler

pytestmark = pytest.mark.once

ORDERS: list[ByteOrder] = ["little", "big"]


def elf_of(data: bytes) -> ElfFile:
    return ElfFile(memoryview(data), "file")


def with_header(data: bytes, **fields: Any) -> bytes:
    elf = elf_of(data)
    return RECORDS[Ehdr, elf.byte_order].pack(*elf.header._replace(**fields)) + data[64:]


def with_segment(data: bytes, number: int, **fields: int) -> bytes:
    elf = elf_of(data)
    at = elf.header.e_phoff + number * PHDR_SIZE
    packed = RECORDS[Phdr, elf.byte_order].pack(*elf.segments[number]._replace(**fields))
    return data[:at] + packed + data[at + PHDR_SIZE :]


def tags(elf: ElfFile) -> dict[int, int]:
    section = elf.section(".dynamic")
    assert section is not None
    return dict(struct.iter_unpack(("<" if elf.byte_order == "little" else ">") + "QQ", elf.contents(section)))


def symbols(elf: ElfFile, kind: int) -> list[Sym]:
    table = next(s for s in elf.sections if s.header.sh_type == kind)
    return [Sym(*row) for row in RECORDS[Sym, elf.byte_order].iter_unpack(elf.contents(table))]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("library", [False, True])
def test_what_names_moved_metadata_follows(order: ByteOrder, library: bool) -> None:
    before = elf_of(small_file(order, library=library))
    after = elf_of(inject_bytes(bytes(before.data)))
    plan = plan_injection(before, 28)
    assert plan.layout == "front"
    assert {".hash", ".note.gnu.build-id"} <= {name for item in plan.moves for name in item.names}
    for tag, name in {4: ".hash", 5: ".dynstr", 6: ".dynsym"}.items():
        section = after.section(name)
        assert section is not None
        assert tags(after)[tag] == section.header.sh_addr
    note = after.section(".note.gnu.build-id")
    assert note is not None
    assert symbols(after, SHT_SYMTAB)[1].st_value == note.header.sh_addr
    assert symbols(after, SHT_DYNSYM)[1].st_value == 0x5000  # counted to .hash, and nowhere near it
    assert [s.p_vaddr for s in after.segments if s.p_type == PT_NOTE] == [note.header.sh_addr]
    assert build_id_of(after) == build_id_of(before)
    assert find_build_id(after) is not None


@pytest.mark.parametrize("order", ORDERS)
def test_the_new_segment(order: ByteOrder) -> None:
    before = elf_of(small_file(order))
    after = elf_of(inject_bytes(bytes(before.data), 1000))
    loads = [s for s in after.segments if s.p_type == PT_LOAD]
    assert loads[1:-1] == [s for s in before.segments if s.p_type == PT_LOAD][1:]
    new, last = loads[-1], loads[-2]
    assert new.p_flags == PF_R
    assert new.p_align == 0x1000
    assert new.p_vaddr % 0x1000 == new.p_offset % 0x1000
    assert new.p_offset >= len(before.data)
    assert last.p_vaddr + last.p_memsz <= new.p_vaddr - new.p_vaddr % 0x1000
    (segment,) = [s for s in after.segments if s.p_type == PT_GNU_SFRAME]
    section = after.sections[-1]
    assert section.name == ".sframe"
    assert section.header[1:6] == (SHT_GNU_SFRAME, SHF_ALLOC, segment.p_vaddr, segment.p_offset, 1000)
    assert after.contents(section) == section_of(1000)[:1000]
    assert [s.name for s in after.sections[:-1]] == [s.name for s in before.sections]


def test_the_section_headers_stay_where_they_were() -> None:
    data = small_file()
    header = elf_of(data).header
    assert inject_bytes(data)[header.e_shoff : len(data)] == data[header.e_shoff :]


@pytest.mark.parametrize("order", ORDERS)
def test_tail_layout(order: ByteOrder) -> None:
    before = elf_of(small_file(order, library=True, blocked=256))
    after = elf_of(inject_bytes(bytes(before.data)))
    plan = plan_injection(before, 28)
    assert plan.layout == "tail"
    assert not plan.moves
    assert not plan.patches
    assert plan.overwritten() == [(0, 64)]
    loads = [s for s in after.segments if s.p_type == PT_LOAD]
    assert after.header.e_phoff == loads[-1].p_offset
    assert len({s.p_vaddr - s.p_offset for s in (loads[0], loads[-1])}) == 1
    assert [s.p_vaddr for s in loads] == sorted(s.p_vaddr for s in loads)
    assert after.sections[-1].header.sh_addr == loads[-1].p_vaddr


def test_tail_layout_takes_the_phdr_segment_along() -> None:
    data = small_file(library=True, blocked=256)
    plan = plan_injection(elf_of(with_segment(data, 4, p_type=PT_PHDR)), 28)
    (table,) = [s for s in plan.segments if s.p_type == PT_PHDR]
    assert (table.p_offset, table.p_filesz) == (plan.table_offset, plan.table_size)


def test_an_unused_header_gives_its_slot() -> None:
    data = small_file()
    number = [s.p_type for s in elf_of(data).segments].index(PT_NOTE)
    plan = plan_injection(elf_of(with_segment(data, number, p_type=0)), 28)
    assert len(plan.segments) == len(elf_of(data).segments) + 1
    assert [s.p_type for s in plan.dropped_segments] == [0]


def test_the_old_section_headers_may_be_in_the_way() -> None:
    """Go's linker puts them right after the program headers."""
    data = bytearray(small_file(library=True, blocked=1024))
    elf = elf_of(bytes(data))
    start = 64 + elf.phnum * PHDR_SIZE
    table = bytearray(data[elf.header.e_shoff :])
    table[64 + 4 : 64 + 8] = bytes(4)  # SHT_NULL in place of .init
    data[start : start + 1024] = table + bytes(1024 - len(table))
    end = max(s.header.sh_offset + s.header.sh_size for s in elf.sections if s.header.sh_type != SHT_NOBITS)
    original = with_header(bytes(data), e_shoff=start)[:end]
    changed = inject_bytes(original)
    plan = plan_injection(elf_of(original), 28)
    assert plan.layout == "front"
    assert not plan.moves
    assert [s.name for s in elf_of(changed).sections[:-1]] == [s.name for s in elf_of(original).sections]
    record = undo_record.read(memoryview(changed))
    assert record is not None
    restored = io.BytesIO(changed)
    record.restore(restored)
    assert restored.getvalue() == original


@pytest.mark.parametrize("filler", [b"\0", b"X"])
def test_padding_may_be_written_over(filler: bytes) -> None:
    """patchelf leaves X where something was."""
    data = bytearray(small_file(library=True, blocked=256))
    elf = elf_of(bytes(data))
    init = elf.section(".init")
    assert init is not None
    data[init.header.sh_offset : init.header.sh_offset + 256] = filler * 256
    at = elf.header.e_shoff + init.number * 64 + 4
    data[at : at + 4] = bytes(4)  # SHT_NULL: the section is gone
    plan = plan_injection(elf_of(bytes(data)), 28)
    assert plan.layout == "front"
    assert plan.moves == ()


def test_other_bytes_may_not() -> None:
    data = bytearray(small_file(library=True, blocked=256))
    elf = elf_of(bytes(data))
    at = elf.header.e_shoff + 64 + 4
    data[at : at + 4] = bytes(4)
    assert plan_injection(elf_of(bytes(data)), 28).layout == "tail"


def test_the_plan_prints() -> None:
    plan = plan_injection(elf_of(small_file()), 28)
    assert str(plan) == "\n".join(describe(plan))
    assert str(plan).startswith(
        f"layout: front; file grows from {plan.original_size:#x} to {plan.size:#x} bytes\n.sframe: address 0x"
    )
    assert "new segment: PT_LOAD, address 0x" in str(plan)
    assert ".hash" in str(plan)
    assert json.loads(json.dumps(plan._asdict()))["section_size"] == 28


def test_the_plan_does_not_depend_on_the_bytes_of_the_section() -> None:
    assert plan_injection(elf_of(small_file()), 28) == plan_injection(elf_of(small_file()), 28)


@pytest.mark.parametrize("size", [0, -1, 1 << 50])
def test_sizes_that_no_section_has(size: int) -> None:
    with pytest.raises(FormatError, match="a section of"):
        plan_injection(elf_of(small_file()), size)


REFUSALS = {
    "has an .sframe section already": inject_bytes(small_file()),
    "not a linked program or library": with_header(small_file(), e_type=1),
    "has no program header table": with_header(small_file(), e_phoff=0),
    "has no PT_LOAD": with_header(small_file(), e_phnum=1),
    ".init cannot move": small_file(blocked=256),
    "is out of order": with_segment(small_file(), 3, p_vaddr=0),
    "reach past the end of the file": with_segment(small_file(), 3, p_filesz=0x5000, p_memsz=0x5000),
    "is aligned to 0x1001": with_segment(small_file(), 3, p_align=0x1001),
    "no addresses are left": with_segment(small_file(), 4, p_vaddr=(1 << 63) - 0x5000),
    "has 1,168 program headers": with_header(small_file() + bytes(1168 * PHDR_SIZE), e_phnum=1168),
    "has no table of names": with_header(small_file(), e_shstrndx=0),
    "a dynamic loader": small_file(library=True).replace(struct.pack("<QQ", 1, 1), struct.pack("<QQ", 14, 1)),
}


@pytest.mark.parametrize("reason", REFUSALS)
def test_refusals(reason: str) -> None:
    with pytest.raises(SframegenError, match=reason.replace(".", r"\.")) as error:
        plan_injection(elf_of(REFUSALS[reason]), 28)
    assert str(error.value).startswith("file: ")
    assert "\n" not in str(error.value)


def test_undo_wants_what_was_written() -> None:
    data = small_file()
    changed = inject_bytes(data)
    record = undo_record.read(memoryview(changed))
    assert record is not None
    assert record.original_size == len(data)
    for spoiled in (changed[:-1], changed[:30] + b"\xff" + changed[31:], changed[:20], data):
        assert undo_record.read(memoryview(spoiled)) is None


@pytest.mark.parametrize("payload", [b"PAYLOAD!", bytes(4096) + b"1"])
def test_a_payload_behind_the_elf_image_is_refused(payload: bytes) -> None:
    with pytest.raises(RefusedError, match=f"{len(payload)} bytes follow the ELF image"):
        plan_injection(elf_of(small_file() + payload), 28)


@pytest.mark.parametrize(("kind", "moves"), [(1, True), (3, True), (0x4F464E49, False)])
def test_only_notes_that_are_found_by_their_headers_move(kind: int, moves: bool, compile_c: Compiler) -> None:
    """Crashpad's holds the distance from itself to something else."""
    source = f"""
        __asm__(".section .note.mine, \\"a\\", @note\\n .balign 4\\n .long 4, 8, {kind}\\n"
                ".asciz \\"GNU\\"\\n .quad 1\\n .previous");
        int main(void) {{ return 0; }}
    """
    file = compile_c(source, "-Wl,--build-id=none")
    plan = plan_injection(open_elf(file), 28)
    assert any(".note.mine" in item.names for item in plan.moves) is moves
