"""Walks the stacks of a program that makes code at run time, while it does so, and knows what each walk has to find.

`python -m tests.registry.jit_walks [WALKS]`: this many stacks with such code on them, 10,000 if nothing is said.
"""

from __future__ import annotations

import struct
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import sframegen
from sframegen.elf.file import open_elf
from sframegen.elf.records import PF, PT
from sframegen.elf.symbols import read_functions
from sframegen.stack.abi.machines import ThreadRegisters
from sframegen.stack.live.process import Process
from sframegen.stack.snapshot import Snapshot
from sframegen.stack.tracer import Tracer
from sframegen.stack.walking.frames import End, RuleSource, Thread

SOURCE = Path(__file__).parent / "jit_producer" / "producer.c"
INCLUDE = Path(sframegen.__file__).parent / "integration" / "include"
# Without lazy binding: where a function of a library is first called, the CFA is RBX's, and that is not known in a caller's frame.
BOUND_AT_START = "-Wl,-z,now"
FLAGS = ("-std=c11", "-O1", "-Wall", "-Wextra", "-pedantic", "-Werror", "-pthread", BOUND_AT_START, f"-I{INCLUDE}")

RUNNERS, DEPTH = 3, 12  # as producer.c has them
IDENT = struct.Struct("<4sIII")
MAGIC = b"!TIJ"
RUNNER = struct.Struct(f"<QQ{DEPTH + 1}Q")
RBX = 3
CALL_END = (13, 17, 21)  # by kind: offset after the call
ADD_BEFORE, SUB_AFTER = 2, 4  # of the call, bytes: RBX is one place further there
ENTER_CALL_END = 6
CALLED_BY_THREAD = 3  # frames after enter: run, and the C library's two


class Function(NamedTuple):
    """A function that the producer made: what stands before it."""

    start: int
    kind: int
    frame: int
    size: int

    @property
    def frame_size(self) -> int:
        """From its caller's CFA to its own, bytes, when it calls."""
        return self.frame + (8 if self.kind == 0 else 16)

    @property
    def returns_to(self) -> int:
        return self.start + CALL_END[self.kind]

    def is_further(self, offset: int) -> bool:
        return CALL_END[self.kind] - ADD_BEFORE <= offset < CALL_END[self.kind] + SUB_AFTER


class Counts(NamedTuple):
    walks: int  # with frames of such code
    frames: int  # of such code
    removed: int  # functions
    tops: Counter[str]  # what was at the top, of these walks


class Runner(NamedTuple):
    """A thread that runs such code, when the process was stopped: its functions, the first called first, and RBX."""

    depth: int
    functions: list[Function]
    chain_at: int
    rbx: int


class Watched(Process):
    def __init__(self, pid: int, runners_at: int) -> None:
        super().__init__(pid)
        self.runners_at = runners_at
        self.runners: dict[int, Runner] = {}  # by thread

    @contextmanager
    def stopped(self, tid: int | None = None) -> Iterator[Snapshot]:
        with super().stopped(tid) as snapshot:
            self.runners = {}
            registers = {one.tid: one.registers for one in snapshot.threads if isinstance(one.registers, ThreadRegisters)}
            for at in range(self.runners_at, self.runners_at + RUNNERS * RUNNER.size, RUNNER.size):
                thread, depth, *chain = RUNNER.unpack(self.read(at, RUNNER.size))
                if not thread:  # it has only begun
                    continue
                rbx = registers[thread].values[RBX]
                functions = [self.function_at(start) for start in chain[:depth]]
                self.runners[thread] = Runner(depth, list(filter(None, functions)), at + 16, rbx)
            yield snapshot

    def function_at(self, start: int) -> Function | None:
        """None where there is no function any more: the thread is about to take others."""
        raw = self.read(start - IDENT.size, IDENT.size)
        if raw[:4] != MAGIC:
            return None
        _, kind, frame, size = IDENT.unpack(raw)
        return Function(start, kind, frame, size)


class Truth:
    def __init__(self, process: Watched, program: Path) -> None:
        self.process = process
        elf = open_elf(program)
        symbols = {symbol.name: symbol for symbol in read_functions(elf)}
        row = next(row for row in process.mappings() if row.executable and row.path == str(program))
        code = next(segment for segment in elf.segments if segment.p_type == PT.LOAD and segment.p_flags & PF.X)
        bias = row.start - (code.p_vaddr & ~0xFFF)
        self.enter, self.leaf = (bias + symbols[name].address for name in ("enter", "leaf"))
        self.leaf_size = symbols["leaf"].size
        self.callers: dict[int, list[int]] = {}  # of enter, by thread: always the same

    def check(self, thread: Thread) -> tuple[int, str]:
        """How many frames of made code a walk has to have, and what is at its top. AssertionError where the walk is another."""
        runner, top = self.process.runners.get(thread.tid), thread.frames[0]
        if not runner and thread.end is End.NOT_COVERED and len(thread.frames) == 1:
            return 0, "its first instructions, for which libc has no CFI"
        assert thread.end is End.OUTERMOST, (thread.end, thread.detail)
        if runner:
            place = (runner.rbx - runner.chain_at) // 8
            if self.leaf <= top.pc < self.leaf + self.leaf_size:
                assert place == runner.depth == len(runner.functions)
                self.check_callers(thread, runner.functions[::-1])
                return runner.depth, "leaf"
            for at, function in enumerate(runner.functions):
                offset = top.pc - function.start
                if 0 <= offset < function.size and place - at == function.is_further(offset):
                    assert top.how is RuleSource.REGISTERED
                    self.check_callers(thread, runner.functions[:at][::-1])
                    return at + 1, f"kind {function.kind} at {offset}"
        assert not any(frame.how is RuleSource.REGISTERED for frame in thread.frames)
        return 0, "elsewhere"

    def check_callers(self, thread: Thread, functions: list[Function]) -> None:
        """Of the frame at the top: these, then enter, then what has called it."""
        frames = thread.frames[1:]
        expected = [function.returns_to for function in functions] + [self.enter + ENTER_CALL_END]
        found = [frame.pc for frame in frames]
        assert found[: len(expected)] == expected
        callers = self.callers.setdefault(thread.tid, found[len(expected) :])
        assert found[len(expected) :] == callers
        assert len(callers) == CALLED_BY_THREAD
        cfa = thread.frames[0].cfa
        for function, frame in zip(functions, frames, strict=False):
            assert frame.how is RuleSource.REGISTERED
            assert cfa is not None
            assert frame.cfa == cfa + function.frame_size
            cfa = frame.cfa


def walk_producer(program: Path, walks: int) -> Counts:
    """Walks all stacks of the program, until this many had made code on them. AssertionError for a wrong frame."""
    with subprocess.Popen([program, "20"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as producer:
        assert producer.stdin is not None
        assert producer.stdout is not None
        try:
            runners = int(producer.stdout.readline(), 16)
            with Watched(producer.pid, runners) as process:
                truth, tracer = Truth(process, program), Tracer(convert=True)
                done = frames = 0
                tops: Counter[str] = Counter()
                while done < walks:
                    for thread in tracer.trace_process(process):
                        number, top = truth.check(thread)
                        done += number > 0
                        frames += number
                        tops[top] += number > 0
            producer.stdin.write("\n")
            producer.stdin.flush()
            removed = int(producer.stdout.readline())
        finally:
            producer.stdin.close()
    assert producer.returncode == 0
    return Counts(done, frames, removed, tops)


def main(walks: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "producer")
        subprocess.run(["gcc", *FLAGS, "-o", program, SOURCE], check=True)
        counts = walk_producer(program, walks)
    print(f"{counts.walks:,} walks with {counts.frames:,} frames of code made at run time: no wrong frame.")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
