"""`sframegen convert` and `sframegen.convert`: other versions, and smaller sections, in the same place of a file."""

from __future__ import annotations

import json
import re
import shutil
import struct
import subprocess
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import pytest

import sframegen
from linker.existing.in_place import find_slot
from linker.inject import apply, undo_record
from sframegen import api
from sframegen.base.errors import FormatError
from sframegen.elf.file import ElfFile, open_elf
from sframegen.elf.records import RECORDS, Shdr
from sframegen.elf.symbols import sorted_functions
from sframegen.format.abi import AMD64, S390X, Abi
from sframegen.format.encode import Encoder
from sframegen.format.layouts import V2, V3, WRITABLE, Layout
from sframegen.format.locate import read_sframe
from sframegen.format.model import OUTERMOST, FdeType, FunctionTable, Kind, Rule, Where
from sframegen.format.words import Reason
from sframegen.tables.compare import claim_spans, find_difference, have_same_rules
from sframegen.tables.optimize import MAX_GAP
from tests.support import producers
from tests.support.commands import run as command
from tests.support.inputs.sframe_files import write_sframe_elf
from tests.support.loops import for_each
from tests.support.peers import Compiler, Peers

run = partial(command, "convert", "-j1")
PROGRAM = r"""
#include <stdio.h>
#include <stdlib.h>
int __attribute__((noinline)) calls(int n) { char b[100]; sprintf(b, "%d", n); puts(b); return atoi(b); }
int main(int argc, char **argv) { return calls(argc) - argc + (argv == 0); }
__asm__(
  ".globl drap\n .type drap,@function\n drap:\n .cfi_startproc\n nop\n .cfi_def_cfa r10, 0\n nop\n nop\n"
  " .cfi_def_cfa rsp, 8\n ret\n .cfi_endproc\n .size drap, .-drap\n"
  ".globl handler\n .type handler,@function\n handler:\n .cfi_startproc\n .cfi_signal_frame\n"
  " ret\n .cfi_endproc\n .size handler, .-handler\n"
  ".globl bottom\n .type bottom,@function\n bottom:\n .cfi_startproc\n .cfi_undefined rip\n"
  " hlt\n .cfi_endproc\n .size bottom, .-bottom\n");
"""


def version_of(file: Path) -> int:
    return read_sframe(open_elf(file)).header.version


@pytest.fixture(scope="module")
def built(compile_c: Compiler) -> Path:
    """Its section by GNU 2.47, in the segment of .eh_frame."""
    return compile_c(PROGRAM, "-O2", "-Wa,--gsframe", peer_binutils=True)


@pytest.fixture(scope="module")
def added(compile_c: Compiler, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its section by add-section, in a segment of its own, with an undo record."""
    file = tmp_path_factory.mktemp("added") / "program"
    sframegen.add_section(compile_c(PROGRAM, "-O2"), output=file, verify=False, optimize="none")
    return file


@pytest.fixture(params=["built", "added"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    copy: Path = tmp_path / request.param
    shutil.copy2(request.getfixturevalue(request.param), copy)
    return copy


def test_down_and_up_again(file: Path, peers: Peers) -> None:
    original, before = file.read_bytes(), read_sframe(open_elf(file))
    result = run("-v", "--optimize", "none", "--sframe-version", 2, file)
    assert result.exit_code == 0, result.output
    assert f"{file}: SFrame version 3 -> 2, " in result.stdout
    for reason in (Reason.FLEX, Reason.SIGNAL, Reason.OUTERMOST):
        assert re.search(rf"left out: \d+ bytes: {reason.value}\n", result.stdout)
    lowered = read_sframe(open_elf(file))
    address, lost = find_difference(before.table, lowered.table)
    assert (lowered.header.version, address) == (2, None)
    assert lost > 0
    assert f"; {lost:,} bytes of code left out" in result.stdout
    printed = subprocess.run([peers.tool("readelf"), "--sframe", file], check=True, capture_output=True, text=True)
    assert (printed.stderr, printed.stdout) == ("", command("dump", file).stdout)
    assert subprocess.run([file], check=False, capture_output=True, text=True).returncode == 0

    result = run("--optimize", "none", "--sframe-version", 3, file)
    assert result.exit_code == 0, result.output
    raised = read_sframe(open_elf(file))
    assert raised.header.version == 3
    assert list(claim_spans(raised.table)) == list(claim_spans(lowered.table))
    assert len(file.read_bytes()) == len(original)
    assert subprocess.run([file], check=False, capture_output=True, text=True).returncode == 0


def test_the_level_is_fast_unless_it_is_given(file: Path, tmp_path: Path) -> None:
    assert run("--sframe-version", 2, "-o", tmp_path / "default", file).exit_code == 0
    assert run("--sframe-version", 2, "--optimize", "fast", "-o", tmp_path / "fast", file).exit_code == 0
    assert (tmp_path / "default").read_bytes() == (tmp_path / "fast").read_bytes()


def test_version_2_with_rows_without_words_is_written_again(
    compile_c: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As sframegen wrote them once: glibc gives up each trace that comes to one."""
    file = tmp_path / "program"
    with monkeypatch.context() as patch:
        patch.setitem(WRITABLE, 2, V2._replace(outermost=True))
        api.add_section(compile_c(PROGRAM, "-O2"), output=file, version=2)
    before = read_sframe(open_elf(file)).table
    bottom = next(symbol.address for symbol in sorted_functions(open_elf(file)) if symbol.name == "bottom")
    [note] = [found for found in api.check(file, consumer="gnu").findings if found.address == bottom]
    assert (note.rule, note.severity) == ("row-without-words", sframegen.Severity.NOTE)
    [error] = [found for found in api.check(file, consumer="glibc").findings if found.consumer]
    assert (error.rule, error.severity) == ("glibc-no-words", sframegen.Severity.ERROR)

    assert api.convert(file, 2).left_out == {
        Reason.OUTERMOST.value: sum(end - at for at, end, said in claim_spans(before) if said.rule == OUTERMOST)
    }
    assert OUTERMOST not in read_sframe(open_elf(file)).table.rules
    assert sframegen.read(file).rule_at(bottom) is None
    assert [found for found in api.check(file).findings if found.severity] == []
    assert api.convert(file, 2).functions == 0  # nothing more to do


def test_a_record_that_is_void_stays_so(added: Path, tmp_path: Path) -> None:
    data = bytearray(added.read_bytes())
    data[8] ^= 1  # EI_ABIVERSION: in a range that the record would restore
    file = tmp_path / "file"
    file.write_bytes(data)
    api.convert(file, 2)
    assert undo_record.read_verified(memoryview(file.read_bytes())) is None


def test_a_section_in_a_restorable_part_of_the_file_is_refused(built: Path, tmp_path: Path) -> None:
    """The section is not what such a record restores; no file that sframegen makes is like that."""
    data = built.read_bytes()
    file = tmp_path / "file"
    file.write_bytes(data + undo_record.make_record(memoryview(data), [undo_record.Write(0, data[:64])]))
    result = run("--sframe-version", 2, file)
    assert result.exit_code == 1
    assert "what it would restore" in result.stderr


def test_version_that_the_file_has_already(file: Path, tmp_path: Path) -> None:
    status, data = file.stat(), file.read_bytes()
    result = run("--sframe-version", 3, file)
    assert (result.exit_code, result.stdout) == (0, f"{file}: SFrame version 3 already\n")
    assert (file.stat().st_mtime_ns, file.stat().st_ino, file.read_bytes()) == (status.st_mtime_ns, status.st_ino, data)
    assert run("--sframe-version", 3, "-o", tmp_path / "copy", file).exit_code == 0
    assert (tmp_path / "copy").read_bytes() == data


def test_what_does_not_fit_is_refused_and_the_remedy_helps(peers: Peers, tmp_path: Path) -> None:
    file = producers.GNU[0].link(producers.ROWS_X86_64, tmp_path / "library", peers)
    data, before = file.read_bytes(), read_sframe(open_elf(file)).table
    result = run("--optimize", "none", "--sframe-version", 3, file)
    assert result.exit_code == 1
    assert "do not fit into the section's place" in result.stderr
    assert "add-section --replace" in result.stderr
    assert file.read_bytes() == data
    subprocess.run([peers.tool("objcopy"), "--remove-section", ".sframe", file], check=True)
    sframegen.add_section(file, optimize="none")
    assert version_of(file) == 3
    assert find_difference(before, read_sframe(open_elf(file)).table) == (None, 0)


def test_output_dry_run_and_json(file: Path, tmp_path: Path) -> None:
    data = file.read_bytes()
    result = run("--dry-run", "--sframe-version", 2, file)
    assert result.exit_code == 0
    assert "written over: " in result.stdout
    result = run("--sframe-version", 2, "--json", "-o", tmp_path / "new", file)
    [document] = json.loads(result.stdout)
    new = tmp_path / "new"
    assert (document["from_version"], document["to_version"], document["output"]) == (3, 2, str(new))
    assert document["left_out"].keys() <= {reason.value for reason in Reason}
    assert document["section_bytes"] == find_slot(open_elf(new)).size
    assert (version_of(new), new.stat().st_mode) == (2, file.stat().st_mode)
    assert file.read_bytes() == data
    several = json.loads(run("--sframe-version", 3, "--json", file, new).stdout)
    assert [item["from_version"] for item in several] == [3, 2]
    assert run("-q", "--sframe-version", 2, file).output == ""


def test_hard_links_of_one_run_follow_the_file(file: Path) -> None:
    names = [file, *(file.parent / name for name in ("other", "absent from the run"))]
    for name in names[1:]:
        name.hardlink_to(file)
    result = run("--sframe-version", 2, *names[:2], file)
    assert result.exit_code == 0, result.output
    assert len(result.stdout.splitlines()) == 1
    assert "1 other name (hard links)" in result.stderr
    assert names[0].samefile(names[1])
    assert [version_of(name) for name in names] == [2, 2, 3]


def test_refused_files_do_not_stop_the_others(file: Path, compile_c: Compiler, tmp_path: Path) -> None:
    plain = compile_c(PROGRAM, "-O2")
    made = compile_c(PROGRAM, "-c", "-Wa,--gsframe", name="program.o", peer_binutils=True)
    (tmp_path / "text").write_text("no ELF file")
    result = run("--sframe-version", 2, plain, made, tmp_path / "text", tmp_path / "absent", file)
    assert result.exit_code == 1
    reasons = [line.partition(": ")[2] for line in result.stderr.splitlines()]
    assert [reason.partition(": ")[0] for reason in reasons] == [
        str(f) for f in (plain, made, tmp_path / "text", tmp_path / "absent")
    ]
    assert "no SFrame section" in reasons[0]
    assert version_of(file) == 2


def table_of(rule: Rule, kind: Kind) -> FunctionTable:
    table = FunctionTable(kinds=[kind], rules=[rule])
    for column, value in ((table.start, 0x1000), (table.size, 64), (table.kind, 0), (table.first_row, 1)):
        column.append(value)
    table.row_start.append(0)
    table.row_rule.append(0)
    return table


def small_file(path: Path, table: FunctionTable, abi: Abi = AMD64, layout: Layout = V3) -> Path:
    return write_sframe_elf(path, bytes(Encoder(table, abi, layout).encode(0x3000)), abi, 0x3000)


def test_an_empty_section_is_refused(tmp_path: Path) -> None:
    result = run("--sframe-version", 2, write_sframe_elf(tmp_path / "file", b"", AMD64, 0x3000))
    assert (result.exit_code, result.stdout) == (1, "")
    assert "expected 28 bytes of header, have 0" in result.stderr


def test_nothing_left_is_refused(tmp_path: Path) -> None:
    drap = Rule(Where(10, 0), Where(None, -8, deref=True))
    result = run("--sframe-version", 2, small_file(tmp_path / "file", table_of(drap, Kind(FdeType.FLEX))))
    assert (result.exit_code, result.stdout) == (1, "")
    assert "nothing in its SFrame section can be expressed in version 2" in result.stderr


def test_foreign_byte_order_without_a_load_segment(tmp_path: Path) -> None:
    """There is no room after the section of a file that loads nothing."""
    file = small_file(tmp_path / "file", table_of(Rule(Where(15, 160)), Kind()), S390X)
    before = read_sframe(open_elf(file))
    assert run("--sframe-version", 2, file).exit_code == 0
    after = read_sframe(open_elf(file))
    assert (after.header.version, find_difference(before.table, after.table)) == (2, (None, 0))
    assert "do not fit" in run("--sframe-version", 3, file).stderr


@for_each("fault", ["other address", "compressed"])
def test_headers_that_cannot_be_trusted(fault: str, tmp_path: Path) -> None:
    file = small_file(tmp_path / "file", table_of(Rule(Where(15, 160)), Kind()), S390X)
    elf = open_elf(file)
    header = elf.sections[1].header
    changed = header._replace(sh_addr=0x4000) if fault == "other address" else header._replace(sh_flags=header.sh_flags | 0x800)
    data = bytearray(file.read_bytes())
    RECORDS[Shdr, "big"].pack_into(data, elf.header.e_shoff + 64, *changed)
    file.write_bytes(data)
    result = run("--sframe-version", 2, file)
    assert result.exit_code == 1
    assert ("do not agree" if fault == "other address" else "is compressed") in result.stderr
    assert file.read_bytes() == data


@pytest.mark.verification_fails
@pytest.mark.parametrize(
    ("spoil", "finding"),
    [
        ("row", "another rule at 0x"),
        ("code", "bytes changed that do not belong"),
        ("header", "headers are not the planned ones"),
        ("end", "bytes, not "),
    ],
)
def test_verification_stops_what_went_wrong(spoil: str, finding: str, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_all(elf: ElfFile, change: apply.Change, out: BinaryIO) -> None:
        apply.write_changed_file(elf, change, out)
        writes = change.writes
        section = writes[0]
        first_row = 28 + 20 * int.from_bytes(section.data[8:12], "little")
        at, data = {
            "row": (section.offset + first_row + 2, bytes([section.data[first_row + 2] ^ 8])),  # the CFA's offset
            "code": (elf.header.e_entry, b"?"),
            "header": (writes[1].offset + 40, b"\xff"),
            "end": (len(elf.data), b"?"),
        }[spoil]
        out.seek(at)
        out.write(data)

    monkeypatch.setattr("sframegen.api.converting.write_changed_file", write_all)
    data = file.read_bytes()
    result = run("--optimize", "none", "--sframe-version", 2, file)
    assert result.exit_code == 1
    assert "verification failed, nothing was changed" in result.stderr
    assert finding in result.stderr
    assert file.read_bytes() == data
    assert run("--no-verify", "--sframe-version", 2, file).exit_code == 0


def test_a_section_of_ours_that_does_not_fit_in_its_place_is_added_again(compile_c: Compiler, tmp_path: Path) -> None:
    """Version 3 has less for each FDE that shares its rows with another one."""
    alike = "".join(f"int f{number}(int x) {{ volatile int room[9] = {{x}}; return room[x]; }}" for number in range(99))
    original, program = compile_c(alike + "int main(void) { return 3; }", "-O2"), tmp_path / "program"
    shutil.copy(original, program)
    sframegen.add_section(program)
    before = read_sframe(open_elf(program))
    change = sframegen.convert(program, 2)
    after = read_sframe(open_elf(program))
    assert (change.from_version, after.header.version) == (3, 2)
    assert change.section_bytes == len(after.data) > len(before.data) == change.section_bytes_before
    assert find_difference(before.table, after.table) == (None, sum(change.left_out.values()))
    assert subprocess.run([program], check=False).returncode == 3
    sframegen.remove(program)
    assert program.read_bytes() == original.read_bytes()


def test_wrong_usage(file: Path) -> None:
    for words in ((file,), ("--sframe-version", 1, file), ("--sframe-version", 2), ("--sframe-version", 2, "-o", "x", file, file)):
        assert run(*words).exit_code == 2
    lines = run(file).stderr.splitlines()
    assert (lines[0], lines[-1]) == ("Usage: cli convert [OPTIONS] FILE...", "Error: give --sframe-version, --optimize or both")
    with pytest.raises(ValueError, match="give a version, or a level"):
        api.convert(file)
    file.write_text("no ELF file")
    with pytest.raises(FormatError, match=str(file)):
        api.convert(file, 2)


P_FILESZ = 32  # where it is in a program header; p_memsz follows
# Functions of one frame, side by side; `pause` keeps its CFA in a register for two no-ops, which Version 2 cannot say.
NEIGHBOURS = "\n".join(
    [
        "#include <stdio.h>",
        *(
            f'int __attribute__((noinline)) work{number}(int n) {{ char text[{100 + number}]; return sprintf(text, "%d", n); }}'
            for number in range(40)
        ),
        f"int main(int n, char **a) {{ (void)a; return {' + '.join(f'work{number}(n)' for number in range(40))} - 40; }}",
        r"""__asm__(
  ".globl pause_\n .type pause_,@function\n pause_:\n .cfi_startproc\n nop\n .cfi_def_cfa r10, 0\n nop\n nop\n"
  " .cfi_def_cfa rsp, 8\n ret\n .cfi_endproc\n .size pause_, .-pause_\n");""",
    ]
)


@pytest.fixture(scope="module")
def linked(compile_c: Compiler) -> Path:
    return compile_c(NEIGHBOURS, "-O2", "-Wa,--gsframe", peer_binutils=True)


@pytest.fixture
def program(linked: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy2(linked, tmp_path / "program"))


def faults_of(program: Path) -> list[tuple[str, int | None]]:
    return [(found.rule, found.address) for found in api.check(program).findings if found.severity is sframegen.Severity.ERROR]


@pytest.mark.parametrize("level", ["fast", "size"])
def test_a_linkers_section_becomes_smaller_in_its_place(level: str, linked: Path, program: Path) -> None:
    before, place = read_sframe(open_elf(linked)), find_slot(open_elf(linked))
    result = run("--optimize", level, program)
    assert result.exit_code == 0, result.output
    after = read_sframe(open_elf(program))
    size = len(after.data)
    assert result.stdout.startswith(f"{program}: SFrame version 3, ")
    assert f"; .sframe {place.size:,} -> {size:,} bytes\n" in result.stdout
    assert size < len(before.data) * {"fast": 0.6, "size": 0.5}[level]
    assert have_same_rules(before.table, after.table, MAX_GAP, {})
    assert find_difference(after.table, before.table)[0] is None  # nothing is lost
    data, old = program.read_bytes(), linked.read_bytes()
    assert len(data) == len(old)
    assert data[place.offset + size : place.offset + place.size] == bytes(place.size - size)
    changed = {at for at, (one, other) in enumerate(zip(data, old, strict=True)) if one != other}
    assert len({at for at in changed if not place.offset <= at < place.offset + place.size}) <= 3 * 8  # sizes in headers
    assert subprocess.run([program], check=False).returncode == 0
    assert faults_of(program) == faults_of(linked)
    # What the section is read for: neighbours are in one FDE, and in order.
    assert len(after.table) < len(before.table) / 2
    assert all(one < other for one, other in pairwise(after.table.start))


def test_a_segment_that_is_longer_than_its_section(linked: Path, program: Path) -> None:
    """As GNU ld's may be. It changes nothing of what follows the section."""
    elf = open_elf(linked)
    place = find_slot(elf)
    [note] = [one for one in elf.sections if one.name == ".note.gnu.property"]
    end = note.header.sh_offset + note.header.sh_size
    assert place.offset + place.size <= note.header.sh_offset
    data = bytearray(linked.read_bytes())
    at = elf.header.e_phoff + place.segments[0] * elf.header.e_phentsize + P_FILESZ
    struct.pack_into("<QQ", data, at, end - place.offset, end - place.offset)
    program.write_bytes(data)
    result = run("--optimize", "fast", program)
    assert result.exit_code == 0, result.output
    after = program.read_bytes()
    assert after[place.offset + place.size :][: end - place.offset - place.size] == data[place.offset + place.size : end]
    assert len(read_sframe(open_elf(program)).data) < place.size


def test_once_is_enough(program: Path) -> None:
    assert run("--optimize", "fast", program).exit_code == 0
    data, size = program.read_bytes(), len(read_sframe(open_elf(program)).data)
    result = run("--optimize", "fast", program)
    assert (result.exit_code, result.stdout) == (0, f"{program}: SFrame version 3 already, and no smaller than {size:,} bytes\n")
    assert run("--optimize", "none", program).exit_code == 0  # would be larger
    assert program.read_bytes() == data


def test_code_that_was_left_out_is_no_padding(linked: Path, program: Path) -> None:
    """No-ops between two functions of a section can be code for which it has no rule."""
    pause = next(symbol.address for symbol in sorted_functions(open_elf(linked)) if symbol.name == "pause_")
    assert run("--sframe-version", 2, "--optimize", "size", program).exit_code == 0
    section = sframegen.read(program)
    assert (section.rule_at(pause + 1), section.rule_at(pause + 2)) == (None, None)
    assert section.rule_at(pause) == section.rule_at(pause + 3) != None  # noqa: E711


def test_without_cfi_only_what_touches_is_joined(program: Path, peers: Peers) -> None:
    subprocess.run([peers.tool("objcopy"), "-R", ".eh_frame", "-R", ".eh_frame_hdr", program], check=True)
    before = read_sframe(open_elf(program)).table
    assert run("--optimize", "size", program).exit_code == 0
    assert list(claim_spans(read_sframe(open_elf(program)).table)) == list(claim_spans(before))


def test_cfi_that_cannot_be_read_is_refused(program: Path) -> None:
    section = open_elf(program).section(".eh_frame")
    assert section is not None
    data = bytearray(program.read_bytes())
    data[section.header.sh_offset + 8] = 0xEE  # the version of the first CIE
    program.write_bytes(data)
    result = run("--optimize", "fast", program)
    assert (result.exit_code, program.read_bytes()) == (1, bytes(data))
    assert ".eh_frame" in result.stderr
    assert result.stderr.count("\n") == 1
