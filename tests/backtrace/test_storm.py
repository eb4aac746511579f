"""Signals at 10,000 Hz in threads that allocate, load, throw and print; and what the sanitizers and valgrind say.

SFRAMEGEN_STORM_SECONDS=600 makes it a study.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

import sframegen
from tests.backtrace.test_frames import frames_of, needs
from tests.support.peers import needs_compiler

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.own_stack import OwnStack

pytestmark = pytest.mark.sampled

SECONDS = os.environ.get("SFRAMEGEN_STORM_SECONDS", "2")


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
