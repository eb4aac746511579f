"""Lines and inlined functions are those that the compiler recorded, and a bad file costs its own only."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from array import array
from collections.abc import Collection
from pathlib import Path

import pytest

from sframegen.elf.file import ElfFile, open_elf
from sframegen.elf.notes import read_build_id
from sframegen.elf.symbols import find_functions_named
from sframegen.profile.report import source_lines
from sframegen.profile.report.source_lines import (
    FileAddresses,
    FrameDetail,
    ReadingLimits,
    SourceFrame,
    SourceFrameColumns,
    SourceLines,
    find_source_frames,
    has_debug_information,
)
from sframegen.program import time_limits
from sframegen.program.time_limits import TimeLimits
from sframegen.stack.names.gopclntab import GO_LAYOUTS
from sframegen.stack.names.symbol_files import DebugFiles
from tests.profile.report.test_naming import INLINED_SOURCE as SOURCE
from tests.stack.names.test_gopclntab import TEXT, with_section, written
from tests.support.peers import Compiler

FLAGS = ("-O2", "-g", "-fcf-protection=none", "-Wl,--build-id")

pytest.importorskip("symbolic")


@pytest.fixture(params=["-pie", "-no-pie"])
def program(compile_c: Compiler, request: pytest.FixtureRequest) -> Path:
    return compile_c(SOURCE, *FLAGS, "-fPIE" if request.param == "-pie" else "-fno-pie", request.param)


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def settled(path: Path, target: Path) -> ElfFile:
    shutil.copy(path, target)
    elf = open_elf(target)
    assert elf.status is not None
    old = os.stat_result([*elf.status][:10], {"st_ctime_ns": time.time_ns() - 10**10, "st_mtime_ns": 0})
    return ElfFile(elf.data, elf.name, old)


def addresses_of(elf: ElfFile, function: bytes) -> range:
    [symbol] = find_functions_named(elf, function)
    return range(symbol.address, symbol.address + symbol.size)


def places_at(file: ElfFile, addresses: Collection[int]) -> list[tuple[SourceFrame, ...]]:
    """At each address, the outermost function first; nothing where the debug information has nothing."""
    [(_, found)] = find_source_frames([FileAddresses(0, file, addresses)])
    return [found[address] if isinstance(found, dict) else () for address in addresses]


def test_inlined_functions_come_after_the_one_that_has_them(program: Path) -> None:
    elf = open_elf(program)
    found = places_at(elf, addresses_of(elf, b"outer"))
    chains = {tuple((place.function, place.line, place.inlined) for place in chain) for chain in found}
    assert (("outer", 10, False), ("middle", 7, True), ("deepest", 4, True)) in chains
    assert all(chain[0].function == "outer" and not chain[0].inlined for chain in found)
    assert {place.source for chain in found for place in chain if place.line in (7, 10)} == {found[0][0].source}


def test_what_debug_information_does_not_describe_has_no_place(program: Path) -> None:
    elf = open_elf(program)
    assert places_at(elf, [0, 1 << 40, (1 << 64) - 1]) == [(), (), ()]
    assert places_at(elf, [elf.header.e_entry]) == [()]  # in the C library's start file, which has a symbol only


def test_an_index_is_kept_and_used(compile_c: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elf = settled(compile_c(SOURCE, *FLAGS), tmp_path / "program")
    wanted = [*addresses_of(elf, b"outer")]
    before = places_at(elf, wanted)
    [kept] = (tmp_path / "cache/sframegen/symbols").iterdir()
    assert kept.stat().st_mode & 0o777 == 0o600
    monkeypatch.setattr(elf, "data", memoryview(bytes(len(elf.data))))  # only the index is left to answer
    assert places_at(elf, wanted) == before
    kept.write_bytes(kept.read_bytes()[:100])  # damaged: made again, which needs the file
    assert places_at(elf, wanted) == [()] * len(wanted)


def test_a_file_that_may_still_change_is_not_kept(compile_c: Compiler, tmp_path: Path) -> None:
    shutil.copy(compile_c(SOURCE, *FLAGS), tmp_path / "program")
    elf = open_elf(tmp_path / "program")
    assert places_at(elf, addresses_of(elf, b"main"))[0]
    assert not [*(tmp_path / "cache/sframegen/symbols").iterdir()]


def test_a_file_costs_only_its_own_places(compile_c: Compiler, tmp_path: Path) -> None:
    elf = open_elf(compile_c(SOURCE, *FLAGS))
    good = FileAddresses(1, elf, [addresses_of(elf, b"main")[0]])
    broken = ElfFile(elf.data, "broken")
    broken.data = memoryview(b"nothing")
    found = dict(find_source_frames([FileAddresses(0, broken, [1]), good], directory=tmp_path / "kept"))
    assert isinstance(found[0], str)
    assert "broken" in found[0]
    assert isinstance(found[1], dict)
    assert found[1][good.addresses[0]][0].function == "main"  # type: ignore[index]


def test_one_that_takes_too_much_is_ended(monkeypatch: pytest.MonkeyPatch, compile_c: Compiler, tmp_path: Path) -> None:
    question = FileAddresses(0, open_elf(compile_c(SOURCE, *FLAGS)), [1])
    for work, limits, why in (
        (lambda *_: bytearray(1 << 28), ReadingLimits(120, memory=1 << 26), "MemoryError"),
        (lambda *_: time.sleep(60), ReadingLimits(0.2), "it took longer than 0.2 seconds"),
    ):
        monkeypatch.setattr(source_lines, "look_up_source_frames", work)
        [(_, said)] = find_source_frames([question], directory=tmp_path, limits=limits)
        assert said == f"{question.file.name}: no source lines or inlined functions: {why}"


def test_all_together_take_no_longer_than_that(compile_c: Compiler, tmp_path: Path) -> None:
    question = FileAddresses(0, open_elf(compile_c(SOURCE, *FLAGS)), [1])
    questions = [question, question._replace(number=1)]
    assert [*find_source_frames(questions, directory=tmp_path, limits=ReadingLimits(120, 0))] == [(0, None), (1, None)]


def test_large_debug_information_is_read_one_file_after_the_other(
    monkeypatch: pytest.MonkeyPatch, compile_c: Compiler, tmp_path: Path
) -> None:
    """Each takes a multiple of it in memory. A second one at the same time finds that the lock is there."""
    lock = tmp_path / "lock"

    def source_frames_in(*_: object) -> SourceFrameColumns:
        lock.touch(exist_ok=False)
        until = time.process_time() + 0.1
        while time.process_time() < until:
            pass
        lock.unlink()
        return SourceFrameColumns([], array("B", [0]), array("I"))

    monkeypatch.setattr(source_lines, "look_up_source_frames", source_frames_in)
    monkeypatch.setattr(source_lines, "MAX_BYTES_AT_ONCE", 1)
    question = FileAddresses(0, open_elf(compile_c(SOURCE, *FLAGS)), [1])
    questions = [question._replace(number=number) for number in range(4)]
    found = dict(find_source_frames(questions, directory=tmp_path, limits=ReadingLimits(120, processes=4)))
    assert found == {number: {1: ()} for number in range(4)}


def test_names_are_demangled(compile_c: Compiler) -> None:
    pytest.importorskip("pycxxfilt")
    source = (
        "namespace a { __attribute__((noinline)) int f(long x) { return x / 3; } } int main(int c, char **v) { return a::f(c); }"
    )
    elf = open_elf(compile_c(source, *FLAGS, "-x", "c++"))
    [symbol] = find_functions_named(elf, b"_ZN1a1fEl")
    assert places_at(elf, [symbol.address])[0][0].function == "a::f(long)"


def test_stripped_files_have_nothing_to_ask_for(program: Path, tmp_path: Path) -> None:
    assert has_debug_information(open_elf(program))
    subprocess.run(["strip", "-o", tmp_path / "stripped", program], check=True)
    assert not has_debug_information(open_elf(tmp_path / "stripped"))
    subprocess.run(["objcopy", "--only-keep-debug", program, tmp_path / "debug"], check=True)
    debug = open_elf(tmp_path / "debug")
    assert has_debug_information(debug)
    elf = open_elf(program)
    wanted = addresses_of(elf, b"outer")
    assert places_at(debug, wanted) == places_at(elf, wanted)


def test_every_byte_of_debug_information_may_be_wrong(compile_c: Compiler, tmp_path: Path) -> None:
    """Damage in DWARF gives other places, or none, and never an exception here."""
    original = bytes(open_elf(compile_c(SOURCE, *FLAGS, "-gz=none")).data)
    elf = ElfFile(memoryview(original))
    debug = [section.header for section in elf.sections if section.name.startswith(".debug_")]
    wanted = [*addresses_of(elf, b"outer")]
    questions = []
    for number in range(200):
        data = bytearray(original)
        header = debug[number % len(debug)]
        data[header.sh_offset + number * 7919 % header.sh_size] ^= 1 << number % 8
        questions.append(FileAddresses(number, ElfFile(memoryview(data), f"damaged {number}"), wanted))
    found = dict(find_source_frames(questions, directory=tmp_path))
    assert len(found) == len(questions)
    for answer in found.values():
        assert answer is not None
        assert isinstance(answer, str) or all(isinstance(place, SourceFrame) for chain in answer.values() for place in chain)


# -- where a profile's places come from: the file, its debug file, or Go's own table


def learned(elf: ElfFile, folder: Path, *addresses: int, debug: DebugFiles | None = None) -> SourceLines:
    found = SourceLines()
    debug_files = debug or DebugFiles(directory=str(folder / "none"))
    assert [*found.load([FileAddresses(7, elf, addresses)], debug_files, FrameDetail(), directory=folder / "kept")] == [7]
    return found


def test_files_without_time_are_counted(program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_limits, "current", TimeLimits(all_lines=0))
    found = SourceLines()
    asked = [FileAddresses(number, open_elf(program), [1]) for number in (3, 4)]
    assert sorted(found.load(asked, DebugFiles(), FrameDetail(), directory=tmp_path)) == [3, 4]
    late = "all files together took longer than 0 seconds"
    assert found.notes == [f"2 files such as {program}: no source lines or inlined functions: {late}"]


def test_a_stripped_file_has_those_of_its_debug_file(program: Path, tmp_path: Path) -> None:
    stripped, start = tmp_path / "stripped", addresses_of(open_elf(program), b"outer").start
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
    elf = open_elf(program)
    elf.data = memoryview(bytes(len(elf.data)))
    elf.status = None
    [note] = learned(elf, tmp_path, addresses_of(open_elf(program), b"outer").start).notes
    assert "symbolic cannot read its debug information" in note


def test_lines_of_go_need_no_library(compile_c: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_lines, "has_library", lambda: False)
    elf = open_elf(with_section(compile_c("int main(void) { return 0; }"), written(GO_LAYOUTS[-1]), ".gopclntab", tmp_path))
    assert learned(open_elf(compile_c(SOURCE, *FLAGS)), tmp_path, 1).notes == []  # nobody has asked for lines of C
    assert learned(elf, tmp_path, TEXT, 1).frames_at(7, TEXT) == (SourceFrame("", "/src/main.go", 12, inlined=False),)
