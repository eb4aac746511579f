"""While an exception's handler is installed, its runtime overwrites its own frame: no stack lacks frames without a mark."""

from __future__ import annotations

import os
import platform
import subprocess
from typing import TYPE_CHECKING

import pytest

from sframegen.conversion.cfi_sections import find_sources
from sframegen.conversion.convert import convert_sources
from sframegen.elf.file import open_elf
from sframegen.format.abi import AMD64
from sframegen.profile.following.files import CodeSpan
from sframegen.profile.packed_frames import GUESSED, unpack_frame
from sframegen.profile.tables import corrected_rules
from sframegen.profile.tables.make_table import make_table
from sframegen.profile.walk.copied_stack import CopyWalker, Start, make_span_columns
from sframegen.stack.live.process import Process
from sframegen.stack.tracer import Tracer
from sframegen.stack.walking.frames import End
from tests.support.processes.single_step import Traced

if TYPE_CHECKING:
    from pathlib import Path

    from sframegen.code.function.hazards import Installation
    from sframegen.stack.walking.frames import Thread
    from tests.support.peers import Compiler
    from tests.support.processes.single_step import Step

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="programs for x86-64")

FUNCTIONS = ["main", "f1", "f2", "f3", "f4"]
SOURCE = r"""
#define KEPT extern "C" __attribute__((noinline, noclone))
volatile long after;
struct Cleans { int n; ~Cleans() { after += n; } };
KEPT void f4(int n) { Cleans c{n}; if (n) throw n; after++; }
KEPT void f3(int n) { Cleans c{n}; f4(n); after++; }
KEPT void f2(int n) { Cleans c{n}; f3(n); after++; }
KEPT void f1(int n) { try { f2(n); } catch (int m) { after += m; } after++; }
int main() { f1(3); }
"""


@pytest.fixture(scope="module", params=["-fno-omit-frame-pointer", "-fomit-frame-pointer"])
def program(request: pytest.FixtureRequest, compile_c: Compiler) -> Path:
    """It throws once. With frame pointers each frame needs the FP of the one before; without, any SP will do."""
    return compile_c(SOURCE, "-x", "c++", "-O1", request.param, "-static", "-no-pie", "-lstdc++")


@pytest.fixture(scope="module")
def installations(program: Path) -> list[Installation]:
    elf = open_elf(program)
    table = convert_sources(find_sources(elf), elf.executable_ranges(), AMD64).table
    chosen = [corrected_rules._find_installations(table, number, elf, AMD64) for number in range(len(table))]
    found = [one for group in chosen for one in group]
    assert len(found) >= 3  # _Unwind_RaiseException, _Unwind_Resume, ...
    return found


def places(program: Path, functions: list[str]) -> list[tuple[int, int, str]]:
    """(start, end, name) of functions, and those of the parts that gcc moved away from them."""
    lines = subprocess.run(["nm", "-S", program], capture_output=True, text=True, check=True).stdout.splitlines()
    rows = [line.split() for line in lines if len(line.split()) == 4]
    return [
        (int(at, 16), int(at, 16) + int(size, 16), name.partition(".")[0])
        for at, size, _, name in rows
        if name.partition(".")[0] in functions
    ]


def resume_of(program: Path) -> tuple[int, int]:
    """Where _Unwind_Resume is; of its parts the longest: another one only calls abort()."""
    start, end, _ = max(places(program, ["_Unwind_Resume"]), key=lambda place: place[1] - place[0])
    return start, end


def is_possible(names: list[str]) -> bool:
    """The outermost first: each is called by the one before."""
    own = [name for name in names if name in FUNCTIONS]
    return own == FUNCTIONS[: len(own)]


def test_each_instruction_from_the_first_cleanup_on(program: Path, installations: list[Installation]) -> None:
    """Every stack in that code is marked, and of all that are complete and not guessed all frames are there."""
    elf = open_elf(program)
    known = places(program, FUNCTIONS)
    walker = CopyWalker(AMD64, lambda _: elf)
    walker.add_table(1, make_table(elf).table)
    spans = make_span_columns([CodeSpan(start, end, 0, 1) for start, end in elf.executable_ranges()])
    ends: dict[bool, set[End]] = {True: set(), False: set()}
    wrong: list[tuple[str, list[str]]] = []
    traced = Traced(program, resume_of(program)[0])

    def look(step: Step) -> None:
        sp = step.registers[7]
        stack = os.pread(traced.memory, 1 << 16, (sp & ~7) - 128)
        values = [*step.registers[:16], *[0] * 16]
        end = walker.walk(spans, Start(values, (1 << 16) - 1, step.pc), (sp & ~7) - 128, stack)
        frames = walker.frames()
        installs = any(one.copied <= unpack_frame(frame).address < one.end for frame in frames for one in installations)
        ends[installs].add(end)
        names = [name for frame in frames for start, last, name in known if start <= unpack_frame(frame).address < last]
        unmarked = end in (End.OUTERMOST, End.NO_RETURN) and not any(frame & GUESSED for frame in frames)
        if unmarked and (installs or not is_possible(names[::-1])):
            wrong.append((hex(step.pc), names))

    try:
        traced.run(look)
    finally:
        traced.end()
    assert not wrong
    assert ends[True]
    assert End.OUTERMOST in ends[False]


def stack_at(program: Path, address: int) -> Thread:
    traced = Traced(program, address)
    traced.let_go()
    try:
        with Process(traced.pid) as process:
            [thread] = Tracer(convert=True).trace_process(process)
    finally:
        traced.end()
    return thread


def test_the_tracer_marks_such_a_stack(program: Path, installations: list[Installation]) -> None:
    """A direct call, of five bytes, copies."""
    start, end = resume_of(program)
    [one] = [one for one in installations if start <= one.copied < end]
    before, copied = stack_at(program, start), stack_at(program, one.copied + 5)
    assert before.end is End.OUTERMOST
    assert not any(frame.guessed for frame in before.frames)
    assert copied.frames[1].guessed
