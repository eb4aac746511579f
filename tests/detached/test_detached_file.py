"""Detached sections: the file that is written, and for which files it is used. Commands leave it and debug files alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from contextlib import suppress
from pathlib import Path

import pytest

from linker.files.read_back import Reader
from linker.inject.verify import verify_detached
from sframegen import FormatError, Outcome, add_section, read
from sframegen.base.errors import Refusal, RefusedError
from sframegen.detached.detached_file import (
    Companion,
    Identity,
    build_detached_file,
    identity_of,
    path_in_store,
    read_section,
)
from sframegen.elf.file import ElfFile, open_elf
from sframegen.elf.records import PT, RECORDS, SHF, Ehdr, Phdr
from sframegen.packages.package_api import add_to_package
from tests.support.commands import run
from tests.support.cross import MACHINES
from tests.support.inputs.linker_inputs import with_many_segments
from tests.support.loops import for_each
from tests.support.peers import Compiler, Peers
from tests.support.zstandard import compress_section

SOURCE = "int f(int n) { return n ? f(n - 1) + n : 0; }\nint main(int n, char **v) { return f(n) + (v == 0); }\n"
BUILD_ID = "-Wl,--build-id=0x0123456789abcdef0123456789abcdef"
KINDS = {
    "debug": Companion.DEBUG_FILE,
    "debug-with-section": Companion.DEBUG_FILE,
    "detached": Companion.DETACHED_SECTION,
    "detached-zstd": Companion.DETACHED_SECTION,
}
WRITERS = (
    ("add-section", "--replace"),
    ("add-section", "--unloaded"),
    ("add-section", "--detached", "store"),
    ("remove",),
    ("remove", "--force"),
    ("convert", "--sframe-version", "2"),
)


@pytest.fixture
def program(compile_c: Compiler, tmp_path: Path) -> Path:
    return Path(shutil.copy(compile_c(SOURCE, "-O1", BUILD_ID), tmp_path / "program"))


def identity(file: Path) -> Identity:
    found = identity_of(open_elf(file))
    assert found is not None
    return found


def stored(store: Path) -> Path:
    """Return the one section of a store."""
    [file] = store.rglob("*.sframe")
    return file


@pytest.mark.parametrize("prefix", ["", *(pytest.param(machine.prefix, marks=pytest.mark.full) for machine in MACHINES)])
def test_a_section_comes_back_as_it_would_be_in_the_file(prefix: str, peers: Peers, tmp_path: Path) -> None:
    file = Compiler(peers, tmp_path, prefix)(SOURCE, "-O1", BUILD_ID)
    before = file.read_bytes()
    summary = add_section(file, detached=tmp_path / "store")
    add_section(file, output=tmp_path / "unloaded", unloaded=True)
    assert file.read_bytes() == before
    assert summary.output == summary.detached == str(tmp_path / "store/.build-id/01/23456789abcdef0123456789abcdef.sframe")
    found = read_section(memoryview(stored(tmp_path / "store").read_bytes()), "name", identity(file))
    section = read(tmp_path / "unloaded")
    assert (bytes(found), 0) == (bytes(section.data), section.address)
    assert summary.section_bytes == len(found)


def test_readers_of_elf_files_read_it(program: Path, peers: Peers, tmp_path: Path) -> None:
    add_section(program, detached=tmp_path / "store")
    add_section(program, output=tmp_path / "unloaded", unloaded=True)
    file = str(stored(tmp_path / "store"))

    def printed(*command: str) -> str:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stderr == ""
        return done.stdout

    table = printed(peers.tool("readelf"), "--sframe", str(tmp_path / "unloaded"))
    assert printed(peers.tool("readelf"), "--sframe", file) == table
    assert "0123456789abcdef0123456789abcdef" in printed(peers.tool("readelf"), "-Whln", file)
    assert printed(peers.tool("eu-readelf"), "-hlS", file).count("LOAD") == len(identity(program).loads)
    assert read(file).table.start == read(tmp_path / "unloaded").table.start


def test_an_equal_file_is_not_written_again(program: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    add_section(program, detached=store)
    before = stored(store).stat().st_mtime_ns
    again = add_section(program, detached=store)
    assert (again.outcome, again.output, again.detached) == (Outcome.UNCHANGED, "", str(stored(store)))
    assert stored(store).stat().st_mtime_ns == before
    assert add_section(program, detached=store, optimize="none").output == str(stored(store))
    assert [*store.rglob(".sframegen*")] == []


def test_its_mode_is_that_of_new_files(program: Path, tmp_path: Path) -> None:
    previous = os.umask(0o027)
    try:
        add_section(program, detached=tmp_path)
    finally:
        os.umask(previous)
    assert stored(tmp_path).stat().st_mode & 0o777 == 0o640


def test_a_dry_run_says_where_and_writes_nothing(program: Path, tmp_path: Path) -> None:
    summary = add_section(program, detached=tmp_path / "store", dry_run=True)
    assert summary.plan is not None
    assert summary.plan.lines[0].startswith(f"new file: {tmp_path}/store/.build-id/01/23456789abcdef0123456789abcdef.sframe, ")
    assert not (tmp_path / "store").exists()


def test_what_is_refused_in_files_is_no_matter(program: Path, tmp_path: Path) -> None:
    """The file is only read: it may be signed, and data may follow."""
    with program.open("ab") as out:
        out.write(b"PK payload")
    (tmp_path / ".program.hmac").write_text("0" * 64)
    program.chmod(0o4555)
    assert add_section(program, detached=tmp_path / "store").section_bytes


def test_programs_of_a_package_get_detached_sections(program: Path, tmp_path: Path) -> None:
    """The summary of the package counts those that were written: the package itself is only read."""
    package = tmp_path / "package.tar"
    with tarfile.open(package, "w") as tar:
        tar.add(program, "usr/bin/program")
    before = package.read_bytes()
    for count in (1, 0):
        summary = add_to_package(package, detached=tmp_path / "store")
        assert f"{count} of 1 ELF file given a section" in summary.one_line()
    assert stored(tmp_path / "store").name.endswith(".sframe")
    assert package.read_bytes() == before


def test_refusals(program: Path, compile_c: Compiler, tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="link with --build-id") as refused:
        add_section(compile_c(SOURCE, "-Wl,--build-id=none"), detached=tmp_path / "store")
    assert refused.value.reason is Refusal.NO_BUILD_ID
    with pytest.raises(FormatError, match="only linked files"):
        add_section(compile_c(SOURCE, "-c", name="a.o"), detached=tmp_path / "store")
    assert not (tmp_path / "store").exists()
    place = tmp_path / "store" / path_in_store(identity(program).build_id)
    place.parent.mkdir(parents=True)
    os.mkfifo(place)
    with pytest.raises(OSError, match="not a regular file"):
        add_section(program, detached=tmp_path / "store")


def test_too_many_segments_are_one_line(program: Path) -> None:
    elf = ElfFile(memoryview(with_many_segments(program.read_bytes(), 0xFFFF)))
    loads = [segment._replace(p_type=PT.LOAD) for segment in elf.segments]
    elf.segments = loads
    with pytest.raises(FormatError, match="too large for a detached file"):
        build_detached_file(elf, identity(program), b"section")


def test_another_build_id_or_layout_is_another_file(program: Path, tmp_path: Path) -> None:
    add_section(program, detached=tmp_path)
    data = memoryview(stored(tmp_path).read_bytes())
    ours = identity(program)
    assert read_section(data, "name", ours)
    first, *rest = ours.loads
    layouts = [tuple(rest), *(((*first[:at], first[at] + 1, *first[at + 1 :]), *rest) for at in range(len(first)))]
    others = [ours._replace(machine=0), ours._replace(file_type=0), *(ours._replace(loads=layout) for layout in layouts)]
    for other in others:
        with pytest.raises(FormatError, match="for another file: its load layout differs"):
            read_section(data, "name", other)
    with pytest.raises(FormatError, match="for another file: its build-id differs"):
        read_section(data, "name", ours._replace(build_id=bytes(16)))


def test_damage_is_one_error_or_changes_nothing_but_the_section(program: Path, tmp_path: Path) -> None:
    """Cut off anywhere, with any byte spoiled: never another exception. The section's own bytes are its readers' matter."""
    add_section(program, detached=tmp_path)
    good = stored(tmp_path).read_bytes()
    ours = identity(program)
    for at in range(len(good)):
        with pytest.raises(FormatError):
            read_section(memoryview(good[:at]), "name", ours)
    for at in range(len(good)):
        spoiled = bytearray(good)
        spoiled[at] ^= 0xFF
        with suppress(FormatError):
            assert len(read_section(memoryview(spoiled), "name", ours)) in range(len(good))


def test_a_hostile_size_is_refused_before_it_is_expanded(program: Path, tmp_path: Path) -> None:
    add_section(program, detached=tmp_path)
    data = bytearray(stored(tmp_path).read_bytes())
    elf = ElfFile(memoryview(bytes(data)))
    section = next(section for section in elf.sections if section.name == ".sframe")
    code = RECORDS[type(section.header), "little"]
    at = elf.header.e_shoff + section.number * code.size
    data[at : at + code.size] = code.pack(*section.header._replace(sh_flags=SHF.COMPRESSED))
    data[section.header.sh_offset + 8 : section.header.sh_offset + 16] = (1 << 60).to_bytes(8, "little")
    with pytest.raises(FormatError, match=r"1,152,921,504,606,846,976 bytes are too many"):
        read_section(memoryview(bytes(data)), "name", identity(program))


@pytest.mark.parametrize("reader", ["lief", "elftools"])
def test_another_reader_judges_it(reader: Reader, program: Path, tmp_path: Path) -> None:
    elf, ours = open_elf(program), identity(program)
    good = build_detached_file(elf, ours, b"section")
    (tmp_path / "good").write_bytes(good)
    assert verify_detached(elf, b"section", tmp_path / "good", reader) == []
    assert verify_detached(elf, b"another", tmp_path / "good", reader) == [".sframe is not the planned one"]
    written = ElfFile(memoryview(good))
    header = RECORDS[Ehdr, "little"].pack(*written.header._replace(e_entry=1))
    (tmp_path / "bad").write_bytes(header + good[len(header) :])
    assert verify_detached(elf, b"section", tmp_path / "bad", reader) == ["the ELF header changed"]
    first = RECORDS[Phdr, "little"].pack(*written.segments[0]._replace(p_memsz=1))
    (tmp_path / "bad").write_bytes(header[:0] + good[:64] + first + good[64 + len(first) :])
    assert verify_detached(elf, b"section", tmp_path / "bad", reader) == [
        "its program headers are not the PT_LOADs of the original"
    ]
    (tmp_path / "bad").write_bytes(good.replace(ours.build_id, bytes(16)))
    assert verify_detached(elf, b"section", tmp_path / "bad", reader) == ["the build-id changed"]


def companion_beside(program: Path, kind: str, directory: Path) -> Path:
    file = directory / "tree" / kind
    file.parent.mkdir()
    program = Path(shutil.copy(program, directory / "program"))
    if kind.startswith("detached"):
        made = Path(shutil.copy(add_section(program, detached=directory / "made").detached, file))
        if kind.endswith("zstd"):
            compress_section(made)
        return made
    if kind == "debug-with-section":
        add_section(program)
    subprocess.run(["objcopy", "--only-keep-debug", program, file], check=True)
    return file


@for_each("kind", KINDS)
def test_commands_leave_them_alone(kind: str, program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    companion = companion_beside(program, kind, tmp_path)
    before = companion.read_bytes()
    for command in WRITERS:
        done = run(*command, companion)
        assert companion.read_bytes() == before, command
        assert not (tmp_path / "store").exists()
        assert len(done.output.splitlines()) == 1
        assert done.exit_code == (1 if command[0] == "convert" else 0)
        if KINDS[kind] is Companion.DETACHED_SECTION:
            assert Companion.DETACHED_SECTION in done.output
        if command[0] != "convert" and "--detached" not in command:
            assert run(*command, companion, "-o", tmp_path / "copy").exit_code == 0
            assert (tmp_path / "copy").read_bytes() == before
    for command in (("add-tree", "--strict"), ("remove-tree", "--strict"), ("remove-tree", "--force")):
        done = run(*command, companion.parent)
        assert done.exit_code == 0, done.output
        assert " 0 refused" in done.output
        assert companion.read_bytes() == before, command
    with tarfile.open("x.tar", "w") as archive:
        archive.add(companion, "lib/x")
    package = Path("x.tar").read_bytes()
    for name in ("add-section", "remove"):
        assert run(name, "x.tar").exit_code == 0
        assert Path("x.tar").read_bytes() == package


def test_a_store_in_a_tree_survives_remove_tree(program: Path, tmp_path: Path) -> None:
    add_section(program, detached=tmp_path / "store")
    assert run("remove-tree", tmp_path).exit_code == 0
    done = run("check", "--sections", tmp_path / "store", program)
    assert done.exit_code == 0
    assert done.output.startswith(f"{program}: OK: ")


def test_check_says_with_what_to_compare_a_detached_section(program: Path, tmp_path: Path) -> None:
    made = add_section(program, detached=tmp_path)
    done = run("check", made.detached)
    assert done.exit_code == 1
    assert "a detached section, with nothing to compare it with: check the file" in done.output
    assert "no program or library in it has" in run("check", tmp_path).output  # a tree with a store
