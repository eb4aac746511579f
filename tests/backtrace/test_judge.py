"""Stacks of unchanged programs, at each allocation and from SIGPROF at 1,000 Hz, are libgcc's, frame for frame.

SFRAMEGEN_JUDGED_STACKS=10000000 makes it a study of that many stacks, with clang and gdb if they are on this machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import sframegen
from sframegen.backtrace.preloading import list_objects
from tests.support.own_stack import PROGRAMS

if TYPE_CHECKING:
    from tests.support.own_stack import OwnStack

STACKS = int(os.environ.get("SFRAMEGEN_JUDGED_STACKS", "0"))
LEAST = 100_001  # the programs run again until that many are judged
SOURCE = PROGRAMS / "allocations.cc"
SCRIPT = "import json, re\nfor _ in range(3): re.findall('.', json.dumps(list(range(3000)), indent=1)); re.purge()"


def commands(scratch: Path) -> list[list[str]]:
    words = scratch / "words"
    words.write_text("".join(f"{number * 7919 % 100_003} word\n" for number in range(20000)))
    found = [["/usr/bin/sort", str(words), "-o", "/dev/null"], [os.path.realpath(sys.executable), "-S", "-c", SCRIPT]]
    if shutil.which("g++"):
        program = scratch / "allocations"
        subprocess.run(["g++", "-O2", "-o", program, SOURCE], check=True)
        found.append([str(program), "2"])
    if STACKS and shutil.which("clang"):
        found.append([os.path.realpath(str(shutil.which("clang"))), "-O2", "-c", str(SOURCE), "-o", "/dev/null"])
    if STACKS and shutil.which("gdb"):
        found.append(
            [os.path.realpath(str(shutil.which("gdb"))), "-nx", "-batch", "-ex", "info functions", str(scratch / "allocations")]
        )
    return found


@pytest.fixture(scope="module")
def judge(own_stack: OwnStack) -> Path:
    flags = ("-O2", "-shared", "-fPIC", "-Wl,-z,now", "-lpthread")
    return own_stack.program("judge.c", own_stack.object(), *flags)


@pytest.mark.sampled
def test_every_stack_is_libgcc_s(judge: Path, tmp_path: Path) -> None:
    runs, store, lines = commands(tmp_path), tmp_path / "store", tmp_path / "judged"
    needed = {path for command in runs for path in list_objects(command[0])}
    needed |= {os.path.realpath(path) for path in Path(sys.base_prefix, "lib").glob("python3*/lib-dynload/*.so")}
    for path in sorted({os.path.realpath(path) for path in needed}):
        sframegen.add_section(path, detached=store)
    environ = {**os.environ, "LD_PRELOAD": str(judge), "SFRAMEGEN_PATH": str(store), "JUDGED": str(lines)}
    stacks, others, wrong = 0, 0, 0
    by_program: dict[str, int] = {}
    for number, command in enumerate(cycle(runs)):
        if stacks >= max(STACKS, LEAST) and number >= len(runs):
            break
        done = subprocess.run(command, env=environ, capture_output=True, text=True, errors="replace", check=False)
        assert done.returncode == 0, (command, done.stderr[-3000:])
        for line in lines.read_text().splitlines():
            judged, passed, _frames, differing, name = line.split()
            stacks, others, wrong = stacks + int(judged), others + int(passed), wrong + int(differing)
            by_program[name] = by_program.get(name, 0) + int(judged)
        lines.unlink()
        assert wrong == 0, (command, done.stderr[-3000:])
    print(f"{stacks:,} stacks equal libgcc's, {others:,} not whole; {by_program}")
    assert others < stacks // 100
