"""A large file is copied while its section is made: the result, and what a failure leaves, is as without that."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import pytest

import sframegen
from cfi.errors import FormatError, SframegenError
from linker.files import copy_ahead, target
from linker.files.copying import copy_file

if TYPE_CHECKING:
    from sframegen.elf.file import ElfFile
    from tests.support.peers import Compiler

pytestmark = pytest.mark.once


@pytest.fixture
def program(tmp_path: Path, compile_c: Compiler) -> Path:
    return Path(shutil.copy(compile_c("int main(void) { return 0; }"), tmp_path / "program"))


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> list[ElfFile]:
    """Copies that threads make, of files of any size."""
    copies: list[ElfFile] = []

    def copy(elf: ElfFile, out: BinaryIO) -> None:
        copies.append(elf)
        copy_file(elf, out)

    monkeypatch.setattr(target, "LARGE", 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(copy_ahead, "copy_file", copy)
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
    """Where it is known at once that the file stays as it is, nothing is copied; else the copy goes."""
    sframegen.add_section(program)
    del ahead[:]
    there, content = names(program.parent), program.read_bytes()
    sframegen.add_section(program)
    assert not ahead
    sframegen.add_section(program, replace=True)
    assert ahead
    assert (names(program.parent), program.read_bytes()) == (there, content)


def test_no_room(program: Path, ahead: list[ElfFile], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(elf: ElfFile, out: BinaryIO) -> None:
        ahead.append(elf)
        out.write(b"a part")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(copy_ahead, "copy_file", fail)
    there, content = names(program.parent), program.read_bytes()
    with pytest.raises(OSError, match="cannot be written: No space left on device"):
        sframegen.add_section(program)
    assert ahead
    assert (names(program.parent), program.read_bytes()) == (there, content)


@pytest.mark.parametrize("output", [None, "new"])
def test_changed_after_the_copy(program: Path, ahead: list[ElfFile], monkeypatch: pytest.MonkeyPatch, output: str | None) -> None:
    """A section that was made from other bytes than those that were copied is not written."""

    def copy_and_change(elf: ElfFile, out: BinaryIO) -> None:
        copy_file(elf, out)
        os.utime(program, ns=(1, 1))
        ahead.append(elf)

    monkeypatch.setattr(copy_ahead, "copy_file", copy_and_change)
    there = names(program.parent)
    with pytest.raises((FormatError, SframegenError), match="changed while it was read"):
        sframegen.add_section(program, output=output and program.with_name(output))
    assert ahead
    assert names(program.parent) == there


def test_no_nameless_files(program: Path, ahead: list[ElfFile], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy_ahead, "nameless_file", lambda _: None)
    sframegen.add_section(program, output=program.with_name("new"))
    assert len(ahead) == 1
    assert sframegen.add_section(program.with_name("new")).note == "has it already"
