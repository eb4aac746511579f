"""Where a profile's places come from: the file, its debug file, or Go's own table."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from sframegen.elf.file import ElfFile, open_elf
from sframegen.elf.notes import read_build_id
from sframegen.elf.symbols import find_functions_named
from sframegen.profile.report import source_lines
from sframegen.profile.report.source_lines import FileAddresses, FrameDetail, SourceFrame, SourceLines
from sframegen.program import patience
from sframegen.program.patience import TimeLimits
from sframegen.stack.names.gopclntab import GO_LAYOUTS
from sframegen.stack.names.symbol_files import DebugFiles
from tests.profile.report.test_inlined import SOURCE
from tests.stack.names.test_gopclntab import TEXT, with_section, written

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.peers import Compiler


@pytest.fixture
def program(compile_c: Compiler) -> Path:
    return compile_c(SOURCE, "-O2", "-g", "-Wl,--build-id")


def learned(elf: ElfFile, folder: Path, *addresses: int, debug: DebugFiles | None = None) -> SourceLines:
    found = SourceLines()
    debug_files = debug or DebugFiles(directory=str(folder / "none"))
    assert [*found.load([FileAddresses(7, elf, addresses)], debug_files, FrameDetail(), directory=folder / "kept")] == [7]
    return found


def test_files_without_time_are_counted(program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("symbolic")
    monkeypatch.setattr(patience, "current", TimeLimits(all_lines=0))
    found = SourceLines()
    asked = [FileAddresses(number, open_elf(program), [1]) for number in (3, 4)]
    assert sorted(found.load(asked, DebugFiles(), FrameDetail(), directory=tmp_path)) == [3, 4]
    late = "all files together took longer than 0 seconds"
    assert found.notes == [f"2 files such as {program}: no source lines or inlined functions: {late}"]


def start_of(program: Path) -> int:
    [symbol] = find_functions_named(open_elf(program), b"outer")
    return symbol.address


def test_a_stripped_file_has_those_of_its_debug_file(program: Path, tmp_path: Path) -> None:
    pytest.importorskip("symbolic")
    stripped, start = tmp_path / "stripped", start_of(program)
    subprocess.run(["strip", "-o", stripped, program], check=True)
    assert learned(open_elf(stripped), tmp_path, start).frames_at(7, start) == ()
    build_id = (read_build_id(open_elf(stripped)) or b"").hex()
    place = tmp_path / "debug/.build-id" / build_id[:2] / f"{build_id[2:]}.debug"
    place.parent.mkdir(parents=True)
    shutil.copy(program, place)
    found = learned(open_elf(stripped), tmp_path, start, debug=DebugFiles(str(tmp_path / "debug")))
    assert found.frames_at(7, start)[0].function == "outer"
    assert found.frames_at(7, 1) == found.frames_at(8, start) == ()
    assert found.notes == []


def test_debug_information_that_cannot_be_read_is_noted(program: Path, tmp_path: Path) -> None:
    pytest.importorskip("symbolic")
    elf = open_elf(program)
    elf.data = memoryview(bytes(len(elf.data)))
    elf.status = None
    found = learned(elf, tmp_path, start_of(program))
    [note] = found.notes
    assert "symbolic cannot read its debug information" in note


def test_lines_of_go_need_no_library(compile_c: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_lines, "has_library", lambda: False)
    elf = open_elf(with_section(compile_c("int main(void) { return 0; }"), written(GO_LAYOUTS[-1]), ".gopclntab", tmp_path))
    assert learned(elf, tmp_path, TEXT, 1).frames_at(7, TEXT) == (SourceFrame("", "/src/main.go", 12, inlined=False),)
