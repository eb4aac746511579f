"""/tmp/perf-PID.map: which files count, and what is found in them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sframegen.stack.names import perf_map
from sframegen.stack.names.perf_map import PerfMap
from tests.support.processes.live import Program, compiled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.peers import Compiler

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
