"""Verification finds what is wrong with a written file, which is spoilt here; each comparison at its limit."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from linker.files.copying import COMPARE_CHUNK, ranges_are_equal
from linker.files.read_back import READERS, ReadBack, Reader, read_back
from linker.inject.layout import Move
from linker.inject.plan import InjectionPlan
from linker.inject.undo_record import Write
from linker.inject.verify import (
    check_bytes,
    check_load_order,
    check_mapping,
    check_moves,
    check_table,
    is_planned_change,
    maps_range,
    planned_location,
    verify_writes,
)
from sframegen.base.errors import FormatError
from sframegen.elf.file import ElfFile, open_elf, opened_elf
from sframegen.elf.notes import read_notes
from sframegen.elf.records import EHDR_SIZE, PF, PHDR_SIZE, PT, SHF, SHT, ByteOrder, Phdr, Shdr
from tests.support.inputs.linker_inputs import both_findings as verify
from tests.support.inputs.linker_inputs import elf_of, inject, section_named, small_file, with_header, with_section, with_segment
from tests.support.loops import for_each

Spoiling = tuple[Callable[["Written"], None], str]


class Written(NamedTuple):
    plan: InjectionPlan
    original: ElfFile
    path: Path

    def findings(self) -> str:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return "\n".join(verify(self.plan, self.original, self.path))

    @property
    def read(self) -> ReadBack:
        found = read_back(self.path, "elftools")
        assert found
        return found

    def with_byte(self, offset: int) -> ElfFile:
        data = bytearray(self.path.read_bytes())
        data[offset] ^= 0x55
        return ElfFile(memoryview(bytes(data)))

    def put(self, offset: int, data: bytes) -> None:
        with self.path.open("r+b") as file:
            file.seek(offset)
            file.write(data)

    def change_header(self, **fields: int) -> None:
        self.path.write_bytes(with_header(self.path.read_bytes(), **fields))

    def change_segment(self, kind: int, which: int = 0, **fields: int) -> None:
        data = self.path.read_bytes()
        number = [n for n, s in enumerate(elf_of(data).segments) if s.p_type == kind][which]
        self.path.write_bytes(with_segment(data, number, **fields))

    def change_section(self, name: str, **fields: int) -> None:
        self.path.write_bytes(with_section(self.path.read_bytes(), name, **fields))


def written(directory: Path, kind: str = "program", order: ByteOrder = "little") -> Written:
    is_tail = kind == "tail"
    (directory / "original").write_bytes(small_file(order, library=is_tail, blocked=256 * is_tail))
    plan = inject(directory / "original", directory / "result")
    return Written(plan, open_elf(directory / "original"), directory / "result")


KINDS = ("program", "tail")


@for_each("kind", KINDS)
@for_each("order", ["little", "big"])
def test_nothing_is_wrong(kind: str, order: ByteOrder, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert written(tmp_path, kind, order).findings() == ""
    assert capfd.readouterr() == ("", "")


@for_each("field", ["e_phoff", "e_shoff"])
def test_a_table_at_an_offset_that_no_file_has(field: str, tmp_path: Path) -> None:
    program = written(tmp_path)
    program.change_header(**{field: (1 << 63) - 64})
    assert read_back(program.path, "elftools") is None


def spoil_code(written: Written) -> None:
    written.put(section_named(written.original, ".text").header.sh_offset + 5, b"\x90")


def spoil_build_id(written: Written) -> None:
    note = next(note for note in read_notes(open_elf(written.path)) if note.type == 3)
    written.put(note.offset + 16, b"\xff")


def of_elf_header(at: int) -> Spoiling:
    return (lambda written: written.put(at, b"\x77")), r"\Athe ELF header changed\Z"


def of_sframe_section(field: str) -> Spoiling:
    return (lambda written: written.change_section(".sframe", **{field: 1})), r"\.sframe is not the planned one"


def of_segment(kind: int, which: int, finding: str, **fields: int) -> Spoiling:
    return (lambda written: written.change_segment(kind, which, **fields)), finding


# What is spoilt, and what is found.
SPOILT: dict[str, Spoiling] = {
    # OS and its version, padding, version; readers say nothing of these.
    **{f"byte {at} of the ELF header": of_elf_header(at) for at in (7, 8, 9, 15, 20, 52)},
    "the entry point": (lambda written: written.change_header(e_entry=0x1008), r"\Ae_entry was 0x1000, is 0x1008\Z"),
    "the segment": (
        lambda written: written.change_segment(PT.GNU_SFRAME, p_offset=written.plan.section_offset + 8),
        "PT_GNU_SFRAME is not the planned one",
    ),
    **{f"{field} of the section": of_sframe_section(field) for field in ("sh_addr", "sh_offset", "sh_size", "sh_type", "sh_flags")},
    "its name": (lambda written: written.change_section(".sframe", sh_name=0), r"\.sframe is missing"),
    "the segment that holds it": of_segment(PT.LOAD, 3, r"no read-only PT_LOAD of its own holds \.sframe", p_flags=6),
    "an earlier segment": of_segment(PT.LOAD, 1, "segment of type 0x1 at 0x1.*changed, which is not in the plan", p_flags=7),
    "overlapping segments": of_segment(PT.LOAD, 2, "where the one before it ends", p_memsz=0x100000),
    "an earlier section": (
        lambda written: written.change_section(".text", sh_addr=0x4000),
        r"\.text changed, which is not in the plan",
    ),
    "a byte of code": (spoil_code, r"\Abytes loaded from file offsets 0x"),
    "the build-id": (spoil_build_id, "the build-id changed"),
    "no ELF file": (lambda written: written.put(0, b"text"), r"\Athe reader cannot read the file\Z"),
}


@for_each("kind", KINDS)
@for_each(("spoil", "finding"), SPOILT.values(), ids=SPOILT)
def test_what_is_spoilt_is_found(kind: str, spoil: Callable[[Written], None], finding: str, tmp_path: Path) -> None:
    file = written(tmp_path, kind)
    spoil(file)
    assert re.search(finding, file.findings(), re.DOTALL)


@for_each(
    ("kind", "fields", "finding"),
    [
        (PT.INTERP, {"p_vaddr": 0x1F0, "p_offset": 0x1F0}, "segment of type 0x3"),
        (PT.PHDR, {"p_vaddr": 0x80}, "PT_PHDR is not where the first PT_LOAD puts the program header table"),
    ],
)
def test_a_segment_of_a_program(kind: int, fields: dict[str, int], finding: str, tmp_path: Path) -> None:
    program = written(tmp_path)
    program.change_segment(kind, **fields)
    assert finding in program.findings()


@for_each("kind", KINDS)
def test_a_section_header_too_many(kind: str, tmp_path: Path) -> None:
    file = written(tmp_path, kind)
    assert ".sframe has a section header, the original has none" in file._replace(plan=file.plan._replace(sections=())).findings()


def test_metadata_that_moved(tmp_path: Path) -> None:
    program = written(tmp_path)
    patch = next(patch for patch in program.plan.patches if patch.name == "DT_HASH")
    program.put(patch.offset, patch.old.to_bytes(8, "little"))
    assert program.findings() == f"DT_HASH does not say {patch.new:#x}"
    item = next(item for item in program.plan.moves if ".hash" in item.names)
    program.put(item.to_offset, b"\xff")
    assert f"changed when it moved to {item.to_address:#x}" in program.findings()
    keeps = tuple(item for item in program.plan.moves if ".note.gnu.build-id" not in item.names)
    assert ".note.gnu.build-id is overwritten" in program._replace(plan=program.plan._replace(moves=keeps)).findings()


@for_each("place", [COMPARE_CHUNK // 2, COMPARE_CHUNK - 1, COMPARE_CHUNK, COMPARE_CHUNK + 99])
def test_a_byte_that_differs_is_found(place: int, tmp_path: Path) -> None:
    data = bytearray(small_file().ljust(COMPARE_CHUNK + 100))
    one = ElfFile(memoryview(bytes(data)))
    data[place] ^= 1
    (tmp_path / "other").write_bytes(data)
    with opened_elf(tmp_path / "other") as other:
        assert not ranges_are_equal(one, 0, other, 0, len(data))
        assert ranges_are_equal(one, 0, other, 0, place)
        assert ranges_are_equal(one, place + 1, other, place + 1, len(data) - place - 1)
        assert not ranges_are_equal(one, place + 1, other, place, len(data) - place)
        os.truncate(tmp_path / "other", place)
        with pytest.raises(FormatError, match="it was truncated while being read"):
            ranges_are_equal(one, 0, other, 0, len(data))


LOAD = Phdr(PT.LOAD, PF.R, 0x1000, 0x5000, 0x5000, 0x100, 0x200, 0x1000)


def read(*segments: Phdr, table_offset: int = EHDR_SIZE) -> ReadBack:
    return ReadBack(table_offset, list(segments), [], {})


@for_each(
    ("segments", "size", "found"),
    [
        ([LOAD], 0x1100, ""),
        ([LOAD], 0x10FF, "PT_LOAD at 0x5000 reaches past the end of the file"),
        ([LOAD._replace(p_filesz=0)], 0, ""),
        ([LOAD, LOAD._replace(p_vaddr=0x5200)], 0x1100, ""),
        ([LOAD, LOAD._replace(p_vaddr=0x51FF)], 0x1100, "PT_LOAD at 0x51ff begins before 0x5200, where the one before it ends"),
        ([LOAD, LOAD._replace(p_type=PT.NOTE, p_vaddr=0)], 0x1100, ""),
    ],
)
def test_loads_ascend_and_are_in_the_file(segments: list[Phdr], size: int, found: str) -> None:
    assert list(check_load_order(read(*segments), size)) == [found] * bool(found)


def test_the_table_is_where_the_first_load_puts_it() -> None:
    first = LOAD._replace(p_offset=0, p_vaddr=0x4000)
    table = Phdr(PT.PHDR, PF.R, EHDR_SIZE, 0x4000 + EHDR_SIZE, 0, 3 * PHDR_SIZE, 3 * PHDR_SIZE, 8)
    far = LOAD._replace(p_vaddr=0x9000)

    def findings(table: Phdr, *loads: Phdr) -> list[str]:
        return [line.removeprefix("PT_PHDR ") for line in check_table(read(table, *loads))]

    assert findings(table, first, far) == []
    for wrong in ({"p_filesz": 2 * PHDR_SIZE}, {"p_offset": EHDR_SIZE + 8, "p_vaddr": table.p_vaddr}):
        assert "does not cover the program header table" in findings(table._replace(**wrong), first, far)
    assert findings(table, first._replace(p_filesz=EHDR_SIZE + 3 * PHDR_SIZE), far) == []
    assert findings(table, first._replace(p_filesz=EHDR_SIZE + 3 * PHDR_SIZE - 1), far) == ["is in no PT_LOAD"]
    shifted = table._replace(p_vaddr=table.p_vaddr + 8)
    assert findings(shifted, first, far) == ["is not where the first PT_LOAD puts the program header table", "is in no PT_LOAD"]
    assert list(check_table(read(table._replace(p_filesz=PHDR_SIZE)))) == ["PT_PHDR is in no PT_LOAD"]


@pytest.fixture
def injected(tmp_path: Path) -> Written:
    return written(tmp_path)


def mapping(injected: Written, *loads: Phdr) -> list[str]:
    rest = [s for s in injected.read.segments if s not in injected.plan.new_segments]
    sframe = [s for s in injected.plan.new_segments if s.p_type == PT.GNU_SFRAME]
    return list(check_mapping(injected.plan, injected.read._replace(segments=[*rest, *loads, *sframe])))


def test_one_load_that_is_only_read_holds_the_section(injected: Written) -> None:
    [load] = [s for s in injected.plan.new_segments if s.p_type == PT.LOAD]
    message = ["no read-only PT_LOAD of its own holds .sframe"]
    place, size = injected.plan.section_address - load.p_vaddr, injected.plan.section_size
    exact = load._replace(p_filesz=place + size, p_memsz=place + size)
    assert mapping(injected, load) == mapping(injected, exact) == []
    assert mapping(injected, exact._replace(p_filesz=place + size - 1)) == message
    assert mapping(injected, load._replace(p_flags=PF.R | 1)) == message
    assert mapping(injected, load, load) == mapping(injected) == message
    assert not maps_range(load, load.p_vaddr - 1, load.p_offset - 1, 1)
    below = load._replace(p_vaddr=injected.plan.section_address - 0x10, p_memsz=0x10, p_flags=0)
    assert mapping(injected, below, load) == []
    assert mapping(injected, below._replace(p_memsz=0x11), load) == message


def test_every_byte_that_is_not_named_is_compared(injected: Written) -> None:
    """In the original's loads and out of them: each range's first and last byte, at its new place."""
    original = injected.original
    named = injected.plan.overwritten()
    assert list(check_bytes(injected.plan, original, open_elf(injected.path), injected.read)) == []
    kept = 0
    for section in original.sections[1:]:
        header = section.header
        for at in (header.sh_offset, header.sh_offset + header.sh_size - 1):
            if any(offset <= at < offset + size for offset, size in named):
                continue
            [there] = [
                new.header.sh_offset + at - header.sh_offset for new in injected.read.sections if new.name == section.name
            ] or [at]
            moves = [item for item in injected.plan.moves if item.contains(header.sh_offset, header.sh_size)]
            changed = injected.with_byte(at if moves else there)
            found = list(check_bytes(injected.plan, original, changed, injected.read))
            if section.name != ".shstrtab":
                assert len(found) == 1, section.name
                kept += 1
    assert kept > 8


def test_each_byte_of_what_moved_is_compared(injected: Written) -> None:
    plan, original = injected.plan, injected.original
    assert list(check_moves(plan, original, open_elf(injected.path))) == []
    assert plan.moves
    for item in plan.moves:
        for at in (item.to_offset, item.to_offset + item.size - 1):
            if any(patch.offset <= at < patch.offset + patch.size for patch in plan.patches):
                continue
            assert list(check_moves(plan, original, injected.with_byte(at))) == [
                f"{', '.join(item.names)} changed when it moved to {item.to_address:#x}"
            ]
    for patch in plan.patches:
        found = list(check_moves(plan, original, injected.with_byte(patch.offset + patch.size - 1)))
        assert f"{patch.name} does not say {patch.new:#x}" in found


def test_an_address_names_moved_metadata_or_its_end(injected: Written) -> None:
    plan, result = injected.plan, open_elf(injected.path)
    patch = next(patch for patch in plan.patches if patch.size == 8)
    for item in plan.moves:
        for address, known in (
            (item.to_address, True),
            (item.to_address + item.size, True),
            (max(item.to_address + item.size for item in plan.moves) + 1, False),
            (0, False),
        ):
            one = plan._replace(patches=(patch._replace(new=address),))
            found = [line for line in check_moves(one, injected.original, result) if "nothing moved" in line]
            assert found == ([] if known else [f"{patch.name} says {address:#x}, where nothing moved to"])


@for_each("reader", READERS)
def test_only_the_writes_change_a_file(reader: Reader, tmp_path: Path) -> None:
    data = small_file()
    original = ElfFile(memoryview(data))
    text = section_named(original, ".text")
    at = text.header.sh_offset

    def findings(result: bytes, writes: list[Write]) -> list[str]:
        (tmp_path / "result").write_bytes(result)
        return verify_writes(original, original.segments, original.sections, writes, tmp_path / "result", reader)

    def changed(*offsets: int) -> bytes:
        result = bytearray(data)
        for offset in offsets:
            result[offset] ^= 0x55
        return bytes(result)

    write = Write(at + 4, b"1234")
    message = ["bytes changed that do not belong to the section"]
    assert findings(changed(at + 4, at + 7), [write]) == []
    assert findings(changed(at + 3), [write]) == message
    assert findings(changed(at + 8), [write]) == message
    end = Write(len(data), b"more")
    assert findings(data + b"more", [end]) == []
    assert findings(data, [end]) == [f"the file has {len(data)} bytes, not {len(data) + 4}"]
    assert findings(data + b"more", [write]) == [f"the file has {len(data) + 4} bytes, not {len(data)}"]


# -- follows, place_of: what a plan allows

NOTE = Phdr(PT.NOTE, PF.R, 0x200, 0x1200, 0x1200, 0x20, 0x20, 4)
MOVE = Move(("note",), 0x20, 0x200, 0x800, 0x1200, 0x9800)
MOVED = NOTE._replace(p_offset=0x800, p_vaddr=0x9800, p_paddr=0x9800)


def test_a_segment_follows_its_metadata(injected: Written) -> None:
    plan = injected.plan._replace(gaps=(), moves=(MOVE,))
    assert is_planned_change(plan, NOTE, NOTE)
    assert is_planned_change(plan, NOTE, MOVED)
    for wrong in ({"p_offset": 0x801}, {"p_vaddr": 0x9801}, {"p_filesz": 0x1F}, {"p_flags": 5}, {"p_align": 8}):
        assert not is_planned_change(plan, NOTE, MOVED._replace(**wrong))
    assert not is_planned_change(plan._replace(moves=()), NOTE, MOVED)
    assert not is_planned_change(plan, NOTE._replace(p_filesz=0x21), MOVED._replace(p_filesz=0x21))
    assert not is_planned_change(plan, NOTE._replace(p_type=PT.GNU_SFRAME), MOVED._replace(p_type=PT.GNU_SFRAME))
    assert not is_planned_change(plan, LOAD, LOAD._replace(p_offset=0x1001))
    assert is_planned_change(plan, LOAD, LOAD._replace(p_filesz=0x101))


@pytest.mark.parametrize(
    ("kind", "flags", "offset", "size", "place"),
    [
        (SHT.PROGBITS, SHF.ALLOC, 0x200, 0x20, (0x9800, 0x800)),
        (SHT.PROGBITS, SHF.ALLOC, 0x210, 0x10, (0x9800, 0x810)),
        (SHT.PROGBITS, SHF.ALLOC, 0x210, 0x11, (0x1200, 0x210)),
        (SHT.PROGBITS, 0, 0x200, 0x20, (0x1200, 0x200)),
        (SHT.NOBITS, SHF.ALLOC, 0x200, 0x20, (0x1200, 0x200)),
    ],
)
def test_a_section_follows_its_metadata(
    kind: int, flags: int, offset: int, size: int, place: tuple[int, int], injected: Written
) -> None:
    plan = injected.plan._replace(gaps=(), moves=(MOVE,))
    assert planned_location(plan, Shdr(0, kind, flags, 0x1200, offset, size, 0, 0, 4, 0)) == place
