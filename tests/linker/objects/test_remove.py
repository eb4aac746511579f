"""remove and add-section --replace on objects and archives: back to the same bytes."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import BinaryIO

import pytest

from linker.inject.apply import Change, write_changed_file
from linker.inject.undo_record import UndoRecord
from linker.objects import change_objects
from sframegen import add_section, check, read, remove
from sframegen.base.errors import RefusedError, VerificationError
from sframegen.elf.file import ElfFile, open_elf
from sframegen.elf.records import SHT
from sframegen.format.layouts import FormatVersion
from tests.linker.objects.test_read import FLAGS, SOURCE
from tests.support.cross import ARM64, S390X, Machine
from tests.support.loops import for_each
from tests.support.peers import Compiler, Peers


def versions(path: Path) -> set[int]:
    elf = open_elf(path)
    return {elf.contents(section)[2] for section in elf.sections if section.header.sh_type == SHT.GNU_SFRAME}


@pytest.fixture
def plain(compile_c: Compiler, tmp_path: Path) -> Path:
    path = tmp_path / "plain.o"
    shutil.copy(compile_c(SOURCE, *FLAGS, name="plain.o"), path)
    return path


@pytest.fixture
def gas(compile_c: Compiler, tmp_path: Path) -> Path:
    """With the assembler's own section, which describes the group from outside of it."""
    made = compile_c(SOURCE, *FLAGS, "-Wa,--gsframe", name="gas.o", peer_binutils=True)
    path = tmp_path / "gas.o"
    shutil.copy(made, path)
    return path


@for_each("version", [2, 3])
@pytest.mark.parametrize("machine", [None, ARM64, S390X], ids=lambda machine: machine.name if machine else "here")
def test_an_object_comes_back_byte_for_byte(
    machine: Machine | None, version: FormatVersion, compile_c: Compiler, peers: Peers, tmp_path: Path
) -> None:
    compiler = machine.compiler(peers, tmp_path) if machine else compile_c
    path = tmp_path / "object.o"
    shutil.copy(compiler(SOURCE, *FLAGS, "-g", name="a.o"), path)
    before = path.read_bytes()
    add_section(path, version=version)
    added = path.read_bytes()
    assert added != before
    assert remove(path, dry_run=True).restored
    assert path.read_bytes() == added
    report = remove(path)
    assert (report.restored, report.still_has_one, report.size) == (True, False, len(before))
    assert path.read_bytes() == before
    assert remove(path).section_bytes == 0


def test_an_archive_comes_back_byte_for_byte(plain: Path, compile_c: Compiler, peers: Peers, tmp_path: Path) -> None:
    """Members of odd sizes, one without code, one that is no object; removed from a copy, the archive itself keeps its sections."""
    note, archive = tmp_path / "a_note_with_a_long_name.txt", tmp_path / "all.a"
    note.write_text("odd")
    empty = compile_c("int data = 1;", "-c", name="empty.o")
    subprocess.run([peers.tool("ar"), "rcs", archive, plain, note, empty], check=True)
    before = archive.read_bytes()
    add_section(archive)
    added = archive.read_bytes()
    report = remove(archive, output=tmp_path / "back.a")
    assert (tmp_path / "back.a").read_bytes() == before
    assert (report.size_before, report.size) == (len(added), len(before))
    assert archive.read_bytes() == added
    remove(archive)
    assert archive.read_bytes() == before


def test_without_a_section_nothing_is_done_and_an_output_is_a_copy(plain: Path, peers: Peers, tmp_path: Path) -> None:
    archive = tmp_path / "plain.a"
    subprocess.run([peers.tool("ar"), "rcs", archive, plain], check=True)
    for path in (plain, archive):
        report = remove(path, output=tmp_path / "copy")
        assert (report.section_bytes, report.one_line()) == (0, f"{path}: no SFrame section: nothing to remove")
        assert (tmp_path / "copy").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("made", ["gas", "ours"])
def test_objcopy_takes_out_the_sections_of_others(made: str, gas: Path, plain: Path, peers: Peers, tmp_path: Path) -> None:
    """Others: an assembler, or strip, which drops the record of what add-section made. What the refusal names does it."""
    path = gas
    if made == "ours":
        add_section(plain)
        path = tmp_path / "stripped.o"
        subprocess.run([peers.tool("objcopy"), plain, path], check=True)
    before = path.read_bytes()
    for force in (False, True):
        with pytest.raises(RefusedError, match="another tool made its SFrame section"):
            remove(path, force=force)
    assert path.read_bytes() == before
    subprocess.run([peers.tool("objcopy"), "-R", ".sframe", path], check=True)
    assert not [section.name for section in open_elf(path).sections if "sframe" in section.name]
    subprocess.run(["g++", path, "-o", tmp_path / "program"], check=True)
    subprocess.run([tmp_path / "program"], check=True)
    assert add_section(path).section_bytes
    assert check(path).findings == ()


@pytest.mark.verification_fails
def test_verification_stops_what_went_wrong(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoilt(elf: ElfFile, change: Change, out: BinaryIO, record: UndoRecord) -> None:
        write_changed_file(elf, change, out, record=record)
        out.seek(-1, os.SEEK_END)
        out.write(b"!")

    add_section(plain)
    before = plain.read_bytes()
    monkeypatch.setattr(change_objects, "write_changed_file", spoilt)
    with pytest.raises(VerificationError, match=r"verification failed, nothing was changed: .*it differs from the file"):
        remove(plain)
    assert plain.read_bytes() == before


@for_each("made", ["gas", "plain"])
def test_replace_puts_another_section_in_its_place_and_gives_back_what_was_there(
    made: str, peers: Peers, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    path: Path = request.getfixturevalue(made)
    given = path.read_bytes()
    if made == "plain":
        add_section(path)
    had = path.read_bytes()
    assert versions(path) == {3}
    with pytest.raises(RefusedError, match=r"already has a different SFrame section$"):
        add_section(path, version=2)
    assert path.read_bytes() == had
    add_section(path, version=2, replace=True)
    assert versions(path) == {2}
    assert check(path).findings == ()
    again = path.read_bytes()
    assert add_section(path, version=2, replace=True).section_bytes == 0
    assert path.read_bytes() == again
    subprocess.run([peers.tool("ld.lld"), "-shared", "-o", tmp_path / "linked", path], check=True)
    assert read(tmp_path / "linked").header.version == 2
    report = remove(path)
    assert (report.restored, report.still_has_one) == (True, made == "gas")
    assert path.read_bytes() == given
    archive = tmp_path / "one.a"
    subprocess.run([peers.tool("ar"), "rcs", archive, path], check=True)
    before = archive.read_bytes()
    if made == "gas":
        with pytest.raises(RefusedError, match=r"one.a\(gas.o\): already has a different SFrame section"):
            add_section(archive, version=2)
        assert archive.read_bytes() == before
    add_section(archive, version=2, replace=True)
    assert check(archive).version == 2
    remove(archive)
    assert archive.read_bytes() == before
