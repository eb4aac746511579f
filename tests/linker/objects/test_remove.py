"""remove and add-section --replace on objects and archives: back to the same bytes, or edited so that nothing else changes."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from linker.objects import remove_from_objects
from sframegen import FormatError, add_section, check, read, remove
from sframegen.base.errors import RefusedError, VerificationError
from sframegen.cli.commands import cli
from sframegen.elf.file import open_elf
from sframegen.elf.records import SHT
from sframegen.elf.symbols import functions_of
from tests.support.cross import ARM64, S390X
from tests.support.loops import for_each
from tests.support.peers import Compiler

if TYPE_CHECKING:
    from pathlib import Path

    from linker.inject.undo_record import Write
    from sframegen.elf.file import ElfFile
    from sframegen.format.layouts import FormatVersion
    from tests.support.cross import Machine
    from tests.support.peers import Peers

SOURCE = """
    inline __attribute__((noinline)) int grouped(int a) { volatile int b[9] = {a}; return b[0]; }
    int calls(int a) { return grouped(a) + 1; }
    int main(int n, char **) { return calls(n) - n - 1; }
"""
FLAGS = ("-x", "c++", "-O1", "-ffunction-sections", "-c")


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


def versions(path: Path) -> set[int]:
    elf = open_elf(path)
    return {elf.contents(section)[2] for section in elf.sections if section.header.sh_type == SHT.GNU_SFRAME}


# -- byte for byte


@for_each("version", [2, 3])
@pytest.mark.parametrize("machine", [None, ARM64, S390X], ids=lambda machine: machine.name if machine else "here")
def test_an_object_comes_back_byte_for_byte(
    machine: Machine | None, version: FormatVersion, compile_c: Compiler, peers: Peers, tmp_path: Path
) -> None:
    compiler = compile_c if machine is None else Compiler(peers, tmp_path, machine.prefix)
    path = tmp_path / "object.o"
    shutil.copy(compiler(SOURCE, *FLAGS, "-g", name="a.o"), path)
    before = path.read_bytes()
    add_section(path, version=version)
    assert path.read_bytes() != before
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


def test_dry_run_changes_nothing(plain: Path, gas: Path) -> None:
    add_section(plain)
    for path, force in ((plain, False), (gas, True)):
        before = path.read_bytes()
        report = remove(path, dry_run=True, force=force)
        assert path.read_bytes() == before
        assert (report.plan is None) == (path == plain)
    assert f"{gas}: written over: " in str(report.plan)


# -- edited


def seen(path: Path, peers: Peers) -> list[str]:
    """What readelf says of groups, relocations and symbols, with names in place of numbers."""
    words = [peers.tool("readelf"), "-grsW", str(path)]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    assert not done.stderr
    return sorted(line.split("] ")[-1] if line.startswith("   [") else line for line in done.stdout.splitlines() if line)


@pytest.mark.parametrize("made", ["gas", "ours"])
def test_sections_of_others_are_taken_out(made: str, gas: Path, plain: Path, peers: Peers, tmp_path: Path) -> None:
    """Others: an assembler, or strip, which drops the record of what add-section made."""
    path, expected = gas, tmp_path / "expected.o"
    if made == "ours":
        add_section(plain)
        path = tmp_path / "stripped.o"
        subprocess.run([peers.tool("objcopy"), plain, path], check=True)
    subprocess.run([peers.tool("objcopy"), "-R", ".sframe", "-R", ".rela.sframe", path, expected], check=True)
    with pytest.raises(RefusedError, match="another tool made its SFrame section"):
        remove(path)
    size = path.stat().st_size
    report = remove(path, force=True)
    assert (report.restored, report.size) == (False, size)
    assert path.stat().st_size == size
    names = [[section.name for section in open_elf(one).sections] for one in (path, expected)]
    assert sorted(names[0]) == sorted(names[1])
    elf = open_elf(expected)
    for section in open_elf(path).sections:
        other = elf.section(section.name)
        if section.name.startswith((".text", ".eh_frame", ".debug")):
            assert other is not None
            assert elf.contents(other) == open_elf(path).contents(section)
    symbols = [[line for line in seen(one, peers) if "FUNC" in line or "R_X86" in line] for one in (path, expected)]
    assert [line.split()[-1] for line in symbols[0]] == [line.split()[-1] for line in symbols[1]]
    subprocess.run(["g++", path, "-o", tmp_path / "program"], check=True)
    subprocess.run([tmp_path / "program"], check=True)
    assert add_section(path).section_bytes
    assert check(path).findings == ()


@pytest.mark.parametrize("linker", ["ld", "ld.lld"])
def test_what_is_left_links_as_if_there_had_been_none(linker: str, gas: Path, plain: Path, peers: Peers, tmp_path: Path) -> None:
    remove(gas, force=True)
    outputs = []
    for path in (gas, plain):
        outputs.append(tmp_path / f"{path.name}.so")
        words = [peers.tool(linker), "-shared", "--build-id=none", "-o", str(outputs[-1]), str(path)]
        done = subprocess.run(words, check=True, capture_output=True, text=True)
        assert not done.stderr
    assert [open_elf(output).section(".sframe") for output in outputs] == [None, None]
    for name in (".text", ".eh_frame", ".dynsym", ".symtab"):
        bytes_of = []
        for output in outputs:
            section = open_elf(output).section(name)
            assert section is not None
            bytes_of.append(bytes(open_elf(output).contents(section)))
        assert bytes_of[0] == bytes_of[1], name


def test_section_numbers_are_corrected_everywhere(peers: Peers, tmp_path: Path) -> None:
    """As objcopy leaves them, SFrame comes before sections that symbols, groups and relocations name."""
    source = tmp_path / "first.s"
    source.write_text(
        '.section .sframe,"a",@0x6ffffff4\n.Lhere: .long 0\n.section .text.later,"axG",@progbits,later,comdat\n'
        ".globl later\nlater: ret\n"
        '.section .data.later,"awG",@progbits,later,comdat\nitem: .quad later\n'
    )
    path = tmp_path / "first.o"
    subprocess.run([peers.tool("as"), source, "-o", path], check=True)
    before = seen(path, peers)
    number = next(section.number for section in open_elf(path).sections if section.header.sh_type == SHT.GNU_SFRAME)
    assert number < next(section.number for section in open_elf(path).sections if section.name == ".text.later")
    remove(path, force=True)
    after = seen(path, peers)
    assert [line.split()[-1] for line in before] == [line.split()[-1] for line in after]
    [symbol] = [line for line in after if line.endswith(" later")]
    assert int(symbol.split()[6]) == next(one.number for one in open_elf(path).sections if one.name == ".text.later")


@pytest.mark.full
def test_more_sections_than_the_header_can_count(peers: Peers, tmp_path: Path) -> None:
    source = "".join(f'.section .text.f{n},"ax"\nf{n}: .cfi_startproc\nret\n.cfi_endproc\n' for n in range(66_000))
    path = tmp_path / "many.o"
    subprocess.run([peers.tool("as"), "--gsframe", "-", "-o", path], input=source, text=True, check=True)
    elf = open_elf(path)
    assert elf.header.e_shnum == 0
    symbols = [(symbol.name, symbol.address) for symbol in functions_of(elf)]
    remove(path, force=True)
    after = open_elf(path)
    assert (after.header.e_shnum, after.shnum) == (0, elf.shnum - 2)
    assert [(symbol.name, symbol.address) for symbol in functions_of(after)] == symbols
    done = subprocess.run([peers.tool("nm"), path], check=True, capture_output=True, text=True)
    assert not done.stderr
    assert done.stdout.count(" t f") == 66_000


def test_a_symbol_that_others_name_is_not_taken_away(peers: Peers, tmp_path: Path) -> None:
    path = tmp_path / "named.o"
    source = '.section .sframe,"a",@0x6ffffff4\n.globl here\nhere: .long 0\n.data\n.quad here\n'
    subprocess.run([peers.tool("as"), "-", "-o", path], input=source, text=True, check=True)
    before = path.read_bytes()
    with pytest.raises(FormatError, match="is in the SFrame section, and relocations of others name it"):
        remove(path, force=True)
    assert path.read_bytes() == before


@pytest.mark.verification_fails
def test_verification_stops_what_went_wrong(gas: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoilt(elf: ElfFile) -> list[Write]:
        table = next(section.header for section in elf.sections if section.header.sh_type == SHT.SYMTAB)
        return [one._replace(data=bytes(len(one.data))) if one.offset == table.sh_offset else one for one in genuine(elf)]

    genuine = remove_from_objects.edits
    before = gas.read_bytes()
    monkeypatch.setattr(remove_from_objects, "edits", spoilt)
    with pytest.raises(VerificationError, match=r"verification failed, nothing was changed: .*symbol 1 has changed"):
        remove(gas, force=True)
    assert gas.read_bytes() == before


# -- replace


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


def test_replace_in_archives(gas: Path, plain: Path, peers: Peers, tmp_path: Path) -> None:
    archive = tmp_path / "both.a"
    subprocess.run([peers.tool("ar"), "rcs", archive, gas, plain], check=True)
    before = archive.read_bytes()
    with pytest.raises(RefusedError, match=r"both.a\(gas.o\): already has a different SFrame section"):
        add_section(archive, version=2)
    assert archive.read_bytes() == before
    add_section(archive, version=2, replace=True)
    assert check(archive).version == 2
    remove(archive)
    assert archive.read_bytes() == before


def test_several_at_a_time(gas: Path, tmp_path: Path) -> None:
    """What was done to a file comes from another process, the edits of an object without a record too."""
    other = tmp_path / "other.o"
    shutil.copy(gas, other)
    result = CliRunner().invoke(cli, ["remove", "--force", "-j", "2", str(gas), str(other)])
    assert (result.exit_code, result.stderr) == (0, "")
    assert versions(gas) == versions(other) == set()


def test_the_command_line_says_what_it_did(plain: Path, gas: Path) -> None:
    add_section(plain)
    result = CliRunner().invoke(cli, ["remove", str(plain), str(gas)])
    assert result.exit_code == 1
    assert result.stdout.startswith(f"{plain}: as it was before add-section; ")
    assert (
        result.stderr
        == f"sframegen: {gas}: another tool made its SFrame section, or rewrote the object since; use --force to remove it\n"
    )
