"""Signed files, and those with a checksum of themselves, are changed on demand only; those with data after the image are not."""

from __future__ import annotations

import io
import os
import shutil
import struct
import subprocess
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from linker.files.rights import Source
from linker.files.signatures import APPENDED_MARKER, appended_signature_size, find_signatures
from sframegen.elf.file import ElfFile, open_elf
from sframegen.format.locate import find_sframe
from tests.support.commands import run as invoke
from tests.support.inputs.linker_inputs import small_file
from tests.support.peers import Compiler, Peers

SOURCE = "int main(void) { return 0; }"
# Room for the signature, and a note that says who packaged it: neither is a reason.
UNSIGNED = """
__asm__(".section .sha256_sig, \\"a\\"\\n .zero 64\\n .previous\\n"
        ".section .note.package, \\"a\\", @note\\n .balign 4\\n .long 4, 4, 0xcafe1a7e\\n .asciz \\"FDO\\"\\n .asciz \\"{ }\\"\\n"
        ".previous");
"""
SECTIONS = [".signature", ".SUNW_signature", "signature", ".sha256_sig", ".codesign"]


run = partial(invoke, "add-section", "-j1")


def appended(data: bytes, size: int = 300) -> bytes:
    """As the kernel's sign-file does it."""
    return data + b"\x30\x82" + os.urandom(size - 2) + struct.pack(">5B3xI", 0, 0, 2, 0, 0, size) + APPENDED_MARKER


@pytest.fixture
def program(compile_c: Compiler, tmp_path: Path) -> Callable[..., Path]:
    def make(source: str = "", **sections: str) -> Path:
        file = tmp_path / "program"
        file.write_bytes(compile_c(source + SOURCE).read_bytes())
        for name, content in sections.items():
            (tmp_path / "content").write_text(content)
            subprocess.run(["objcopy", "--add-section", f"{name}={tmp_path / 'content'}", file], check=True)
        file.chmod(0o755)
        return file

    return make


def assert_only_by_force(file: Path, reason: str, *others: str) -> None:
    before = file.read_bytes()
    for options in ([], ["--dry-run"], ["-o", file.with_name("output")]):
        result = run(*options, *others, file)
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr == f"sframegen: {file}: signed: {reason}; use --force to change it anyway, then sign it again\n"
    assert file.read_bytes() == before
    assert not file.with_name("output").exists()
    result = run("--force", *others, file)
    assert (result.exit_code, result.stderr) == (0, f"sframegen: {file}: warning: must be signed again: {reason}\n")
    if file.suffix == ".ko":
        assert open_elf(file).section(".sframe") is not None
        return
    assert find_sframe(open_elf(file)) is not None
    subprocess.run([file], check=True)


def test_files_that_only_look_signed(program: Callable[..., Path]) -> None:
    file = program(UNSIGNED)
    file.with_name("program.hmac").touch()  # of some other program named so
    file.with_name("program.chk").touch()
    assert run(file).exit_code == 0


def found(file: Path) -> list[str]:
    with file.open("rb") as source:
        return find_signatures(open_elf(file), file, Source(source.fileno(), file.stat()))


@pytest.mark.parametrize("name", SECTIONS)
def test_sections(name: str, program: Callable[..., Path]) -> None:
    file = program(**{name: "sig"})
    [reason] = found(file)
    assert reason.startswith("a signature ")
    assert reason.endswith(f" in {name}")
    assert_only_by_force(file, reason)


@pytest.mark.parametrize("kind", [".long 0xcafe2a8e", ".byte 0xca, 0xfe, 0x2a, 0x8e"])
def test_a_checksum_in_a_note(kind: str, program: Callable[..., Path]) -> None:
    note = f""".balign 4\\n .long 4, 32\\n {kind}\\n .asciz \\"FDO\\"\\n .zero 32\\n .previous"""
    file = program(f'__asm__(".section .note.fdo.integrity, \\"a\\", @note\\n {note}");')
    # Linkers may put the note, which cannot move, where there is then no room without that option.
    assert_only_by_force(file, "a FIPS 140 checksum in a note", "--min-kernel", "5.18")


@pytest.mark.parametrize("name", [".program.hmac", "fipscheck/program.hmac"])
def test_a_checksum_beside_it(name: str, program: Callable[..., Path]) -> None:
    file = program()
    beside = file.parent / name
    beside.parent.mkdir(exist_ok=True)
    beside.write_text("00")
    assert_only_by_force(file, f"a checksum in {beside}")


def test_an_appended_signature(program: Callable[..., Path]) -> None:
    file = program()
    size = file.stat().st_size
    file.write_bytes(appended(file.read_bytes()))
    assert appended_signature_size(open_elf(file)) == file.stat().st_size - size
    assert_only_by_force(file, "a signature appended to it")


def test_a_kernel_module(compile_c: Compiler, tmp_path: Path) -> None:
    file = tmp_path / "module.ko"
    file.write_bytes(appended(compile_c(SOURCE, "-c", name="module.o").read_bytes()))
    assert_only_by_force(file, "a signature appended to it")
    assert appended_signature_size(open_elf(file)) == 0


def test_a_library_with_a_checksum_and_a_signature_that_is_cut(tmp_path: Path) -> None:
    """The size of the latter is whatever was written there."""
    library = tmp_path / "libsoftokn3.so"
    library.write_bytes(small_file())
    library.with_suffix(".chk").touch()
    assert found(library) == [f"a checksum in {tmp_path}/libsoftokn3.chk"]
    (tmp_path / "file").write_bytes(small_file() + APPENDED_MARKER)
    elf = open_elf(tmp_path / "file")
    assert 0 < appended_signature_size(elf) <= len(elf.data)
    assert appended_signature_size(ElfFile(memoryview(small_file()))) == 0


@pytest.mark.parametrize(("attribute", "value"), [("security.ima", b"\x04\x04" + bytes(32)), ("security.evm", b"\x02" + bytes(20))])
def test_attributes_of_the_integrity_architecture(attribute: str, value: bytes, program: Callable[..., Path]) -> None:
    file = program()
    try:
        os.setxattr(file, attribute, value)
    except OSError as error:
        pytest.skip(f"cannot set {attribute} here: {error.strerror}")
    assert_only_by_force(file, f"its attribute {attribute}")
    assert os.listxattr(file) == []


def test_all_reasons_in_one_line(program: Callable[..., Path]) -> None:
    file = program(signature="sig")
    file.with_name(".program.hmac").touch()
    file.write_bytes(appended(file.read_bytes()))
    result = run(file)
    assert len(result.stderr.splitlines()) == 1
    assert [piece in result.stderr for piece in ("appended", "by bsign", ".program.hmac")] == [True] * 3


# -- what follows the ELF image: refused, because it would no longer be found; with the section added first, it is found

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


def zip_archive() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("greeting", "hello\n")
    return file.getvalue()


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
def test_what_follows_is_refused(payload: bytes, kind: str, program: Callable[..., Path]) -> None:
    file = program()
    append(file, payload)
    assert_refused(file, kind)


def test_a_zip_archive_behind_a_section(program: Callable[..., Path]) -> None:
    file = program()
    assert run(file).exit_code == 0
    append(file, zip_archive())
    with zipfile.ZipFile(file) as archive:
        assert archive.read("greeting") == b"hello\n"
        assert archive.testzip() is None
    subprocess.run([file], check=True)
    assert find_sframe(open_elf(file)) is not None


def test_an_appimage(compile_c: Compiler, peers: Peers, tmp_path: Path) -> None:
    """Found after the section headers. objcopy drops the undo record, which is there too."""
    squashfs = b"hsqs" + bytes(4092)
    file = Path(shutil.copy2(compile_c(APPIMAGE), tmp_path / "program"))
    assert subprocess.run([file], check=False).returncode == 1
    append(file, squashfs)
    subprocess.run([file], check=True)
    assert_refused(file, ", a squashfs image, as in AppImages")
    shutil.copy2(compile_c(APPIMAGE), file)
    assert run(file).exit_code == 0
    subprocess.run([peers.tool("objcopy"), file], check=True)
    append(file, squashfs)
    subprocess.run([file], check=True)
    assert find_sframe(open_elf(file)) is not None
