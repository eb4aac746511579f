"""A large file is copied while its section is made: the result, and what a failure leaves, is as without that."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Thread
from typing import BinaryIO
from unittest.mock import Mock

import pytest

import sframegen
from linker.files import copying, target
from linker.files.copying import FilePart, copy_file
from linker.files.location import Location
from linker.files.target import Target
from sframegen.base.errors import FormatError, SframegenError
from sframegen.elf.file import ElfFile
from tests.linker.files.test_replace import UNSUPPORTED
from tests.support.inputs.linker_inputs import small_file
from tests.support.peers import Compiler


@pytest.fixture
def program(tmp_path: Path, compile_c: Compiler) -> Path:
    return Path(shutil.copy(compile_c("int main(void) { return 0; }"), tmp_path / "program"))


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> list[ElfFile]:
    """Copies that threads make, of files of any size."""
    copies: list[ElfFile] = []

    def copy(elf: ElfFile, out: BinaryIO, parts: Sequence[FilePart] = (), unneeded: Callable[[], bool] = lambda: False) -> None:
        if not os.fstat(out.fileno()).st_size:  # else the rest of one that was begun
            copies.append(elf)
        copy_file(elf, out, parts, unneeded)

    monkeypatch.setattr(target, "LARGE", 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(copying, "copy_file", copy)
    return copies


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def test_the_same_result(program: Path, ahead: list[ElfFile], monkeypatch: pytest.MonkeyPatch) -> None:
    there = names(program.parent)
    sframegen.add_section(program, output=program.with_name("new"))
    assert len(ahead) == 1
    monkeypatch.setattr(target, "LARGE", 1 << 40)
    sframegen.add_section(program, output=program.with_name("other"))
    assert len(ahead) == 1
    assert program.with_name("new").read_bytes() == program.with_name("other").read_bytes()
    monkeypatch.setattr(target, "LARGE", 0)
    sframegen.add_section(program)
    assert program.read_bytes() == program.with_name("new").read_bytes()
    assert names(program.parent) == there | {"new", "other"}


def test_nothing_to_change(program: Path, ahead: list[ElfFile]) -> None:
    sframegen.add_section(program)
    del ahead[:]
    there, content = names(program.parent), program.read_bytes()
    sframegen.add_section(program)
    assert not ahead
    sframegen.add_section(program, replace=True)
    assert ahead
    assert (names(program.parent), program.read_bytes()) == (there, content)


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), MemoryError()])
def test_any_failure_of_the_thread(
    program: Path, ahead: list[ElfFile], error: Exception, verify: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it raises is raised here, too: else the file would be written although only a part was copied."""

    def fail(elf: ElfFile, out: BinaryIO, *_: object) -> None:
        ahead.append(elf)
        out.write(b"a part")
        raise error

    monkeypatch.setattr(copying, "copy_file", fail)
    there, content = names(program.parent), program.read_bytes()
    with pytest.raises(type(error), match="cannot be written: No space left on device" if isinstance(error, OSError) else None):
        sframegen.add_section(program, verify=verify)
    assert ahead
    assert (names(program.parent), program.read_bytes()) == (there, content)


@pytest.mark.parametrize("output", [None, "new"])
def test_changed_after_the_copy(program: Path, ahead: list[ElfFile], monkeypatch: pytest.MonkeyPatch, output: str | None) -> None:
    def copy_and_change(elf: ElfFile, out: BinaryIO, *_: object) -> None:
        copy_file(elf, out)
        os.utime(program, ns=(1, 1))
        ahead.append(elf)

    monkeypatch.setattr(copying, "copy_file", copy_and_change)
    there = names(program.parent)
    with pytest.raises((FormatError, SframegenError), match="changed while being read"):
        sframegen.add_section(program, output=output and program.with_name(output))
    assert ahead
    assert names(program.parent) == there


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), MemoryError(), None])
def test_no_threads_and_no_nameless_files(
    program: Path, ahead: list[ElfFile], error: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if error:
        monkeypatch.setattr(Thread, "start", Mock(side_effect=error))
    else:
        monkeypatch.setattr(copying, "create_unnamed_file", lambda _: None)
    sframegen.add_section(program, output=program.with_name("new"))
    assert error or len(ahead) == 1
    assert sframegen.add_section(program.with_name("new")).note == "has it already"


def test_interrupted_while_it_waits_for_the_copy(program: Path, ahead: list[ElfFile], monkeypatch: pytest.MonkeyPatch) -> None:
    ended = []

    def slow(elf: ElfFile, out: BinaryIO, _: object, unneeded: Callable[[], bool]) -> None:
        ahead.append(elf)
        while not unneeded():
            out.write(b"a part")
        out.flush()
        ended.append(out.closed)

    monkeypatch.setattr(copying, "copy_file", slow)
    monkeypatch.setattr(Thread, "join", Mock(side_effect=KeyboardInterrupt))
    there, content = names(program.parent), program.read_bytes()
    with pytest.raises(KeyboardInterrupt):
        sframegen.add_section(program)
    assert ended == [False]
    assert (names(program.parent), program.read_bytes()) == (there, content)


@pytest.mark.parametrize("without", [[], ["fcntl.ioctl"], ["fcntl.ioctl", "os.copy_file_range"]])
def test_a_copy_that_nobody_needs_ends(program: Path, without: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """In pieces: however large the file is, an error or a signal does not wait for its end."""
    for name in without:
        monkeypatch.setattr(f"linker.files.copying.{name}", UNSUPPORTED)
    monkeypatch.setattr(copying, "MAX_KERNEL_COPY", 1 << 10)
    monkeypatch.setattr(copying, "WRITE_CHUNK", 1 << 10)
    asked: list[bool] = []
    with Target(program, None, verify=False, dry_run=False) as source, program.with_name("copy").open("wb") as out:

        def unneeded() -> bool:
            asked.append(True)
            return len(asked) > 3

        copy_file(source.elf(), out, (), unneeded)
        if asked:  # else the file system shares it
            assert not any(program.with_name("copy").read_bytes()[1 << 12 :])


def test_in_a_directory_that_cannot_be_read(program: Path, ahead: list[ElfFile], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Location, "open_parent", Mock(side_effect=PermissionError(errno.EACCES, "Permission denied")))
    with pytest.raises(OSError, match="its directory cannot be read"):
        sframegen.add_section(program)
    (program.with_name("data")).write_bytes(small_file())
    assert "nothing to add" in sframegen.add_section(program.with_name("data")).note
    assert not ahead
