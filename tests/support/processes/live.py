"""Programs that stop where a test wants them to: they say so, and wait until they are told to go on."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import sframegen
from sframegen.stack.live.process import Process
from sframegen.stack.report import Symbols
from sframegen.stack.tracer import Tracer
from sframegen.stack.walking.frames import Thread
from tests.support.commands import start
from tests.support.peers import Compiler

# What every program begins with: hold() says "here\n" and waits for a byte.
HOLD = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#define KEPT __attribute__((noinline, noclone))
volatile long after;  // is changed behind calls, lest they become jumps
KEPT void hold(void) {
    char byte;
    if (write(1, "here\n", 5) != 5 || read(0, &byte, 1) != 1) _exit(9);
    after++;
}
"""
# What others begin with: spin() says "here\n" and works for ever: all of a stack except its innermost PC stays the same.
SPIN = (
    HOLD
    + r"""
#include <alloca.h>
#include <sys/mman.h>
#include <sys/wait.h>
KEPT void spin(void) {
    if (write(1, "here\n", 5) != 5) _exit(9);
    for (;;) after++;
}
"""
)
# Moves its code to anonymous memory, and changes a byte of it if it has an argument.
MOVES_CODE = """
#include <sys/mman.h>
extern char __executable_start, etext;
int unused(int n) { return n * 7; }
int main(int count, char **names) {
    char *from = (char *)((unsigned long)&__executable_start + 4096 & ~4095UL);
    char *end = (char *)((unsigned long)&etext + 4095 & ~4095UL);
    char *to = mmap(0, end - from, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(to, from, end - from);
    to[(char *)unused - from] += count - 1;
    mremap(to, end - from, end - from, MREMAP_MAYMOVE | MREMAP_FIXED, from);
    hold();
    puts("done");
}"""

SOON = 3_000_000  # nanoseconds of CPU time: far more than the return from write() takes


def compiled(compile_c: Compiler, directory: Path, source: str, *flags: str, section: bool = True) -> Path:
    """The program, with an SFrame section. Static ones have one for the C library too."""
    program = directory / "program"
    program.write_bytes(compile_c(HOLD + source, *flags).read_bytes())
    program.chmod(0o755)
    if section:
        sframegen.add_section(program, verify=False)
    return program


def cpu_time(pid: int) -> int:
    return time.clock_gettime_ns(~pid << 3 | 2)  # the number of its clock


def until_it_runs(pid: int, moment: int = SOON) -> None:
    """Wait until a process that has printed something has returned from write() and has run for a moment, in nanoseconds."""
    until = cpu_time(pid) + moment
    while cpu_time(pid) < until:
        os.sched_yield()


@contextmanager
def spinning(program: Path) -> Iterator[int]:
    """The number of a process that has printed `here`, has left write(), and runs until the end of the block."""
    with subprocess.Popen([program], stdout=subprocess.PIPE) as process:
        assert process.stdout
        try:
            assert process.stdout.readline() == b"here\n"
            until_it_runs(process.pid)
            yield process.pid
        finally:
            process.kill()


class Program:
    """A program that runs; at the end of the block it must have ended well, or it and its children are killed."""

    def __init__(self, program: Path, *arguments: str | Path, environ: Mapping[str, str] | None = None, ends: bool = True) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([program, *arguments], stdin=pipe, stdout=pipe, env=environ, start_new_session=not ends)
        self.path, self.pid, self.ends = program, self.process.pid, ends
        self.rest = ""

    def line(self) -> bytes:
        assert self.process.stdout
        return self.process.stdout.readline()

    def wait(self) -> None:
        line = self.line()
        assert line == b"here\n", line
        for _ in range(10_000):  # then it sleeps in read(), if no other thread does so
            if read_state(self.pid) == "S":
                break
            os.sched_yield()

    def go_on(self) -> None:
        assert self.process.stdin
        self.process.stdin.write(b".")
        self.process.stdin.flush()

    def finish(self) -> str:
        output, _ = self.process.communicate(b".", timeout=60)
        assert self.process.returncode == 0
        self.rest = output.decode()
        return self.rest

    def __enter__(self) -> Self:
        try:
            self.wait()
        except BaseException:
            self.process.kill()
            self.process.communicate()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if not self.ends:
            os.killpg(self.pid, signal.SIGKILL)
        elif kind is None and self.process.poll() is None:
            assert self.finish() == "done\n"
        self.process.kill()
        self.process.communicate()


def read_state(pid: int) -> str:
    """`S` sleeping, `T` stopped, ..."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def state_of(pid: int) -> str:
    """Of a process that is not busy: what has been let go runs for a moment."""
    while (state := read_state(pid)) == "R":
        pass
    return state


command = partial(start, "stack", timeout=300)


class Names:
    def __init__(self, pid: int, *, convert: bool = False) -> None:
        self.process = Process(pid)
        weakref.finalize(self, self.process.__exit__)
        self.tracer = Tracer(convert=convert)
        self.symbols = Symbols(self.tracer.objects)

    def threads(self) -> list[Thread]:
        return self.tracer.trace_process(self.process)

    def of(self, thread: Thread) -> list[str]:
        """Functions, the innermost first; SIGNAL for a signal frame."""
        return ["SIGNAL" if frame.signal else self.symbols.locate(frame).function or "??" for frame in thread.frames]

    def first(self) -> tuple[list[str], Thread]:
        thread = self.threads()[0]
        return self.of(thread), thread


def between(names: list[str], first: str, last: str = "main") -> list[str]:
    return names[names.index(first) : names.index(last) + 1]
