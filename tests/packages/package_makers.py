"""Packages as tests need them, good and bad, and the tools that they are compared with."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import shutil
import struct
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sframegen import add_section
from sframegen.elf.file import open_elf
from sframegen.format.locate import find_sframe

if TYPE_CHECKING:
    from sframegen.packages.package_pass import Visit

NAME = "x-1.0-py3-none-any.whl"
RECORD = "x-1.0.dist-info/RECORD"
DATE = (2024, 2, 29, 13, 30, 28)
METADATA = b"Metadata-Version: 2.1\nName: x\nVersion: 1.0\n"
WHEEL = b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: false\nTag: py3-none-any\n"
EXECUTABLE = struct.pack("<4sBBB9xHHI", b"\x7fELF", 2, 1, 1, 3, 62, 1)  # ELF64, little-endian, a library for x86-64
ADDED = b"a section"


def needs(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"no {program} on this machine")


def elf(text: str = "") -> bytes:
    """What passes for a linked ELF file until it is read further."""
    return EXECUTABLE.ljust(64, b"\0") + text.encode()


def adding(seen: list[str]) -> Visit:
    """A visit that changes each file that it has not changed before, and notes its path."""

    def visit(path: str, given: Path, changed: Path) -> bool:
        seen.append(path)
        data = given.read_bytes()
        if data.endswith(ADDED):
            return False
        changed.write_bytes(data + ADDED)
        return True

    return visit


def with_sections(program: Path, directory: Path) -> dict[str, bytes]:
    good = directory / "with_section"
    add_section(program, output=good)
    data, section = good.read_bytes(), find_sframe(open_elf(good))
    assert section is not None
    at = data.index(bytes(section[0]))
    return {"without": program.read_bytes(), "good": data, "wrong": data[:at] + b"\0\0" + data[at + 2 :], "cut": data[:200]}


def row(path: str, data: bytes, algorithm: str = "sha256") -> str:
    digest = base64.urlsafe_b64encode(hashlib.new(algorithm, data).digest()).rstrip(b"=").decode()
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerow((path, f"{algorithm}={digest}", len(data)))
    return out.getvalue()


def wheel(path: Path, files: Mapping[str, bytes], *, record: Callable[[str], str] = str, end: str = "\n") -> Path:
    """A wheel whose RECORD is in the middle of it. `record`: what becomes of the right one."""
    everything = {**files, "x-1.0.dist-info/METADATA": METADATA, "x-1.0.dist-info/WHEEL": WHEEL}
    rows = "".join(row(name, data) for name, data in everything.items() if not name.startswith(RECORD)) + f"{RECORD},,\n"
    metadata = list(everything.items())[len(files) :]
    with zipfile.ZipFile(path, "w") as out:
        out.comment = b"a comment"
        for number, (name, data) in enumerate([*files.items(), (RECORD, record(rows).replace("\n", end).encode()), *metadata]):
            info = zipfile.ZipInfo(name, DATE)
            info.external_attr = (0o100755 if number % 2 else 0o100640) << 16
            info.compress_type = zipfile.ZIP_STORED if number % 3 == 1 else zipfile.ZIP_DEFLATED
            out.writestr(info, data)
    return path


def deb(path: Path, data: bytes, control: bytes, *, suffix: str = "", before: Iterable[tuple[str, bytes]] = ()) -> Path:
    """`before`: members that come first after debian-binary."""
    parts = [("debian-binary", b"2.0\n"), *before, (f"control.tar{suffix}", control), (f"data.tar{suffix}", data)]
    with path.open("wb") as out:
        out.write(b"!<arch>\n")
        for name, content in parts:
            out.write(f"{name:<16}{'1700000000':<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n".encode())
            out.write(content + b"\n" * (len(content) % 2))
    return path


def tar(members: Iterable[tuple[tarfile.TarInfo | str, bytes]], form: int = tarfile.GNU_FORMAT, mode: str = "w") -> bytes:
    """A tar archive; a name stands for a regular file."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode, format=form) as archive:  # type: ignore[call-overload]
        for given, data in members:
            info = tarfile.TarInfo(given) if isinstance(given, str) else given
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def entry(name: str, kind: bytes, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


def sums(files: Mapping[str, bytes]) -> bytes:
    return "".join(f"{hashlib.md5(data).hexdigest()}  {name}\n" for name, data in files.items()).encode()


CONTROL = b"Package: x\nVersion: 1.0\nArchitecture: amd64\nMaintainer: x <x@example.org>\nInstalled-Size: 100\nDescription: x\n x\n"


def deb_of(path: Path, files: Mapping[str, bytes], *, control: bytes = CONTROL, md5sums: bytes | None = None) -> Path:
    """A .deb with these files, and md5sums of all of them unless others are given."""
    about = tar([("./control", control), ("./md5sums", sums(files) if md5sums is None else md5sums)], mode="w:xz")
    return deb(path, tar([(f"./{name}", data) for name, data in files.items()], mode="w:xz"), about, suffix=".xz")
