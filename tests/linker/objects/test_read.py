"""dump, lookup, check and remove on objects and archives: what readelf prints of them, and what is true of their code."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
from pathlib import Path
from typing import BinaryIO

import pytest

import sframegen
from linker.inject.apply import Change, write_changed_file
from linker.inject.undo_record import UndoRecord
from linker.objects import change_objects
from sframegen import Severity, Verdict, add_section, check, read, remove
from sframegen.base.errors import RefusedError, VerificationError
from sframegen.elf.file import ElfFile, open_elf
from sframegen.elf.records import SHT, Shdr
from sframegen.elf.symbols import find_functions_named, read_functions
from sframegen.format.layouts import FormatVersion
from tests.support.commands import run as sframegen_on
from tests.support.cross import ARM64, S390X, Machine
from tests.support.loops import for_each
from tests.support.peers import Compiler, Peers
from tests.support.producers import AARCH64, ROWS_AARCH64, ROWS_X86_64, X86_64, Producer

# A function in a COMDAT group, one that calls it, one more; each in a section of its own.
SOURCE = """
    inline __attribute__((noinline)) int grouped(int a) { volatile int b[9] = {a}; return b[0]; }
    int calls(int a) { return grouped(a) + 1; }
    int main(int n, char **) { return calls(n) - n - 1; }
"""
FLAGS = ("-x", "c++", "-O1", "-ffunction-sections", "-c")


def readelf(peers: Peers, *paths: Path) -> str:
    done = subprocess.run([peers.tool("readelf"), "--sframe", *paths], check=True, capture_output=True, text=True)
    assert not done.stderr
    return done.stdout


@pytest.fixture
def ours(compile_c: Compiler, tmp_path: Path) -> Path:
    """A piece for the group, and one for the rest."""
    path = tmp_path / "ours.o"
    add_section(compile_c(SOURCE, *FLAGS, name="ours.o"), output=path)
    assert len(pieces(path)) == 2
    return path


def pieces(path: Path) -> list[Shdr]:
    return [one.header for one in open_elf(path).sections if one.header.sh_type == SHT.GNU_SFRAME]


@pytest.fixture
def gas(compile_c: Compiler, tmp_path: Path) -> Path:
    """With the assembler's own section, which describes the group from outside of it."""
    made = compile_c(SOURCE, *FLAGS, "-Wa,--gsframe", name="gas.o", peer_binutils=True)
    return Path(shutil.copy(made, tmp_path / "gas.o"))


@pytest.mark.parametrize(
    "producer", [one for one in (*X86_64, *AARCH64) if one.name in ("GNU 2.47", "LLVM")], ids=lambda one: one.prefix + one.name
)
def test_dump_is_readelfs_of_assemblers_objects(producer: Producer, peers: Peers, tmp_path: Path) -> None:
    path = producer.assemble(ROWS_AARCH64 if producer.prefix else ROWS_X86_64, tmp_path / "made", peers)
    assert sframegen_on("dump", path).output == readelf(peers, path)


@pytest.mark.parametrize("producer", [one for one in X86_64 if one.name in ("GNU 2.40", "GNU 2.44")], ids=lambda one: one.name)
def test_dump_of_older_assemblers_objects(producer: Producer, peers: Peers, tmp_path: Path) -> None:
    """Their relocations name the functions, but are not those of the format; their own linker takes them for what they mean."""
    linked = producer.link(ROWS_X86_64, tmp_path / "made.so", peers)
    places = [(symbol.name, symbol.address, symbol.size) for symbol in read_functions(open_elf(linked))]
    text = next(section.header.sh_addr for section in open_elf(linked).sections if section.name == ".text")
    dumped = sframegen_on("dump", "--names", tmp_path / "made.o").output
    assert [line.split("]: ")[1] for line in dumped.splitlines() if "func idx" in line] == [
        f"pc = {start - text:#x}, size = {size} bytes <{name}>" for name, start, size in sorted(places, key=lambda one: one[1])
    ]


def test_dump_of_archives_and_several_files(ours: Path, gas: Path, peers: Peers, tmp_path: Path) -> None:
    archive = tmp_path / "both.a"
    subprocess.run([peers.tool("ar"), "rcs", archive, ours, gas], check=True)
    assert sframegen_on("dump", archive).output == readelf(peers, archive)
    assert sframegen_on("dump", ours, archive, gas).output == readelf(peers, ours, archive, gas)


def test_dump_names_functions_by_their_sections(ours: Path, gas: Path) -> None:
    for path in (ours, gas):
        lines = [line for line in sframegen_on("dump", "--names", path).output.splitlines() if "func idx" in line]
        assert {line.rpartition("<")[2] for line in lines} == {"_Z7groupedi>", "_Z5callsi>", "main>"}
        assert all("pc = 0x0," in line for line in lines)
        [document] = json.loads(sframegen_on("dump", "--json", path).output)
        functions = [function for section in document["sections"] for function in section["functions"]]
        assert {(one["name"], one["section"], one["start"]) for one in functions} == {
            ("_Z7groupedi", ".text._Z7groupedi", 0),
            ("_Z5callsi", ".text._Z5callsi", 0),
            ("main", ".text.main", 0),
        }


@pytest.mark.parametrize("fault", ["its sections overlap", "row"])
def test_json_is_whole_where_an_object_is_damaged(fault: str, ours: Path, tmp_path: Path) -> None:
    damaged, after = (Path(shutil.copy(ours, tmp_path / name)) for name in ("damaged.o", "after.o"))
    elf = open_elf(ours)
    if fault == "row":
        offset, data = pieces(ours)[0].sh_offset + pieces(ours)[0].sh_size - 3, b"\xff\xff\xff"
    else:
        text = next(one for one in elf.sections if one.name == ".text.main")
        offset, data = elf.header.e_shoff + 64 * text.number + 32, struct.pack("<Q", len(elf.data))
    with damaged.open("r+b") as file:
        file.seek(offset)
        file.write(data)
    result = sframegen_on("dump", "--json", ours, damaged, after)
    assert (result.exit_code, type(result.exception)) == (1, SystemExit)
    documents = json.loads(result.stdout)
    assert [document["file"] for document in documents] == [str(ours), str(damaged), str(after)]
    [line] = result.stderr.splitlines()
    assert documents[1] == {"file": str(damaged), "error": line.removeprefix("sframegen: ")}
    assert line.startswith(f"sframegen: {damaged}: ")
    assert fault in line


@for_each("made", ["ours", "gas"])
def test_lookup_finds_what_the_linked_file_has(made: str, peers: Peers, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue(made)
    linked = tmp_path / "linked"
    subprocess.run([peers.tool("ld"), "-shared", "-o", linked, path], check=True)
    section = read(linked)
    for name in ("_Z7groupedi", "_Z5callsi", "main"):
        [symbol] = find_functions_named(open_elf(linked), name.encode())
        asked = [text for offset in range(symbol.size) for text in (f"{name}+{offset}", f".text.{name}+{offset:#x}")]
        answers = json.loads(sframegen_on("lookup", "--json", path, *asked).output)["addresses"]
        assert len(answers) == 2 * symbol.size
        for number, answer in enumerate(answers):
            expected = section.rule_at(symbol.address + number // 2)
            assert expected is not None
            assert expected.cfa is not None
            assert (answer["section"], answer["address"]) == (f".text.{name}", number // 2)
            assert (answer["cfa"]["offset"], answer["name"].partition("+")[0]) == (expected.cfa.offset, name)


def test_lookup_ends_where_its_section_ends(ours: Path) -> None:
    """Code of other sections follows in the object as it is laid out in memory."""
    result = sframegen_on("lookup", ours, "main", ".text._Z5callsi+0")
    assert result.stdout.splitlines() == [
        ".text.main+0x0 <main>: (cfa, ra, fp) = (rsp + 8, *(cfa - 8), rbp)",
        ".text._Z5callsi+0x0 <_Z5callsi>: (cfa, ra, fp) = (rsp + 8, *(cfa - 8), rbp)",
    ]
    assert result.exit_code == 0
    section = open_elf(ours).section(".text._Z7groupedi")
    assert section is not None
    size = section.header.sh_size
    result = sframegen_on("lookup", ours, *(f"_Z7groupedi+{offset}" for offset in range(size, size + 256)))
    assert result.stdout.splitlines() == [
        f".text._Z7groupedi+{offset:#x}: not covered by the SFrame section" for offset in range(size, size + 256)
    ]
    assert result.exit_code == 1


@pytest.mark.parametrize("text", ["0x10", "nothing", ".eh_frame", "+4", "main+"])
def test_lookup_in_an_object_takes_no_addresses(text: str, ours: Path) -> None:
    result = sframegen_on("lookup", ours, text)
    assert result.exit_code == 1
    assert result.stderr.startswith(
        f"sframegen: {ours}: '{text}' is neither a function nor a code section; an object has no addresses"
    )
    assert result.stderr.count("\n") == 1


def test_lookup_in_archives(ours: Path, gas: Path, peers: Peers, tmp_path: Path) -> None:
    archive = tmp_path / "two.a"
    shutil.copy(ours, tmp_path / "other.o")
    subprocess.run([peers.tool("objcopy"), "--redefine-sym", "main=other", tmp_path / "other.o"], check=True)
    subprocess.run([peers.tool("ar"), "rcs", archive, tmp_path / "other.o", gas], check=True)
    [answer] = json.loads(sframegen_on("lookup", "--json", archive, "main").output)["addresses"]
    assert (answer["object"], answer["section"]) == (f"{archive}(gas.o)", ".text.main")
    assert "2 functions or sections of code are named .text.main" in sframegen_on("lookup", archive, ".text.main").stderr


@for_each("made", ["ours", "gas"])
def test_check_holds_objects_against_their_cfi(made: str, request: pytest.FixtureRequest) -> None:
    path = request.getfixturevalue(made)
    report = sframegen.check(path)
    assert (report.findings, report.version, report.functions) == ((), 3, 3)
    size = sum(section.header.sh_size for section in open_elf(path).sections if section.name.startswith(".text."))
    assert report.code == {verdict: size if verdict is Verdict.EQUAL else 0 for verdict in Verdict}
    assert sframegen_on("check", path).exit_code == 0


@pytest.mark.parametrize("producer", X86_64, ids=lambda one: one.name)
def test_check_of_assemblers_objects(producer: Producer, peers: Peers, tmp_path: Path) -> None:
    report = sframegen.check(producer.assemble(ROWS_X86_64, tmp_path / "made", peers))
    assert report.version == producer.version
    assert [finding for finding in report.findings if finding.severity is Severity.ERROR] == []
    assert report.code[Verdict.EQUAL]
    assert not report.code[Verdict.WRONG]


def test_check_finds_a_wrong_rule_and_says_in_which_function(ours: Path) -> None:
    piece, raw = pieces(ours)[-1], bytearray(ours.read_bytes())
    raw[piece.sh_offset + piece.sh_size - 1] += 8  # the last function's only CFA offset
    ours.write_bytes(raw)
    [finding] = sframegen.check(ours).findings
    assert (finding.rule, finding.severity, finding.address, finding.offset) == ("cfi-rule", Severity.ERROR, None, None)
    assert finding.message.startswith("main+0x")
    assert sframegen_on("check", ours).exit_code == 1


def test_check_finds_damage(ours: Path) -> None:
    good, at = ours.read_bytes(), pieces(ours)[0].sh_offset
    for offset, data, rule, is_dumped in (
        (0, b"\0\0", "magic", False),
        (3, b"\x85", "flags", True),
        (8, b"\xff\xff\0\0", "index-bounds", False),
        (36, b"\xff\xff\0\0", "end-outside-code", True),
    ):
        ours.write_bytes(good[: at + offset] + data + good[at + offset + len(data) :])
        assert rule in {finding.rule for finding in sframegen.check(ours).findings}
        assert (sframegen_on("dump", ours).exit_code == 0) == is_dumped, rule


def test_check_of_archives_names_the_objects(ours: Path, compile_c: Compiler, peers: Peers, tmp_path: Path) -> None:
    archive, plain = tmp_path / "two.a", compile_c(SOURCE, *FLAGS, name="plain.o")
    subprocess.run([peers.tool("ar"), "rcs", archive, ours, plain], check=True)
    report = sframegen.check(archive)
    assert [(one.rule, one.message.partition(":")[0]) for one in report.findings] == [("no-sframe", "plain.o")]
    assert (report.functions, report.version) == (3, 3)


def test_what_needs_a_linked_file_says_so(ours: Path, tmp_path: Path) -> None:
    with pytest.raises(sframegen.FormatError, match="of linked files only"):
        sframegen.check(ours, second_reader=True)
    with pytest.raises(sframegen.FormatError, match="its functions have no addresses yet; sframegen dump and lookup read it"):
        read(ours)
    archive = tmp_path / "lib.a"
    subprocess.run(["ar", "rc", archive, ours], check=True)
    for call in (sframegen.check, sframegen.add_section):
        with pytest.raises(sframegen.FormatError, match="an archive has no separate debug file"):
            call(archive, debug_file=ours)


@for_each("command", [["dump"], ["lookup", "main"], ["check"]])
def test_objects_without_a_section(command: list[str], compile_c: Compiler) -> None:
    path = compile_c(SOURCE, *FLAGS, name="plain.o")
    result = sframegen_on(command[0], path, *command[1:])
    assert result.exit_code == 1
    assert "no SFrame section" in result.output


# -- remove and add-section --replace: back to the same bytes


def versions(path: Path) -> set[int]:
    elf = open_elf(path)
    return {elf.contents(section)[2] for section in elf.sections if section.header.sh_type == SHT.GNU_SFRAME}


@pytest.fixture
def plain(compile_c: Compiler, tmp_path: Path) -> Path:
    return Path(shutil.copy(compile_c(SOURCE, *FLAGS, name="plain.o"), tmp_path / "plain.o"))


@for_each("version", [2, 3])
@pytest.mark.parametrize("machine", [None, ARM64, S390X], ids=lambda machine: machine.name if machine else "here")
def test_dump_is_readelfs_of_an_object_that_comes_back_byte_for_byte(
    machine: Machine | None, version: FormatVersion, compile_c: Compiler, peers: Peers, tmp_path: Path
) -> None:
    compiler = machine.compiler(peers, tmp_path) if machine else compile_c
    path = tmp_path / "object.o"
    shutil.copy(compiler(SOURCE, *FLAGS, "-g", name="a.o"), path)
    before = path.read_bytes()
    add_section(path, version=version)
    added, text = path.read_bytes(), readelf(peers, path)
    assert text.count("Contents of the SFrame section") == 2
    assert sframegen_on("dump", path).output == text
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
