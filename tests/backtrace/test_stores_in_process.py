"""Detached sections in a process: read once, when asked for, if the file can be trusted; then every frame is right."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import sframegen
from tests.backtrace.test_frames import FRAMES, frames_of
from tests.support.own_stack import compiled_library

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.own_stack import OwnStack

LIBRARIES = ("libc.so.6", "libgcc_s.so.1")


@pytest.fixture(scope="module")
def plain(own_stack: OwnStack) -> Path:
    return own_stack.compiled("cases.c", own_stack.object(), "-O2", "-Wl,--build-id=sha1")


def filled(store: Path, *files: Path) -> Path:
    for file in files:
        sframegen.add_section(file, detached=store)
    return store


def run(program: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program], env={**os.environ, **environ}, capture_output=True, text=True, errors="replace", check=False)


def test_all_frames_are_right(plain: Path, tmp_path: Path) -> None:
    libraries = [compiled_library(name) for name in LIBRARIES]
    store = filled(tmp_path / "store", plain, Path("/lib64/ld-linux-x86-64.so.2").resolve(), *libraries)
    done = run(plain, SFRAMEGEN_PATH=f"{tmp_path / 'none'}::{store}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == "4 detached\n"
    assert frames_of(done.stdout) > FRAMES


def count(plain: Path, *stores: Path) -> int:
    done = run(plain, SFRAMEGEN_PATH=":".join(map(str, stores)), ONLY_PREPARE="1")
    assert done.returncode == 0, done.stderr
    return int(done.stderr.split()[0])


def linked(path: Path) -> None:
    target = path.with_name("elsewhere")
    path.rename(target)
    path.symlink_to(target)


def replaced(file: Path, at: int, new: bytes) -> None:
    data = file.read_bytes()
    file.write_bytes(data[:at] + new + data[at + len(new) :])


def pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


CHANGES: dict[str, Callable[[Path], object]] = {
    "writable": lambda file: file.chmod(0o646),
    "linked": linked,
    "directory linked": lambda file: linked(file.parent),
    "cut": lambda file: file.write_bytes(file.read_bytes()[:-100]),
    "emptied": lambda file: file.write_bytes(b""),
    "other layout": lambda file: replaced(file, 64 + 40, bytes([file.read_bytes()[64 + 40] ^ 1])),  # first p_memsz
    "damaged": lambda file: replaced(file, file.read_bytes().index(b"\xe2\xde\x03") + 8, b"\xff\xff\xff\x7f"),
    "pipe": pipe,
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_not_used(plain: Path, tmp_path: Path, change: str) -> None:
    store, second = (filled(tmp_path / name, plain) for name in ("store", "second"))
    (file,) = (path for path in store.rglob("*.sframe"))
    assert count(plain, store) == 1
    CHANGES[change](file)
    assert count(plain, store) == 0
    assert count(plain, store, second) == 1


def test_of_another_file(own_stack: OwnStack, plain: Path, tmp_path: Path) -> None:
    other = own_stack.compiled("cases.c", own_stack.object(), "-O1", "-Wl,--build-id=sha1")
    store = filled(tmp_path / "store", plain, other)
    ours, theirs = (next(filled(tmp_path / str(at), one).rglob("*.sframe")) for at, one in enumerate((plain, other)))
    place = store / ours.relative_to(tmp_path / "0")
    shutil.copy(theirs, place)
    assert count(plain, store) == 0
    shutil.copy(ours, place)
    assert count(plain, store) == 1


def test_a_header_that_leads_out_of_the_address_space(own_stack: OwnStack, tmp_path: Path) -> None:
    checked = ("-O0", "-fsanitize=pointer-overflow", "-fno-sanitize-recover=all")
    program = own_stack.compiled("cases.c", own_stack.object(*checked), "-Wl,--build-id=sha1", *checked)
    store = filled(tmp_path / "store", program)
    (file,) = store.rglob("*.sframe")
    data = bytearray(file.read_bytes())
    first = int.from_bytes(data[40:48], "little")  # section header, of type SHT_NULL
    data[first + 24 : first + 32] = (1 << 63).to_bytes(8, "little")  # sh_offset
    file.write_bytes(data)
    assert count(program, store) == 1
