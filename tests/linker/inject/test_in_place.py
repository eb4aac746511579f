"""add-section on a file that has a section: nothing happens if it is the same, else it gives way, if that is asked for."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import sframegen
from linker.inject import undo_record
from sframegen.elf.file import open_elf
from sframegen.elf.records import PT, SHT
from sframegen.format.locate import find_sframe, read_sframe
from sframegen.tables.compare import have_same_rules
from sframegen.tables.levels import LEVELS, LevelName
from tests.linker.inject.test_run import STRIPPERS, apply_tool, blocked_library, run
from tests.support.commands import run as invoke
from tests.support.cross import ARM64, S390X, Machine
from tests.support.inputs.linker_inputs import FLAGS, KINDS, SOURCE
from tests.support.loops import for_each
from tests.support.peers import Compiler, Peers
from tests.support.producers import GNU, Producer, functions
from tests.support.programs import PROGRAM

REMEDY = "already has a different SFrame section; use --replace"


add = partial(invoke, "add-section", "-j1", "--no-verify")


def assert_one_section(file: Path) -> None:
    elf = open_elf(file)
    (segment,) = [s for s in elf.segments if s.p_type == PT.GNU_SFRAME]
    (section,) = [s.header for s in elf.sections if s.header.sh_type == SHT.GNU_SFRAME or s.name == ".sframe"]
    assert section.sh_type == SHT.GNU_SFRAME
    assert (section.sh_addr, section.sh_offset, section.sh_size) == (segment.p_vaddr, segment.p_offset, segment.p_filesz)
    assert len([s for s in elf.segments if s.p_type == PT.LOAD and s.p_vaddr <= segment.p_vaddr < s.p_vaddr + s.p_filesz]) == 1


def assert_nothing_is_left(file: Path) -> None:
    elf = open_elf(file)
    assert [s for s in elf.segments if s.p_type == PT.GNU_SFRAME] == []
    assert [s for s in elf.sections if s.header.sh_type == SHT.GNU_SFRAME or s.name == ".sframe"] == []


def sframe_bytes(file: Path) -> bytes:
    found = find_sframe(open_elf(file))
    assert found is not None
    return bytes(found[0])


def address_of_sframe(file: Path) -> int:
    found = find_sframe(open_elf(file))
    assert found is not None
    return found[1]


def unchanged(file: Path, action: Callable[[], Any]) -> Any:
    before, data = file.stat(), file.read_bytes()
    result = action()
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert file.read_bytes() == data
    return result


@pytest.mark.parametrize("machine", [ARM64, S390X], ids=lambda machine: machine.name)
def test_other_machines(machine: Machine, peers: Peers, tmp_path: Path) -> None:
    original, file = machine.compiler(peers, tmp_path)(PROGRAM, "-O2"), tmp_path / "file"
    sframegen.add_section(original, output=file, verify=False)
    assert unchanged(file, lambda: sframegen.add_section(file)).note == "has it already"
    sframegen.remove(file, output=tmp_path / "removed")
    assert (tmp_path / "removed").read_bytes() == original.read_bytes()
    sframegen.add_section(file, replace=True, optimize="none", verify=False)
    assert_one_section(file)
    subprocess.run([peers.tool(f"{machine.prefix}strip"), file], check=True)
    assert unchanged(file, lambda: sframegen.add_section(file, optimize="none")).note == "has it already"
    printed = [subprocess.run(machine.command(machine.root, f), check=True, capture_output=True).stdout for f in (original, file)]
    assert printed[0] == printed[1] != b""
    sframegen.remove(file, output=tmp_path / "removed")
    assert_nothing_is_left(tmp_path / "removed")
    done = subprocess.run(machine.command(machine.root, tmp_path / "removed"), check=True, capture_output=True)
    assert done.stdout == printed[0]
    sframegen.add_section(file, replace=True, version=2, verify=False)
    assert read_sframe(open_elf(file)).header.version == 2


@for_each("level", LEVELS)
def test_levels_take_turns_and_the_file_does_not_grow(level: LevelName, compile_c: Compiler, tmp_path: Path) -> None:
    original, file = compile_c(PROGRAM, "-O2"), tmp_path / "file"
    expected = {}
    for name in LEVELS:
        sframegen.add_section(original, output=file, verify=False, optimize=name)
        expected[name] = file.read_bytes()
    assert len(set(expected.values())) == len(LEVELS)
    for name in [level, *LEVELS, level, level]:
        sframegen.add_section(file, replace=True, optimize=name)
        assert file.read_bytes() == expected[name]
    sframegen.remove(file)
    assert file.read_bytes() == original.read_bytes()


def test_the_tail_layout(compile_c: Compiler, peers: Peers, tmp_path: Path) -> None:
    original, file = blocked_library(compile_c, tmp_path), tmp_path / "file.so"
    sframegen.add_section(original, output=file, verify=False)
    data = file.read_bytes()
    assert open_elf(file).section(".sframegen.phdrs") is not None
    sframegen.remove(file, output=tmp_path / "removed.so")
    assert (tmp_path / "removed.so").read_bytes() == original.read_bytes()
    unchanged(file, lambda: sframegen.add_section(file))
    sframegen.add_section(file, replace=True, version=2)
    sframegen.add_section(file, replace=True)
    assert file.read_bytes() == data
    subprocess.run([peers.tool("llvm-strip"), file], check=True)
    stripped = file.read_bytes()
    unchanged(file, lambda: sframegen.add_section(file))
    sframegen.add_section(file, replace=True, optimize="none")
    assert_one_section(file)
    run(file, "library", compile_c)
    sframegen.remove(file)
    assert file.read_bytes() == stripped


def test_what_the_command_says(compile_c: Compiler, tmp_path: Path) -> None:
    file, copy = tmp_path / "file", tmp_path / "copy"
    sframegen.add_section(compile_c(PROGRAM, "-O2"), output=file, verify=False)
    for options in (["--sframe-version", "2"], ["--optimize", "none"], ["--dry-run", "--optimize", "size"]):
        result = unchanged(file, lambda options=options: add(*options, file))  # type: ignore[misc]
        assert (result.exit_code, result.stdout, len(result.stderr.splitlines())) == (1, "", 1)
        assert result.stderr.startswith(f"sframegen: {file}: {REMEDY}")
    first = unchanged(file, lambda: add("--min-coverage", "100", file))
    assert first.stdout.endswith("; has it already\n")
    assert unchanged(file, lambda: add("--dry-run", file)).stdout == first.stdout
    assert unchanged(file, lambda: add("-o", copy, file)).exit_code == 0
    assert copy.read_bytes() == file.read_bytes()
    lines = unchanged(file, lambda: add("--dry-run", "--replace", "--sframe-version", 2, file)).stdout.splitlines()
    assert lines[1].startswith("layout: front")
    assert unchanged(file, lambda: add("--dry-run", "--replace", "--json", "--sframe-version", 2, file)).exit_code == 0
    assert add("--replace", "--sframe-version", 2, "-o", copy, file).exit_code == 0
    assert read_sframe(open_elf(copy)).header.version == 2


@pytest.mark.parametrize("tool", STRIPPERS)
@for_each(("earlier", "later"), [("none", "size"), ("size", "none")])
def test_after_other_tools_it_can_be_replaced(
    tool: str, earlier: LevelName, later: LevelName, compile_c: Compiler, peers: Peers, tmp_path: Path
) -> None:
    """In its place, where it fits, else in a new one; what add-section was given comes back."""
    original = compile_c(PROGRAM, "-O2")
    file = tmp_path / "stripped"
    sframegen.add_section(original, output=tmp_path / "added", verify=False, optimize=earlier)
    apply_tool(tool, tmp_path / "added", file, peers)
    file.chmod(0o755)
    data, section = file.read_bytes(), sframe_bytes(file)
    place = address_of_sframe(file)
    levels: tuple[LevelName, ...] = (later, "fast", later)
    for level in levels:
        sframegen.add_section(file, replace=True, optimize=level)
        size = file.stat().st_size
        unchanged(file, lambda level=level: sframegen.add_section(file, replace=True, optimize=level))  # type: ignore[misc]
        assert_one_section(file)
        sframegen.add_section(original, output=tmp_path / "expected", verify=False, optimize=level)
        one, other = (read_sframe(open_elf(path)).table for path in (file, tmp_path / "expected"))
        assert have_same_rules(one, other, 15, {})
        assert subprocess.run([file], check=False, capture_output=True).returncode == 0
        if level == later:
            sizes = {size}
    assert sizes == {file.stat().st_size}
    assert (address_of_sframe(file) == place) is (later == "size")
    assert file.read_bytes().find(section, 0, undo_start(file)) == -1
    assert sframegen.remove(file).one_line().endswith("; it had an SFrame section then")
    assert file.read_bytes() == data


def undo_start(file: Path) -> int:
    record = undo_record.read_verified(open_elf(file).data)
    assert record is not None
    return record.start


@pytest.fixture
def by_ld(compile_c: Compiler, tmp_path: Path) -> Path:
    return Path(shutil.copy2(compile_c(PROGRAM, "-O2", "-Wa,--gsframe", peer_binutils=True), tmp_path / "by-ld"))


@pytest.fixture
def by_ld_in_part(peers: Peers, tmp_path: Path) -> Path:
    one, two, file = tmp_path / "one.o", tmp_path / "two.o", tmp_path / "in-part"
    tools = str(Path(peers.tool("as")).parent)
    subprocess.run(["gcc", "-B", tools, "-O2", "-c", "-xc", "-o", one, "-"], input=PROGRAM, text=True, check=True)
    source = "int f(int n) { return n + 1; }\n"
    subprocess.run(["gcc", "-B", tools, "-O2", "-Wa,--gsframe", "-c", "-xc", "-o", two, "-"], input=source, text=True, check=True)
    subprocess.run(["gcc", "-B", tools, "-o", file, one, two], check=True)
    return file


START = ".undefined rip; xor %ebp, %ebp; call main; mov %eax, %edi; mov $60, %eax; syscall"


@for_each("producer", GNU, ids=lambda producer: producer.name)
def test_a_section_of_the_start_files_alone_is_superseded(producer: Producer, peers: Peers, tmp_path: Path) -> None:
    """As a distribution's C library brings it into every program; earlier versions cannot say that it is the outermost frame."""
    start, file = producer.assemble(functions(_start=START), tmp_path / "start", peers), tmp_path / "program"
    main = producer._replace(assembler=("as",)).assemble(functions(main=START), tmp_path / "main", peers)
    link: list[str | Path] = [producer.tool("ld", peers), start, main, "-o", file]
    subprocess.run(link, check=True)
    data = file.read_bytes()
    summary = sframegen.add_section(file)
    assert (summary.functions, summary.functions_covered, summary.note) == (2, 2, "replaced a section of the start files alone")
    assert_one_section(file)
    assert sframegen.remove(file).still_has_one
    assert file.read_bytes() == data
    assert add("--unloaded", file).exit_code == 1
    subprocess.run([*link, "-e", "main"], check=True)  # then it is a function like others
    assert REMEDY in add(file).stderr


@pytest.mark.parametrize("level", LEVELS)
def test_gnu_ld_s_section_is_superseded_in_its_place(level: LevelName, by_ld: Path, peers: Peers) -> None:
    data, section = by_ld.read_bytes(), sframe_bytes(by_ld)
    place = address_of_sframe(by_ld)
    assert REMEDY in unchanged(by_ld, lambda: add(by_ld)).stderr
    for _ in range(2):
        assert add("--replace", "--optimize", level, by_ld).exit_code == 0
        size = by_ld.stat().st_size
        assert address_of_sframe(by_ld) == place
    assert_one_section(by_ld)
    assert by_ld.stat().st_size == size
    assert_readable(by_ld, peers)
    assert by_ld.read_bytes().find(section, 0, undo_start(by_ld)) == -1
    subprocess.run([by_ld], check=True, capture_output=True)
    unchanged(by_ld, lambda: sframegen.add_section(by_ld, optimize=level))
    assert sframegen.remove(by_ld).restored
    assert by_ld.read_bytes() == data


def test_gnu_ld_s_section_is_superseded_elsewhere(by_ld_in_part: Path, peers: Peers, tmp_path: Path) -> None:
    file = by_ld_in_part
    data, section = file.read_bytes(), sframe_bytes(file)
    printed = subprocess.run([file], check=True, capture_output=True).stdout
    for level in ("fast", "none", "fast"):
        sframegen.add_section(file, replace=True, optimize=level)
        assert_one_section(file)
        assert_readable(file, peers)
        assert subprocess.run([file], check=True, capture_output=True).stdout == printed
        assert section not in file.read_bytes()[: undo_start(file)]
        unchanged(file, lambda level=level: sframegen.add_section(file, replace=True, optimize=level))  # type: ignore[misc]
    size = file.stat().st_size
    sframegen.add_section(file, replace=True, optimize="none")
    sframegen.add_section(file, replace=True)
    assert file.stat().st_size == size
    copy = tmp_path / "copy"
    sframegen.remove(file, output=copy)
    assert copy.read_bytes() == data
    for tool in STRIPPERS:
        apply_tool(tool, file, copy, peers, is_quiet=False)
        assert_one_section(copy)
        assert subprocess.run([copy], check=True, capture_output=True).stdout == printed
        assert unchanged(copy, lambda: sframegen.add_section(copy)).note == "has it already"


def assert_readable(file: Path, peers: Peers) -> None:
    done = subprocess.run([peers.tool("readelf"), "-aW", "--sframe", file], check=True, capture_output=True, text=True)
    assert done.stderr == ""


def test_a_second_section_beside_a_damaged_one(compile_c: Compiler, tmp_path: Path) -> None:
    original, file = compile_c(SOURCE, *FLAGS, *KINDS["pie"]), tmp_path / "file"
    sframegen.add_section(original, output=file, verify=False)
    data, good = file.read_bytes(), sframe_bytes(file)
    at = data.index(good)
    for place in range(28):
        for value in (0, 0xFF):
            spoiled = bytearray(data)
            if spoiled[at + place] == value:
                continue
            spoiled[at + place] = value
            file.write_bytes(spoiled)
            result = add(file)
            assert (result.exit_code, len(result.stderr.splitlines())) in ((1, 1), (0, 0))
            assert add("--replace", file).exit_code == 0
            assert sframe_bytes(file) == good or read_sframe(open_elf(file))
            run(file, "pie", compile_c)
