"""Files beside a program: every command that writes leaves separate debug files and detached sections as they are."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sframegen import add_section
from sframegen.detached.detached_file import Companion, companion_of
from sframegen.elf.file import open_elf
from tests.support.commands import run
from tests.support.loops import for_each
from tests.support.zstandard import compress_section

if TYPE_CHECKING:
    from tests.support.peers import Compiler

SOURCE = "int f(int n) { return n ? f(n - 1) + n : 0; }\nint main(int n, char **v) { return f(n) + (v == 0); }\n"
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
    made = compile_c(SOURCE, "-O1", "-Wl,--build-id=0x0123456789abcdef0123456789abcdef")
    return Path(shutil.copy(made, tmp_path / "program"))


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
def test_kinds_are_known(kind: str, program: Path, tmp_path: Path) -> None:
    """A program is none, with or without a section."""
    assert companion_of(open_elf(companion_beside(program, kind, tmp_path))) is KINDS[kind]
    assert companion_of(open_elf(program)) is None
    for unloaded in (False, True):
        add_section(program, output=tmp_path / "added", unloaded=unloaded)
        assert companion_of(open_elf(tmp_path / "added")) is None


@for_each("kind", KINDS)
@for_each("command", WRITERS, ids=" ".join)
def test_a_command_for_files_leaves_them_alone(
    command: tuple[str, ...], kind: str, program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    companion = companion_beside(program, kind, tmp_path)
    before = companion.read_bytes()
    done = run(*command, companion)
    assert companion.read_bytes() == before
    assert not (tmp_path / "store").exists()
    assert len(done.output.splitlines()) == 1
    assert done.exit_code == (1 if command[0] == "convert" else 0)
    if KINDS[kind] is Companion.DETACHED_SECTION:
        assert Companion.DETACHED_SECTION in done.output
    if command[0] != "convert" and "--detached" not in command:
        assert run(*command, companion, "-o", tmp_path / "copy").exit_code == 0
        assert (tmp_path / "copy").read_bytes() == before


@for_each("kind", KINDS)
@for_each("command", [("add-tree", "--strict"), ("remove-tree", "--strict"), ("remove-tree", "--force")], ids=" ".join)
def test_a_command_for_trees_leaves_them_alone(command: tuple[str, ...], kind: str, program: Path, tmp_path: Path) -> None:
    companion = companion_beside(program, kind, tmp_path)
    before = companion.read_bytes()
    done = run(*command, companion.parent)
    assert done.exit_code == 0, done.output
    assert " 0 refused" in done.output
    assert companion.read_bytes() == before


@for_each("kind", KINDS)
@for_each("command", ["add-section", "remove"])
def test_a_package_with_one_is_unchanged(command: str, kind: str, program: Path, tmp_path: Path) -> None:
    companion = companion_beside(program, kind, tmp_path)
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        archive.add(companion, "lib/x")
    before = (tmp_path / "x.tar").read_bytes()
    done = run(command, tmp_path / "x.tar")
    assert done.exit_code == 0
    assert (tmp_path / "x.tar").read_bytes() == before


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
