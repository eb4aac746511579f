"""Verification finds what is wrong with a written file; each case here spoils a good one."""

from __future__ import annotations

import subprocess
import sys
import warnings
from typing import TYPE_CHECKING, NamedTuple

import pytest

from linker.files.copying import same_bytes
from linker.files.read_back import read_back
from sframegen.elf.file import ElfFile, open_elf
from sframegen.elf.notes import notes_of
from sframegen.elf.records import PHDR_SIZE, PT_GNU_SFRAME, PT_INTERP, PT_LOAD, PT_PHDR, RECORDS, SHDR_SIZE, Ehdr, Phdr, Shdr
from tests.linker.inject.both_readers import findings as verify
from tests.support.inputs.linker_inputs import inject, small_file

if TYPE_CHECKING:
    from pathlib import Path

    from linker.inject.plan import InjectionPlan

pytestmark = pytest.mark.once


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


@pytest.fixture(params=["program", "tail"])
def written(request: pytest.FixtureRequest, tmp_path: Path) -> Written:
    data = small_file() if request.param == "program" else small_file(library=True, blocked=256)
    (tmp_path / "original").write_bytes(data)
    plan = inject(tmp_path / "original", tmp_path / "result")
    return Written(plan, open_elf(tmp_path / "original"), tmp_path / "result")


@pytest.fixture
def program(tmp_path: Path) -> Written:
    (tmp_path / "original").write_bytes(small_file())
    plan = inject(tmp_path / "original", tmp_path / "result")
    return Written(plan, open_elf(tmp_path / "original"), tmp_path / "result")


def test_nothing_is_wrong(written: Written, capfd: pytest.CaptureFixture[str]) -> None:
    assert written.findings() == ""
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("library", [False, True])
def test_nothing_is_wrong_in_big_endian(library: bool, tmp_path: Path) -> None:
    (tmp_path / "original").write_bytes(small_file("big", library=library, blocked=256 * library))
    plan = inject(tmp_path / "original", tmp_path / "result")
    assert verify(plan, open_elf(tmp_path / "original"), tmp_path / "result") == []


@pytest.mark.parametrize("offset", [7, 8, 9, 15, 20, 52])
def test_what_the_dynamic_linker_refuses_in_the_elf_header(written: Written, offset: int) -> None:
    """OS and its version, padding, version; readers say nothing of these."""
    written.put(offset, b"\x77")
    assert written.findings() == "the ELF header changed"


@pytest.mark.parametrize("field", ["e_phoff", "e_shoff"])
def test_a_table_at_an_offset_that_no_file_has(program: Written, field: str) -> None:
    program.change_header(**{field: (1 << 63) - 64})
    assert read_back(program.path, "elftools") is None


def test_the_entry_point(written: Written) -> None:
    written.change_header(e_entry=0x1008)
    assert written.findings() == "e_entry was 0x1000, is 0x1008"


def test_the_sframe_segment(written: Written) -> None:
    written.change_segment(PT_GNU_SFRAME, p_offset=written.plan.section_offset + 8)
    assert "PT_GNU_SFRAME is not the planned one" in written.findings()


@pytest.mark.parametrize("field", ["sh_addr", "sh_offset", "sh_size", "sh_type", "sh_flags"])
def test_the_sframe_section(written: Written, field: str) -> None:
    written.change_section(".sframe", **{field: 1})
    assert ".sframe is not the planned one" in written.findings()


def test_a_section_header_that_is_missing_or_one_too_many(written: Written) -> None:
    unplanned = Written(written.plan._replace(sections=()), written.original, written.path)
    assert ".sframe has a section header, the original has none" in unplanned.findings()
    written.change_section(".sframe", sh_name=0)
    assert ".sframe is missing" in written.findings()


def test_the_segment_that_holds_it(written: Written) -> None:
    written.change_segment(PT_LOAD, 3, p_flags=6)
    assert "no read-only PT_LOAD of its own holds .sframe" in written.findings()


def test_an_earlier_segment(written: Written) -> None:
    written.change_segment(PT_LOAD, 1, p_flags=7)
    assert "segment of type 0x1 at 0x1" in written.findings()
    assert "changed, which is not in the plan" in written.findings()


def test_a_segment_that_follows_nothing(program: Written) -> None:
    program.change_segment(PT_INTERP, p_vaddr=0x1F0, p_offset=0x1F0)
    assert "segment of type 0x3" in program.findings()


def test_overlapping_segments(written: Written) -> None:
    written.change_segment(PT_LOAD, 2, p_memsz=0x100000)
    assert "where the one before it ends" in written.findings()


def test_a_segment_past_the_end(written: Written) -> None:
    written.change_segment(PT_LOAD, 3, p_filesz=0x100000, p_memsz=0x100000)
    assert "reaches past the end of the file" in written.findings()


def test_an_earlier_section(written: Written) -> None:
    written.change_section(".text", sh_addr=0x4000)
    assert ".text changed, which is not in the plan" in written.findings()


def test_a_byte_of_code(written: Written) -> None:
    section = written.original.section(".text")
    assert section is not None
    written.put(section.header.sh_offset + 5, b"\x90")
    assert written.findings().startswith("bytes loaded from file offsets 0x")


def test_a_byte_of_moved_metadata(program: Written) -> None:
    item = next(item for item in program.plan.moves if ".hash" in item.names)
    program.put(item.to_offset, b"\xff")
    assert f"changed when it moved to {item.to_address:#x}" in program.findings()


def test_a_dynamic_tag(program: Written) -> None:
    patch = next(patch for patch in program.plan.patches if patch.name == "DT_HASH")
    program.put(patch.offset, patch.old.to_bytes(8, "little"))
    assert program.findings() == f"DT_HASH does not say {patch.new:#x}"


def test_the_phdr_segment(program: Written) -> None:
    program.change_segment(PT_PHDR, p_vaddr=0x80)
    assert "PT_PHDR is not where the first PT_LOAD puts the program header table" in program.findings()
    program.change_segment(PT_PHDR, p_vaddr=64, p_filesz=56)
    assert "PT_PHDR does not cover the program header table" in program.findings()


def test_a_plan_that_writes_over_what_stays(program: Written) -> None:
    item = next(item for item in program.plan.moves if ".note.gnu.build-id" in item.names)
    keeps = [other for other in program.plan.moves if other != item]
    bad = program.plan._replace(moves=tuple(keeps))
    assert ".note.gnu.build-id is overwritten" in "\n".join(verify(bad, program.original, program.path))


def test_the_build_id(written: Written) -> None:
    note = next(note for note in notes_of(open_elf(written.path)) if note.type == 3)
    written.put(note.offset + 16, b"\xff")
    assert "the build-id changed" in written.findings()


def test_not_an_elf_file(written: Written) -> None:
    written.put(0, b"text")
    assert written.findings() == "the reader cannot read the file"


def test_same_bytes() -> None:
    data = memoryview(bytes(range(100)))
    assert same_bytes(data, memoryview(bytes(range(100))))
    assert not same_bytes(data, data[:99])
    for place in (0, 50, 99):
        other = bytearray(data)
        other[place] ^= 1
        assert not same_bytes(data, memoryview(other))


def test_planning_and_writing_do_not_import_lief() -> None:
    modules = "linker.files.rename_into_place, linker.inject.apply, linker.inject.plan, linker.inject.undo_record"
    code = f"import sys, {modules}; sys.exit('lief' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
