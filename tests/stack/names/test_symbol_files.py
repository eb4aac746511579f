"""Names of stripped files come from the debug files on the machine, if these are theirs."""

from __future__ import annotations

import lzma
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sframegen.elf.file import ElfFile, open_elf
from sframegen.elf.notes import read_build_id
from sframegen.elf.symbols import find_functions_named
from sframegen.stack.names import symbol_files
from sframegen.stack.names.file_names import FileNames
from sframegen.stack.names.symbol_files import DebugFiles, load_mini_debug_file

if TYPE_CHECKING:
    from tests.support.peers import Compiler

SOURCE = "static __attribute__((noinline)) int inner(int a) { return a * 7 / 3; }\nint main(int c, char **v) { return inner(c); }\n"


class Split:
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

    def name(self, directory: Path | None = None) -> str | None:
        """By the debug files below a directory, else only by those beside the program, and in the cache of debuginfod."""
        return (
            FileNames(open_elf(self.program), debug_files=DebugFiles(str(directory or self.folder / "none"))).at(self.address).name
        )

    def stored(self, directory: Path, name: str, source: Path) -> None:
        build_id = (read_build_id(open_elf(self.program)) or b"").hex()
        path = directory / name.format(build_id[:2], build_id[2:])
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, path)


@pytest.fixture(params=["--build-id", "--build-id=none"])
def split(compile_c: Compiler, tmp_path: Path, request: pytest.FixtureRequest) -> Split:
    return Split(compile_c(SOURCE, "-O1", f"-Wl,{request.param}"), tmp_path)


@pytest.fixture
def with_id(compile_c: Compiler, tmp_path: Path) -> Split:
    return Split(compile_c(SOURCE, "-O1", "-Wl,--build-id"), tmp_path)


def test_by_build_id(with_id: Split, tmp_path: Path) -> None:
    for source, name in ((with_id.debug, "inner"), (Path("/bin/true"), None)):  # another program's
        with_id.stored(tmp_path / "debug", ".build-id/{}/{}.debug", source)
        assert with_id.name(tmp_path / "debug") == name


@pytest.mark.parametrize("folder", ["", ".debug", "usr-lib-debug"])
def test_by_debug_link(folder: str, split: Split, tmp_path: Path) -> None:
    assert split.name() is None
    split.link()
    usr = tmp_path / "usr"
    place = usr.joinpath(*tmp_path.parts[1:]) if folder == "usr-lib-debug" else tmp_path / folder
    place.mkdir(parents=True, exist_ok=True)
    split.debug.rename(place / split.debug.name)
    assert split.name(usr) == "inner"


def test_a_debug_link_to_another_file_is_not_used(split: Split, compile_c: Compiler) -> None:
    """By its build-id, else by its CRC; the CRC alone would be easy to forge."""
    split.link()
    other = compile_c(SOURCE + "int more(void) { return 1; }", "-O1", "-Wl,--build-id")
    subprocess.run(["objcopy", "--only-keep-debug", other, split.debug], check=True)
    assert split.name() is None
    split.debug.unlink()
    os.mkfifo(split.debug)
    assert split.name() is None


@pytest.mark.parametrize("variable", ["XDG_CACHE_HOME", "DEBUGINFOD_CACHE_PATH", "HOME"])
def test_what_debuginfod_has_fetched_must_have_the_build_id(
    variable: str, with_id: Split, compile_c: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = {"XDG_CACHE_HOME": "debuginfod_client", "DEBUGINFOD_CACHE_PATH": ".", "HOME": ".cache/debuginfod_client"}
    for name in below:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, str(tmp_path / "cache"))
    assert with_id.name() is None
    another = compile_c(SOURCE + "int more(void) { return 1; }", "-O1", "-Wl,--build-id")
    for source, expected in ((with_id.debug, "inner"), (another, None)):
        with_id.stored(tmp_path / "cache" / below[variable], "{}{}/debuginfo", source)
        assert with_id.name() == expected


def with_mini(split: Split, packed: bytes) -> ElfFile:
    (split.folder / "mini").write_bytes(packed)
    subprocess.run(["objcopy", "--add-section", f".gnu_debugdata={split.folder / 'mini'}", split.program], check=True)
    return open_elf(split.program)


def test_mini_debug_information(split: Split) -> None:
    with_mini(split, lzma.compress(split.debug.read_bytes()))
    assert split.name() == "inner"


@pytest.mark.dear
def test_mini_debug_information_that_is_damaged_or_too_large(split: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = lzma.compress(split.debug.read_bytes())
    for data in (b"", packed[:-20], packed[:40], b"x" * 100, lzma.compress(b"no ELF file"), lzma.compress(bytes(1 << 26))):
        shutil.copy(split.whole, split.program)
        subprocess.run(["strip", split.program], check=True)
        assert load_mini_debug_file(with_mini(split, data)) is None
        assert split.name() is None
    monkeypatch.setattr(symbol_files, "MAX_MINI_DEBUG_BYTES", 100)
    shutil.copy(split.whole, split.program)
    assert load_mini_debug_file(with_mini(split, packed)) is None
