"""Stacks of unchanged programs are libgcc's, frame for frame; signals at 10,000 Hz; what the sanitizers and valgrind say."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from itertools import cycle
from pathlib import Path

import pytest

import sframegen
from sframegen.backtrace.preloading import list_objects
from tests.backtrace.test_frames import frames_of, needs
from tests.support.own_stack import PROGRAMS, OwnStack
from tests.support.peers import needs_compiler

pytestmark = pytest.mark.sampled
SECONDS = os.environ.get("SFRAMEGEN_STORM_SECONDS", "2")  # 600 make it a study


@pytest.fixture
def libraries(own_stack: OwnStack, tmp_path: Path) -> list[Path]:
    paths = []
    for size in (1024, 2048):
        paths.append(tmp_path / f"lib{size}.so")
        shutil.copy(
            own_stack.compiled("reloaded.c", "-O2", "-shared", "-fPIC", f"-DBYTES={size}", "-Wl,--build-id=sha1"), paths[-1]
        )
        sframegen.add_section(paths[-1])
    return paths


def ends_of(printed: str) -> list[int]:
    return [int(number) for number in printed.split("ends:")[1].split(";", maxsplit=1)[0].split()]


def test_storm_of_signals(own_stack: OwnStack, libraries: list[Path]) -> None:
    needs_compiler("g++")
    program = own_stack.program("storm.cc", own_stack.object(), "-x", "c++", "-O2", "-lstdc++", "-ldl", "-lpthread")
    printed = own_stack.run(program, SECONDS, "16", *libraries)
    outermost, full, no_rule, *bad = ends_of(printed)
    assert frames_of(printed) > 1000
    assert outermost > 1000
    assert full == 0
    assert no_rule < outermost // 50  # code of the dynamic loader whose CFA is in a register
    assert bad == [0, 0, 0]


def test_thread_sanitizer(own_stack: OwnStack, libraries: list[Path]) -> None:
    """The dynamic loader has races of its own, which are reported, too."""
    needs_compiler("g++")
    flags = ("-fsanitize=thread", "-g", "-O1")
    program = own_stack.program("storm.cc", own_stack.object(*flags), "-x", "c++", *flags, "-lstdc++", "-ldl", "-lpthread")
    command = ["setarch", "-R", str(program), SECONDS, "8", *map(str, libraries)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    assert "0 wrong" in done.stdout, done.stdout + done.stderr[-2000:]
    assert sum(ends_of(done.stdout)) > 100
    assert not [report for report in done.stderr.split("WARNING: ")[1:] if "sframegen/backtrace/" in report]


def test_valgrind_reports_nothing(own_stack: OwnStack) -> None:
    program = own_stack.program("cases.c", own_stack.object(), "-O2", "-DIN_VALGRIND")
    environ = {**os.environ, "LD_LIBRARY_PATH": str(own_stack.home), "WITHOUT_LOADER": "1"}
    command: list[str | Path] = [needs("valgrind", "valgrind"), "-q", "--error-exitcode=9", "--fair-sched=yes", program]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, errors="replace", check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert frames_of(done.stdout) > 1000


STACKS = int(os.environ.get("SFRAMEGEN_JUDGED_STACKS", "0"))  # 10,000,000: a study, with clang and gdb if they are on this machine
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
