"""Verification finds what is wrong with a written file; each case here spoils a good one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import warnings
from typing import TYPE_CHECKING, NamedTuple

import pytest

from linker.files.copying import COMPARE_CHUNK, ranges_are_equal
from linker.files.read_back import read_back
from sframegen.base.errors import FormatError
from sframegen.elf.file import ElfFile, open_elf, opened_elf
from sframegen.elf.notes import read_notes
from sframegen.elf.records import PHDR_SIZE, PT, RECORDS, SHDR_SIZE, Ehdr, Phdr, Shdr
from tests.linker.inject.both_readers import findings as verify
from tests.support.inputs.linker_inputs import inject, small_file
from tests.support.loops import for_each

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from linker.inject.plan import InjectionPlan
    from sframegen.elf.records import ByteOrder

    Spoiling = tuple[Callable[["Written"], None], str]


class Written(NamedTuple):
    plan: InjectionPlan
    original: ElfFile
    path: Path

    def findings(self) -> str:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return "\n".join(verify(self.plan, self.original, self.path))

    def put(self, offset: int, data: bytes) -> None:
        with self.path.open("r+b") as file:
            file.seek(offset)
            file.write(data)

    def change_header(self, **fields: int) -> None:
        header = open_elf(self.path).header
        self.put(0, RECORDS[Ehdr, "little"].pack(*header._replace(**fields)))  # type: ignore[arg-type]

    def change_segment(self, kind: int, which: int = 0, **fields: int) -> None:
        elf = open_elf(self.path)
        number = [n for n, s in enumerate(elf.segments) if s.p_type == kind][which]
        packed = RECORDS[Phdr, "little"].pack(*elf.segments[number]._replace(**fields))
        self.put(elf.header.e_phoff + number * PHDR_SIZE, packed)

    def change_section(self, name: str, **fields: int) -> None:
        elf = open_elf(self.path)
        section = elf.section(name)
        assert section is not None
        self.put(elf.header.e_shoff + section.number * SHDR_SIZE, RECORDS[Shdr, "little"].pack(*section.header._replace(**fields)))


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
    section = written.original.section(".text")
    assert section is not None
    written.put(section.header.sh_offset + 5, b"\x90")


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
    "past the end": of_segment(PT.LOAD, 3, "reaches past the end of the file", p_filesz=0x100000, p_memsz=0x100000),
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
        (PT.PHDR, {"p_vaddr": 64, "p_filesz": 56}, "PT_PHDR does not cover the program header table"),
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


def test_planning_and_writing_do_not_import_lief() -> None:
    modules = "linker.files.rename_into_place, linker.inject.apply, linker.inject.plan, linker.inject.undo_record"
    code = f"import sys, {modules}; sys.exit('lief' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
