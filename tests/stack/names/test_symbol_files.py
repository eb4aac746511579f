"""Names of stripped files come from the debug files on the machine, if these are theirs."""

from __future__ import annotations

import lzma
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from sframegen.elf.file import ElfFile, open_elf
from sframegen.elf.notes import read_build_id
from sframegen.elf.symbols import find_functions_named
from sframegen.stack.names import symbol_files
from sframegen.stack.names.file_names import FileNames
from sframegen.stack.names.symbol_files import DebugFiles, load_mini_debug_file

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.peers import Compiler

SOURCE = "static __attribute__((noinline)) int inner(int a) { return a * 7 / 3; }\nint main(int c, char **v) { return inner(c); }\n"


class Split:
    """A program as it was linked, stripped, and its debug file, in a folder of their own."""

    def __init__(self, whole: Path, folder: Path) -> None:
        self.folder = folder
        self.whole, self.program, self.debug = (folder / name for name in ("whole", "program", "program.debug"))
        shutil.copy(whole, self.whole)
        subprocess.run(["objcopy", "--only-keep-debug", whole, self.debug], check=True)
        subprocess.run(["strip", "-o", self.program, whole], check=True)
        [symbol] = find_functions_named(open_elf(whole), b"inner")
        self.address = symbol.address

    def link(self) -> None:
        subprocess.run(["objcopy", f"--add-gnu-debuglink={self.debug}", self.program], check=True)

    def name(self, debug: DebugFiles) -> str | None:
        return FileNames(open_elf(self.program), debug_files=debug).at(self.address).name


@pytest.fixture(params=["--build-id", "--build-id=none"])
def split(compile_c: Compiler, tmp_path: Path, request: pytest.FixtureRequest) -> Split:
    return Split(compile_c(SOURCE, "-O1", f"-Wl,{request.param}"), tmp_path)


@pytest.fixture
def with_id(compile_c: Compiler, tmp_path: Path) -> Split:
    return Split(compile_c(SOURCE, "-O1", "-Wl,--build-id"), tmp_path)


def test_without_a_debug_file_there_is_no_name(split: Split, tmp_path: Path) -> None:
    assert split.name(DebugFiles(directory=str(tmp_path / "none"))) is None


def test_by_build_id(with_id: Split, tmp_path: Path) -> None:
    build_id = (read_build_id(open_elf(with_id.program)) or b"").hex()
    home = tmp_path / "debug/.build-id" / build_id[:2] / f"{build_id[2:]}.debug"
    home.parent.mkdir(parents=True)
    shutil.copy(with_id.debug, home)
    found = DebugFiles(directory=str(tmp_path / "debug"))
    assert with_id.name(found) == "inner"
    shutil.copy("/bin/true", home)  # another program's
    assert with_id.name(DebugFiles(directory=str(tmp_path / "debug"))) is None


@pytest.mark.parametrize("folder", ["", ".debug", "usr-lib-debug"])
def test_by_debug_link(folder: str, split: Split, tmp_path: Path) -> None:
    split.link()
    usr = tmp_path / "usr"
    place = usr.joinpath(*tmp_path.parts[1:]) if folder == "usr-lib-debug" else tmp_path / folder
    place.mkdir(parents=True, exist_ok=True)
    split.debug.rename(place / split.debug.name)
    assert split.name(DebugFiles(directory=str(usr))) == "inner"


def test_a_debug_link_to_another_file_is_not_used(split: Split, compile_c: Compiler) -> None:
    """By its build-id, else by its CRC; the CRC alone would be easy to forge."""
    split.link()
    other = compile_c(SOURCE + "int more(void) { return 1; }", "-O1", "-Wl,--build-id")
    subprocess.run(["objcopy", "--only-keep-debug", other, split.debug], check=True)
    assert split.name(DebugFiles(directory=str(split.folder / "none"))) is None
    split.debug.unlink()
    os.mkfifo(split.debug)
    assert split.name(DebugFiles(directory=str(split.folder / "none"))) is None


@pytest.mark.parametrize("variable", ["XDG_CACHE_HOME", "DEBUGINFOD_CACHE_PATH", "HOME"])
def test_what_debuginfod_has_fetched_must_have_the_build_id(
    variable: str, with_id: Split, compile_c: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = {"XDG_CACHE_HOME": "debuginfod_client", "DEBUGINFOD_CACHE_PATH": ".", "HOME": ".cache/debuginfod_client"}
    for name in below:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, str(tmp_path / "cache"))
    build_id = read_build_id(open_elf(with_id.program))
    assert build_id
    fetched = tmp_path / "cache" / below[variable] / build_id.hex() / "debuginfo"
    fetched.parent.mkdir(parents=True)
    nowhere = str(with_id.folder / "none")
    assert with_id.name(DebugFiles(nowhere)) is None
    shutil.copy(with_id.debug, fetched)
    assert with_id.name(DebugFiles(nowhere)) == "inner"
    shutil.copy(compile_c(SOURCE + "int more(void) { return 1; }", "-O1", "-Wl,--build-id"), fetched)
    assert with_id.name(DebugFiles(nowhere)) is None


def with_mini(split: Split, packed: bytes) -> ElfFile:
    (split.folder / "mini").write_bytes(packed)
    subprocess.run(["objcopy", "--add-section", f".gnu_debugdata={split.folder / 'mini'}", split.program], check=True)
    return open_elf(split.program)


def test_mini_debug_information(split: Split) -> None:
    elf = with_mini(split, lzma.compress(split.debug.read_bytes()))
    names = FileNames(elf, debug_files=DebugFiles(directory=str(split.folder / "none")))
    assert names.at(split.address).name == "inner"


@pytest.mark.dear
def test_mini_debug_information_that_is_damaged_or_too_large(split: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = lzma.compress(split.debug.read_bytes())
    for data in (b"", packed[:-20], packed[:40], b"x" * 100, lzma.compress(b"no ELF file"), lzma.compress(bytes(1 << 26))):
        shutil.copy(split.whole, split.program)
        subprocess.run(["strip", split.program], check=True)
        assert load_mini_debug_file(with_mini(split, data)) is None
        assert split.name(DebugFiles(directory=str(split.folder / "none"))) is None
    monkeypatch.setattr(symbol_files, "MAX_MINI_DEBUG_BYTES", 100)
    shutil.copy(split.whole, split.program)
    assert load_mini_debug_file(with_mini(split, packed)) is None
