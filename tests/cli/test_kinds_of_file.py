"""Whatever a list of files holds, each that is none for us costs one line; what a file is besides its content stays."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest

from sframegen.elf.file import open_elf
from sframegen.format.locate import find_sframe
from tests.support.commands import run
from tests.support.inputs.linker_inputs import small_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.peers import Compiler

NOBODY = 65534
CAPABILITY = bytes.fromhex("0100000200000000002000000000000000000000")  # cap_net_raw, as setcap writes it


def patched(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


@pytest.fixture
def program(compile_c: Compiler, tmp_path: Path) -> Path:
    return Path(shutil.copy(compile_c("int main(void) { return 0; }"), tmp_path / "program"))


ELF = small_file()
CONTENTS = {
    "empty": (b"", "the file is empty"),
    "text": (b"hello\n", "not an ELF file"),
    "self-extracting": (b"#!/bin/sh\nexec tail -n +3 $0\nPK\3\4", "not an ELF file"),
    "program.exe": (b"MZ\0\0", "not an ELF file"),
    "four bytes": (b"\x7fELF", "ELF header+0x0: expected 64 bytes, have 4"),
    "half": (ELF[: len(ELF) // 2], "section header table: 768 bytes at file offset 0x510 reach past the end of the file (0x408)"),
    "32 bit": (patched(ELF, 4, b"\1"), "a 32-bit ELF file: SFrame is for 64-bit ABIs"),
    "core": (patched(ELF, 16, b"\4\0"), "a core file"),
    "type": (patched(ELF, 16, b"\0\xfe"), "ELF type 65024 is neither a program nor a library"),
    "machine": (
        patched(ELF, 18, b"\xf3\0"),
        "e_machine 243 (little-endian) is not supported, only AMD64, AArch64, AArch64 big-endian, s390x",
    ),
}


@pytest.mark.parametrize("jobs", ["-j1", "-j2"])
def test_what_is_no_program_costs_one_line(jobs: str, program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(program.parent)
    last = Path("last")
    last.write_bytes(program.read_bytes())
    for name, (content, _) in CONTENTS.items():
        Path(name).write_bytes(content)
    Path("dangling").symlink_to("nowhere")
    Path("directory").mkdir()
    os.mkfifo("fifo")
    others = {
        "dangling": "No such file or directory",
        "missing": "No such file or directory",
        "directory": "is a directory; check, add-section -r and remove -r take directories",
        "fifo": "not a regular file",
        "/dev/null": "not a regular file",
    }
    expected = {name: line for name, (_, line) in CONTENTS.items()} | others
    result = run("add-section", jobs, "program", *expected, "last")
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [f"sframegen: {name}: {line}" for name, line in expected.items()]
    assert [line.split(":")[0] for line in result.stdout.splitlines()] == ["program", "last"]
    assert find_sframe(open_elf(last)) == find_sframe(open_elf(program)) is not None
    assert {name: Path(name).read_bytes() for name in CONTENTS} == {name: content for name, (content, _) in CONTENTS.items()}


@pytest.mark.parametrize("other", ["/dev/null", "fifo"])
@pytest.mark.parametrize(
    ("command", "status", "line"),
    [
        ("merge -o out.o OTHER program", 1, "sframegen: OTHER: not a regular file"),
        ("add-tree --json OTHER", 2, "Error: Invalid value for 'ROOT...': OTHER: not a directory"),
        ("add-tree --debug-file OTHER .", 2, "Error: Invalid value for '--debug-file': OTHER: not a directory"),
        ("remove-tree . OTHER", 2, "Error: Invalid value for 'ROOT...': OTHER: not a directory"),
        ("check --sections OTHER program", 2, "Error: Invalid value for '--sections': OTHER: not a directory"),
    ],
)
def test_nothing_waits_for_a_fifo_or_reads_a_device(
    command: str, status: int, line: str, other: str, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(program.parent)
    os.mkfifo("fifo")
    result = run(*command.replace("OTHER", other).split())
    assert (result.exit_code, result.stderr.splitlines()[-1], result.stdout) == (status, line.replace("OTHER", other), "")


@contextmanager
def nobody() -> Iterator[None]:
    """The block runs without root's rights, if it had them."""
    root = os.geteuid() == 0
    if root:
        os.setresuid(NOBODY, NOBODY, 0)
    try:
        yield
    finally:
        if root:
            os.setresuid(0, 0, 0)


OF_SEVERAL = ("add-section -j1", "remove -j1", "convert -j1 --sframe-version 2", "check -j1", "dump")


@pytest.mark.parametrize(
    "command", [*(f"{one} secret missing" for one in OF_SEVERAL), "lookup secret main", "merge -o out.o secret"]
)
def test_a_file_that_may_not_be_read_is_refused_and_the_others_are_done(
    command: str, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program.parent.chmod(0o755)
    monkeypatch.chdir(program.parent)
    program.rename("secret").chmod(0)
    if os.geteuid() == 0:
        run(*command.replace("secret", "missing").split())  # imports what nobody may not be able to read
    with nobody():
        result = run(*command.split())
    lines = ["sframegen: secret: Permission denied"]
    if "missing" in command:
        lines.append("sframegen: missing: No such file or directory")
    assert (result.exit_code, result.stderr.splitlines(), result.stdout) == (1, lines, "")


def test_rights_that_a_copy_cannot_have(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root gives files away")
    os.chown(program, 12345, 12345)
    program.chmod(0o6755)
    os.setxattr(program, "security.capability", CAPABILITY)
    before = program.read_bytes()
    refuse = Mock(side_effect=PermissionError(errno.EPERM, os.strerror(errno.EPERM)))
    monkeypatch.setattr("os.fchown", refuse)
    monkeypatch.setattr("os.setxattr", refuse)
    copy = program.with_name("copy")
    result = run("add-section", "-o", copy, program)
    assert result.exit_code == 0
    assert result.stderr == (
        f"sframegen: {program}: warning: {copy} could not be given set-user-ID bit, set-group-ID bit, security.capability\n"
    )
    assert stat.S_IMODE(copy.stat().st_mode) == 0o755
    subprocess.run([copy], check=True, capture_output=True)
    result = run("add-section", program)  # in place all is kept or nothing done
    assert (result.exit_code, len(result.stderr.splitlines())) == (1, 1)
    assert "Operation not permitted" in result.stderr
    assert program.read_bytes() == before
