"""Detached sections: the file that is written, and for which files it is used. Commands leave it and debug files alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from contextlib import suppress
from pathlib import Path

import pytest

import sframegen
from linker.files.read_back import Reader
from linker.inject.verify import verify_detached
from sframegen import FormatError, Outcome, add_section, read
from sframegen.base.errors import Refusal, RefusedError
from sframegen.detached.detached_file import Companion, Identity, build_detached_file, identity_of, path_in_store, read_section
from sframegen.detached.stores import Stores, list_stores
from sframegen.elf.file import ElfFile, open_elf
from sframegen.elf.records import PT, RECORDS, SHF, Ehdr, Phdr
from sframegen.format.decode import open_section
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
    done = run("check", add_section(program, detached=tmp_path).detached)
    assert done.exit_code == 1
    assert "a detached section, with nothing to compare it with: check the file" in done.output
    assert "no program or library in it has" in run("check", tmp_path).output  # a tree with a store


# -- stores: their order, the files that are not used, and what a command says of them, once

NOBODY = 65534


@pytest.fixture
def store(program: Path, tmp_path: Path) -> Path:
    add_section(program, detached=tmp_path / "store")
    return tmp_path / "store"


def place(store: Path, program: Path) -> Path:
    return store / path_in_store(identity(program).build_id)


def rules(stores: Stores, program: Path) -> int | None:
    return stores.find_for_file(open_elf(program), lambda data: open_section(data, 0).header.version)


def test_the_first_store_that_has_a_section_is_used(program: Path, store: Path, tmp_path: Path) -> None:
    add_section(program, detached=tmp_path / "other", version=2)
    (tmp_path / "empty").mkdir()
    places = [tmp_path / "missing", tmp_path / "empty", tmp_path / "other", store]
    assert rules(Stores(places), program) == 2
    assert rules(Stores(places[::-1]), program) == 3


def test_a_damaged_section_is_noted_once_and_the_next_store_is_used(program: Path, store: Path, tmp_path: Path) -> None:
    add_section(program, detached=tmp_path / "other", version=2)
    damaged = place(tmp_path / "other", program)
    data = bytearray(damaged.read_bytes())
    at = data.index(b"\xe2\xde\x02")  # the section's magic number and version
    data[at] = 0
    damaged.write_bytes(data)
    stores = Stores([tmp_path / "other", store])
    assert [rules(stores, program), rules(stores, program)] == [3, 3]
    (note,) = stores.take_notes()
    assert note.startswith(f"{damaged}: .sframe+0x0: magic number ")
    assert note.endswith("; not used")
    assert rules(stores, program) == 3
    assert stores.take_notes() == []


def test_a_section_of_another_build_is_not_used(program: Path, store: Path, compile_c: Compiler) -> None:
    """Its file has the name of the build-id: someone has put it there."""
    assert not Stores()
    assert rules(Stores(), program) is None
    assert Stores().describe_state_for(open_elf(program)) == ""
    new = compile_c(SOURCE, "-O1", "-Wl,--build-id=0x0123456789abcdef0123456789abcdee")
    shutil.copy(place(store, program), place(store, new))
    stores = Stores([store])
    assert rules(stores, new) is None
    assert stores.take_notes() == [f"{place(store, new)}: for another file: its build-id differs; not used"]


OTHER_NAME = "a symbolic link or another file has its name"
HOSTILE = {  # commands of the shell in the directory above that of FILE
    "rm FILE; mkfifo FILE": "not a regular file",
    "mv FILE real; ln -s ../real FILE": OTHER_NAME,
    "mv 01 real; ln -s real 01": OTHER_NAME,
    "rm FILE; mkdir FILE": "Is a directory",
    ": >FILE": "the file is empty",
    ": >FILE; truncate -s 1T FILE": "not an ELF file",
    "chmod 666 FILE": "others can write to it",
}


@pytest.mark.parametrize("spoil", HOSTILE)
def test_what_is_no_file_of_ours_is_not_used(spoil: str, program: Path, store: Path) -> None:
    file = place(store, program)
    above = file.parent.parent
    subprocess.run(["sh", "-ec", spoil.replace("FILE", str(file.relative_to(above)))], cwd=above, check=True)
    stores = Stores([store])
    assert rules(stores, program) is None
    assert stores.take_notes() == [f"{file}: {HOSTILE[spoil]}; not used"]


@pytest.mark.skipif(os.geteuid() != 0, reason="makes files of another user")
def test_whose_files_are_used(program: Path, store: Path) -> None:
    """Those of root, of this user, and of the owner of the store; for root, nobody else's group may write to them."""
    file = place(store, program)
    os.chown(file, NOBODY, 0)
    stores = Stores([store])
    assert rules(stores, program) is None
    why = "it belongs to another user than you, root or the owner of the store"
    assert stores.take_notes() == [f"{file}: {why}; not used"]
    os.chown(store, NOBODY, 0)
    assert rules(stores, program) == 3
    file.chmod(0o664)
    assert rules(stores, program) == 3
    os.chown(file, NOBODY, NOBODY)
    file.chmod(0o664)
    assert rules(stores, program) is None
    assert stores.take_notes() == [f"{file}: others can write to it; not used"]


def test_a_section_that_comes_later_changes_the_state(program: Path, store: Path, tmp_path: Path) -> None:
    elf = open_elf(program)
    stores = Stores([tmp_path / "later", store])
    states = [Stores([tmp_path / "later"]).describe_state_for(elf), stores.describe_state_for(elf)]
    add_section(program, detached=tmp_path / "later")
    states += [Stores([tmp_path / "later"]).describe_state_for(elf), stores.describe_state_for(elf)]
    add_section(program, detached=tmp_path / "later", version=2)
    states += [stores.describe_state_for(elf)]
    assert states[0] == ""
    assert len(set(states)) == 5
    assert stores.describe_state_for(elf) == states[-1]


def test_notes_that_are_damaged_are_no_identity(program: Path, store: Path, compile_c: Compiler) -> None:
    for size in (1, 65):
        assert identity_of(open_elf(compile_c(SOURCE, f"-Wl,--build-id=0x{'ab' * size}"))) is None
    data = bytearray(program.read_bytes())
    at = data.index(identity(program).build_id) - 16
    data[at : at + 8] = b"\xff" * 8
    program.write_bytes(data)
    with pytest.raises(FormatError):
        identity_of(open_elf(program))
    assert rules(Stores([store]), program) is None


def test_directories_come_from_the_command_line_then_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SFRAMEGEN_PATH", ":/c::relative:")
    assert list_stores(["/a", "/b"]) == ["/a", "/b", "/c", "relative"]
    monkeypatch.delenv("SFRAMEGEN_PATH")
    assert list_stores(()) == []


def printed(*arguments: object) -> str:
    done = run(*arguments)
    assert done.exit_code == 0, done.output
    return done.output


def test_lookup_reads_the_store_after_the_file(program: Path, store: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    add_section(program, output=tmp_path / "added")
    expected = printed("lookup", tmp_path / "added", "main", "f+4")
    assert printed("lookup", "--sections", store, program, "main", "f+4") == expected
    monkeypatch.setenv("SFRAMEGEN_PATH", str(store))
    assert printed("lookup", program, "main", "f+4") == expected
    place(store, program).write_bytes(b"damaged")
    assert printed("lookup", tmp_path / "added", "main", "f+4") == expected  # its own: the store is not looked at
    done = run("lookup", "--sections", tmp_path / "missing", program, "main")
    assert done.exit_code == 2
    done = run("lookup", program, "main")
    assert done.exit_code == 1
    assert done.output.splitlines() == [
        f"sframegen: {place(store, program)}: not an ELF file; not used",
        f"sframegen: {program}: no SFrame section",
    ]


def test_check_compares_a_detached_section_with_the_file(program: Path, store: Path) -> None:
    good = sframegen.check(program, sections=[store])
    assert good.worst() is sframegen.Severity.NOTE
    assert good.code[sframegen.Verdict.EQUAL] == add_section(program, dry_run=True).covered_bytes
    bad = Path(shutil.copy(program, program.with_name("bad")))
    data = bytearray(bad.read_bytes())
    at = open_elf(bad).section(".eh_frame")
    assert at is not None
    data[at.header.sh_offset : at.header.sh_offset + at.header.sh_size] = bytes(at.header.sh_size)
    bad.write_bytes(data)
    assert sframegen.check(bad, sections=[store]).code[sframegen.Verdict.EQUAL] == 0
    assert "OK: " in printed("check", "--sections", store, program)


def test_read_gives_a_copy_of_the_detached_section(program: Path, store: Path) -> None:
    add_section(program, output=program.with_name("unloaded"), unloaded=True)
    section = sframegen.read(program, sections=[store])
    place(store, program).write_bytes(b"")
    assert section.table.start == sframegen.read(program.with_name("unloaded")).table.start
    with pytest.raises(FormatError, match="no SFrame section"):
        sframegen.read(program, sections=[store])
