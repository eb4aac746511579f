"""Damaged sections and corrupt stacks: no read is outside of what may be read, and every walk ends.

SFRAMEGEN_DAMAGE_ROUNDS=20000 makes it a study of minutes.
"""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.support.own_stack import INCLUDE, PROGRAMS
from tests.support.peers import needs_compiler

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.own_stack import OwnStack

ROUNDS = int(os.environ.get("SFRAMEGEN_DAMAGE_ROUNDS", "150"))  # of 64 copies each


@pytest.fixture(scope="module")
def sections(own_stack: OwnStack, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Sections of both versions; the first is large, all have flexible rules or those of version 2."""
    directory = tmp_path_factory.mktemp("sections")
    programs = [own_stack.home / "libc.so.6"]
    programs += [own_stack.program("cases.c", own_stack.object(), "-O2", version=version) for version in (3, 2)]
    for number, program in enumerate(programs):
        subprocess.run(["objcopy", "--dump-section", f".sframe={directory / str(number)}", program, directory / "copy"], check=True)
    return sorted(path for path in directory.iterdir() if path.name != "copy")


@pytest.mark.dear
@pytest.mark.parametrize("seed", ["1", "2"])
def test_no_damage_is_read(tmp_path: Path, sections: list[Path], seed: str) -> None:
    needs_compiler("gcc")
    program = tmp_path / "hostile"
    flags = ["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    subprocess.run(["gcc", *flags, *INCLUDE, PROGRAMS / "hostile.c", "-o", program], check=True)
    command: list[str | Path] = [program, str(ROUNDS), seed, *sections]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    opened, rules, walks, frames = (int(part.split()[0]) for part in done.stdout.split(";")[0].split(","))
    ends = [int(number) for number in done.stdout.split("ends:")[1].split()]
    assert opened > ROUNDS * 64 // 4, done.stdout
    assert rules > opened
    assert frames > walks
    assert sum(ends) == walks
    assert all(ends[number] for number in (2, 3, 4, 5)), done.stdout  # each bad end occurred
