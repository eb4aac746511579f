"""Names from /tmp/perf-PID.map and from the debug files on the machine, if these are the process's and the file's own."""

from __future__ import annotations

import lzma
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sframegen.elf.file import ElfFile, open_elf
from sframegen.elf.notes import read_build_id
from sframegen.elf.symbols import find_functions_named
from sframegen.stack.names import perf_map, symbol_files
from sframegen.stack.names.file_names import FileNames
from sframegen.stack.names.perf_map import PerfMap
from sframegen.stack.names.symbol_files import DebugFiles, load_mini_debug_file
from tests.support.peers import Compiler
from tests.support.processes.live import Program, compiled

NOBODY = 65534


class Target:
    def __init__(self) -> None:
        self.process = subprocess.Popen(["sleep", "1000"])
        self.pid = self.process.pid
        self.file = Path(f"/tmp/perf-{self.pid}.map")

    def names(self, *addresses: int) -> list[str | None]:
        names = PerfMap(self.pid)
        names.read()
        return found(names, *addresses)


def found(names: PerfMap, *addresses: int) -> list[str | None]:
    entries = [names.find(address) for address in addresses]
    return [entry.name.decode() if entry else None for entry in entries]


@pytest.fixture
def target() -> Iterator[Target]:
    target = Target()
    yield target
    target.file.unlink(missing_ok=True)
    target.process.kill()
    target.process.wait()


def test_names(target: Target) -> None:
    target.file.write_text("1000 100 first\n0x1100 0x80 Its second\nnot a line\n\nFFFF800000000000 10 last\n 2000 8 space\n")
    found = target.names(0xFFF, 0x1000, 0x10FF, 0x1100, 0x117F, 0x1180, 0x2000, 0xFFFF80000000000F)
    assert found == [None, *["first"] * 2, *["Its second"] * 2, None, None, "last"]


def test_space_is_used_again(target: Target) -> None:
    """The entry that was written last counts, though another begins nearer."""
    target.file.write_text("1000 20 old\n1040 20 older\n1000 100 new\n1010 8 newest\n")
    assert target.names(0x1008, 0x1012, 0x1018, 0x1050) == ["new", "newest", "new", "new"]


def test_a_map_that_grows(target: Target) -> None:
    """What is new is read; a line that is being written, when it is whole."""
    names = PerfMap(target.pid)
    names.read()
    assert found(names, 0x1000) == [None]
    for text, expected in (("1000 10 a\n2000 10 b", ["a", None]), ("cd\n", ["a", "bcd"]), ("1000 10 e\n", ["e", "bcd"])):
        with target.file.open("a") as file:
            file.write(text)
        names.read()
        assert found(names, 0x1000, 0x2000) == expected
    target.file.write_text("2000 10 begun anew\n")
    names.read()
    assert found(names, 0x1000, 0x2000) == [None, "begun anew"]
    target.file.unlink()
    names.read()
    assert found(names, 0x2000) == [None]


def _write(target: Target) -> Path:
    target.file.write_text("1000 10 planted\n")
    return target.file


PLANTED: dict[str, Callable[[Target, Path], object]] = {
    "a link": lambda target, other: target.file.symlink_to(other),
    "a hard link": lambda target, _: target.file.with_name(f"{target.file.name}.other").hardlink_to(_write(target)),
    "a pipe": lambda target, _: os.mkfifo(target.file),
    "a directory": lambda target, _: target.file.mkdir(),
    "writable": lambda target, _: _write(target).chmod(0o666),
    "of an earlier process that had the same id": lambda target, _: os.utime(_write(target), (0, 0)),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_a_file_that_may_be_somebody_elses(planted: str, target: Target, tmp_path: Path) -> None:
    (tmp_path / "other").write_text("1000 10 planted\n")
    PLANTED[planted](target, tmp_path / "other")
    try:
        assert target.names(0x1000) == [None]
    finally:
        for name in target.file.parent.glob(f"{target.file.name}*"):
            name.rmdir() if name.is_dir() else name.unlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="files of others are for root to make")
def test_owners(target: Target) -> None:
    target.file.write_text("1000 10 name\n")
    assert target.names(0x1000) == ["name"]
    os.chown(target.file, NOBODY, NOBODY)
    assert target.names(0x1000) == [None]
    target.process.kill()
    target.process.wait()
    target.file.unlink()
    target.process = subprocess.Popen(["sleep", "1000"], user=NOBODY)
    target.pid = target.process.pid
    target.file = target.file.with_name(f"perf-{target.pid}.map")
    target.file.write_text("1000 10 by root\n")
    assert target.names(0x1000) == ["by root"]
    os.chown(target.file, NOBODY, NOBODY)
    assert target.names(0x1000) == ["by root"]


@pytest.mark.skipif(os.geteuid() != 0, reason="root can give files to any group")
def test_a_group_that_may_write(target: Target) -> None:
    """The private group of the file's owner, which has the same id, is as good as the owner; the members of others are unknown."""
    target.file.write_text("1000 10 name\n")
    for group, mode, names in ((0, 0o664, ["name"]), (NOBODY, 0o644, ["name"]), (NOBODY, 0o664, [None])):
        os.chown(target.file, -1, group)
        target.file.chmod(mode)
        assert target.names(0x1000) == names


@pytest.mark.skipif(shutil.which("unshare") is None, reason="no unshare on this machine")
@pytest.mark.parametrize("linked", [False, True])
def test_the_process_own_tmp(linked: bool, compile_c: Compiler, tmp_path: Path) -> None:
    """That of the root directory it has; no link leads out of there."""
    root = tmp_path / "root"
    (root / "real").mkdir(parents=True)
    program = compiled(compile_c, root, 'int main(void) { hold(); puts("done"); return 0; }', "-static", section=False)
    if linked:
        (root / "tmp").symlink_to("real")
    else:
        (root / "real").rename(root / "tmp")
    with Program(Path(shutil.which("unshare") or ""), "-r", "-R", root, f"/{program.name}") as running:
        (root / "tmp" / f"perf-{running.pid}.map").write_text("1000 10 inside\n")
        names = PerfMap(running.pid)
        names.read()
        assert found(names, 0x1000) == [None if linked else "inside"]


def test_limits(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    line = "1000 10 first\n"
    huge = f"4000 {1 << 40:x} huge\n{1 << 14:x} {1 << 14:x} one place\n{1 << 15:x} {1 << 14:x} two\n{1 << 16:x} {1 << 14:x} three\n"
    target.file.write_text(line + huge)
    monkeypatch.setattr(perf_map, "MAX_BUCKET_ENTRIES", 3)
    assert target.names(0x1000, 0x4000, 1 << 15, 1 << 16, 1 << 30) == ["first", "one place", "two", None, None]
    monkeypatch.setattr(perf_map, "MAX_BYTES", len(line) + 20)
    assert target.names(0x1000, 0x4000, 1 << 15) == ["first", None, None]


@pytest.mark.parametrize("long", ["2000 10 " + "x" * 200, "\0" * 200 + "\n"])
def test_a_file_is_read_in_parts_and_nothing_of_a_longer_line_is_used(
    target: Target, monkeypatch: pytest.MonkeyPatch, long: str
) -> None:
    """Zeros are where somebody has cut a file off that a process writes on."""
    monkeypatch.setattr(perf_map, "READ_SIZE", 40)
    target.file.write_text("1000 10 first\n" + long + "\n3000 10 third\n")
    assert target.names(0x1000, 0x2000, 0x3000) == ["first", None, "third"]
    target.file.write_text("".join(f"{number}000 10 name{number}\n" for number in range(1, 10)))
    assert target.names(0x1000, 0x5000, 0x9000) == ["name1", "name5", "name9"]


def test_a_process_that_ended_after_it_was_seen(target: Target) -> None:
    """A profiler names its stacks when the command has ended."""
    seen = PerfMap(target.pid)
    target.file.write_text("1000 10 name\n")
    target.process.kill()
    target.process.wait()
    seen.read()
    assert found(seen, 0x1000) == ["name"]
    assert target.names(0x1000) == [None]
    target.file.unlink()
    assert target.names(0, 0x1000) == [None, None]


@given(st.binary(max_size=200) | st.from_regex(rb"([0-9a-f]{1,20} [0-9a-f]{1,20} .{0,9}\n){0,9}"))
def test_whatever_is_in_the_file_it_is_an_answer(data: bytes) -> None:
    names = PerfMap(0)
    names._entries.add(data)
    names.find(0x1000)


def test_a_map_that_was_ended_keeps_its_names_and_no_descriptor(target: Target) -> None:
    PerfMap(target.pid).end()  # from then on, there is a helper
    before = len([*Path("/proc/self/fd").iterdir()])
    target.file.write_text("1000 100 first\n")
    names, empty = PerfMap(target.pid), PerfMap(os.getpid())
    assert names.end()
    assert not empty.end()
    assert len([*Path("/proc/self/fd").iterdir()]) == before
    target.file.write_text("1000 100 another\n")
    names.read()
    assert found(names, 0x1000) == ["first"]


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
