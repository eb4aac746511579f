"""Stores of detached sections: their order, the files that are not used, and what a command says of them, once."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import sframegen
from sframegen import FormatError, add_section
from sframegen.detached.detached_file import identity_of, path_in_store
from sframegen.detached.stores import Stores, list_stores
from sframegen.elf.file import open_elf
from sframegen.format.decode import open_section
from tests.detached.test_detached_file import BUILD_ID, SOURCE, identity
from tests.support.commands import run
from tests.support.peers import Compiler

NOBODY = 65534


@pytest.fixture
def program(compile_c: Compiler, tmp_path: Path) -> Path:
    return Path(shutil.copy(compile_c(SOURCE, "-O1", BUILD_ID), tmp_path / "program"))


@pytest.fixture
def store(program: Path, tmp_path: Path) -> Path:
    add_section(program, detached=tmp_path / "store")
    return tmp_path / "store"


def place(store: Path, program: Path) -> Path:
    return store / path_in_store(identity(program).build_id)


def rules(stores: Stores, program: Path) -> int | None:
    """Return the version of the section that is found."""
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
    """Nor are build-ids of another size."""
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
