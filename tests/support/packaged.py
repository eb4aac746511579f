"""What packages hold: ELF files, their sections, their debug files; sframegen for the tools that make packages."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import sframegen
from sframegen import check
from sframegen.checks.finding import Severity
from sframegen.elf.file import open_elf
from sframegen.elf.notes import read_build_id, read_debug_link
from sframegen.format.locate import find_sframe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.peers import Peers


def with_sframegen(directory: Path) -> dict[str, str]:
    """The environment, but with this sframegen on PATH, by a program in the directory, and without what builds are given."""
    packages = shlex.quote(str(Path(sframegen.__file__).parents[1]))
    program = directory / "sframegen"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={packages} exec {shlex.quote(sys.executable)} -P -m sframegen "$@"\n')
    program.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DEB_", "DH_", "RPM_"))}
    return kept | {"PATH": f"{directory}:{os.environ['PATH']}", "LC_ALL": "C.UTF-8"}


def place(environment: dict[str, str], option: str) -> str:
    """As `sframegen integration` shows it."""
    command = ["sframegen", "integration", option]
    return subprocess.run(command, env=environment, check=True, text=True, capture_output=True).stdout.strip()


def with_debhelper(environment: dict[str, str]) -> dict[str, str]:
    directory = place(environment, "--debhelper-dir")
    return environment | {"PERL5LIB": f"{directory}/lib", "PATH": f"{directory}/bin:{environment['PATH']}"}


def elf_files(directory: Path) -> Iterator[Path]:
    for file in sorted(directory.rglob("*")):
        if file.is_file() and not file.is_symlink() and file.read_bytes()[:4] == b"\x7fELF":
            yield file


def has_section(file: Path) -> bool:
    return find_sframe(open_elf(file)) is not None


def is_good(file: Path, peers: Peers) -> None:
    assert not [found for found in check(file).findings if found.severity is Severity.ERROR]
    shown = subprocess.run([peers.tool("readelf"), "--sframe", file], check=True, text=True, capture_output=True)
    assert "Version: SFRAME_VERSION_3" in shown.stdout
    assert shown.stderr == ""


def debug_file(file: Path, debug: Path) -> Path:
    """By build-id, among the files of a debug package; .gnu_debuglink, if there is one, has the CRC of it."""
    elf = open_elf(file)
    build_id, link = (read_build_id(elf) or b"").hex(), read_debug_link(elf)
    found = debug / f"usr/lib/debug/.build-id/{build_id[:2]}/{build_id[2:]}.debug"
    assert link is None or zlib.crc32(found.read_bytes()) == link[1], file
    return found


def gdb_says(file: Path, debug: Path, function: str) -> str:
    """What gdb knows of a function, with debug files from there alone."""
    options = ["-nx", "-batch", "-iex", f"set debug-file-directory {debug}/usr/lib/debug", "-ex", f"info line {function}"]
    return subprocess.run(["gdb", *options, file], check=False, text=True, capture_output=True).stdout
