"""What follows the ELF image: refused, because it would no longer be found; with the section added first, it is found."""

from __future__ import annotations

import io
import shutil
import subprocess
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from sframegen.elf.file import open_elf
from sframegen.format.locate import find_sframe
from tests.support.commands import run as invoke
from tests.support.peers import Compiler, Peers

PLAIN = "int main(void) { return 0; }"
# As the runtime of AppImages: the image is as long as its section headers, or its last section, say.
APPIMAGE = r"""
#include <elf.h>
#include <stdio.h>
#include <string.h>
int main(int argc, char **argv) {
  FILE *self = fopen("/proc/self/exe", "rb");
  Elf64_Ehdr header;
  Elf64_Shdr last;
  char magic[4] = "";
  fread(&header, sizeof header, 1, self);
  fseek(self, header.e_shoff + (header.e_shnum - 1) * sizeof last, SEEK_SET);
  fread(&last, sizeof last, 1, self);
  unsigned long table = header.e_shoff + header.e_shnum * sizeof last, section = last.sh_offset + last.sh_size;
  fseek(self, table > section ? table : section, SEEK_SET);
  fread(magic, 4, 1, self);
  return memcmp(magic, "hsqs", 4) != 0;
}
"""


run = partial(invoke, "add-section")


def zip_archive() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("greeting", "hello\n")
    return file.getvalue()


@pytest.fixture
def program(compile_c: Compiler, tmp_path: Path) -> Callable[[str], Path]:
    return lambda source: Path(shutil.copy2(compile_c(source), tmp_path / "program"))


def append(file: Path, payload: bytes) -> None:
    with file.open("ab") as out:
        out.write(payload)


def assert_refused(file: Path, kind: str) -> None:
    before = file.read_bytes()
    for options in ([], ["--force"], ["--dry-run"]):
        result = run(*options, file)
        assert (result.exit_code, result.stdout, len(result.stderr.splitlines())) == (1, "", 1)
        assert f"bytes follow the ELF image at 0x{file_end(file):x}{kind}: a new section would hide them; " in result.stderr
        assert result.stderr.endswith("add it before they are appended\n")
    assert file.read_bytes() == before


def file_end(file: Path) -> int:
    header = open_elf(file).header
    return header.e_shoff + header.e_shnum * 64


@pytest.mark.parametrize(
    ("payload", "kind"),
    [
        (zip_archive(), ", a zip archive"),  # found from the end of the file
        (bytes(4096) + zip_archive(), ", a zip archive"),
        (b"#!/bin/sh\n", ""),
        (bytes(5000) + b"x", ""),
        (b"\1" * (3 << 20), ""),
    ],
    ids=["zip", "zip after zeros", "script", "zeros before", "long"],
)
def test_what_follows_is_refused(payload: bytes, kind: str, program: Callable[[str], Path]) -> None:
    file = program(PLAIN)
    append(file, payload)
    assert_refused(file, kind)


def test_a_zip_archive_behind_a_section(program: Callable[[str], Path]) -> None:
    file = program(PLAIN)
    assert run(file).exit_code == 0
    append(file, zip_archive())
    with zipfile.ZipFile(file) as archive:
        assert archive.read("greeting") == b"hello\n"
        assert archive.testzip() is None
    subprocess.run([file], check=True)
    assert find_sframe(open_elf(file)) is not None


def test_an_appimage(program: Callable[[str], Path], peers: Peers) -> None:
    """Found after the section headers. objcopy drops the undo record, which is there too."""
    squashfs = b"hsqs" + bytes(4092)
    file = program(APPIMAGE)
    assert subprocess.run([file], check=False).returncode == 1
    append(file, squashfs)
    subprocess.run([file], check=True)
    assert_refused(file, ", a squashfs image, as in AppImages")
    file = program(APPIMAGE)
    assert run(file).exit_code == 0
    subprocess.run([peers.tool("objcopy"), file], check=True)
    append(file, squashfs)
    subprocess.run([file], check=True)
    assert find_sframe(open_elf(file)) is not None
