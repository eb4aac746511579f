"""What the kernel program knows of a process stays true: at fork, exec, exit, and when an address range is used again."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from sframegen.profile.bpf import extents
from sframegen.profile.bpf.extents import Extents
from sframegen.profile.bpf.kernel_records import Statistic
from sframegen.profile.bpf.libbpf import library
from sframegen.profile.packed_frames import unpack_frame
from sframegen.stack.walking.frames import End
from tests.support.kernel_events import needs_bpf
from tests.support.processes.kernel_walks import Sampled
from tests.support.processes.live import HOLD, Program

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.peers import Compiler

FORKS = r"""
int main(void) {
    hold();
    pid_t child = fork();
    if (child == 0) for (;;) after++;
    printf("%d\n", child);
    fflush(stdout);
    hold();
}
"""
EXECS = r"""
int main(int count, char **words) { if (count > 1) for (;;) after++; hold(); execl(words[0], words[0], "again", (char *)0); }
"""
REUSES = r"""
#include <sys/mman.h>
typedef void *(*Code)(volatile long *);
int main(int count, char **words) {
    void *first = dlopen(words[1], RTLD_NOW);
    void *work = dlsym(first, "work");
    hold();
    dlclose(first);
    void *second = dlopen(words[2], RTLD_NOW);
    Code again = (Code)dlsym(second, "work");
    printf("%d\n", (void *)again == work);
    fflush(stdout);
    again(&after);
}
"""
LIBRARY = "void *work(volatile long *count) { for (;;) ++*count; return 0; }"


def two_libraries(compile_c: Compiler) -> list[Path]:
    flags = ("-O2", "-shared", "-fPIC")
    return [compile_c(f"{LIBRARY} int version = {number};", *flags, name=f"lib{number}.so") for number in (1, 2)]


@needs_bpf
def test_a_child_is_known_before_it_runs(compile_c: Compiler) -> None:
    with Program(compile_c(HOLD + FORKS, "-O2"), ends=False) as process, Sampled({process.pid}) as sampled:
        sampled.publish(process.pid)
        sampled.walker.attach()
        process.go_on()
        child = int(process.line())
        sampled.until(lambda: any(pid == child for _, pid, _ in sampled.stacks()))
        sampled.until(lambda: sampled.walker.statistics()[Statistic.SAMPLES] > 30)
        sampled.end()
        assert not [record for record in sampled.unfinished() if record.pid == child]
        assert {stack.end for stack in sampled.stacks().values() if stack.pid == child} == {End.OUTERMOST}


@needs_bpf
def test_after_exec_nothing_is_known(compile_c: Compiler) -> None:
    with Program(compile_c(HOLD + EXECS, "-O2"), ends=False) as process, Sampled({process.pid}) as sampled:
        before = sampled.publish(process.pid)
        sampled.walker.attach()
        process.go_on()
        # On a busy machine, samples from before the call of exec come first; they have other ends.
        sampled.until(lambda: [record.end for record in sampled.unfinished()].count(End.NO_PROCESS) > 5)
        assert sampled.walker.publish(process.pid, sampled.spans[process.pid], before)  # late: says nothing
        known = len(sampled.stacks())
        seen = len(sampled.unfinished())
        sampled.until(lambda: len(sampled.unfinished()) > seen + 5)
        assert {record.end for record in sampled.unfinished()[seen:]} == {End.NO_PROCESS}
        assert len(sampled.stacks()) == known
        sampled.publish(process.pid)
        sampled.until(lambda: len(sampled.stacks()) > known)


@needs_bpf
def test_an_address_range_used_again_gives_no_stale_frame(compile_c: Compiler) -> None:
    libraries = two_libraries(compile_c)
    with Program(compile_c(HOLD + REUSES, "-O2"), *libraries, ends=False) as process, Sampled({process.pid}) as sampled:
        sampled.publish(process.pid)
        stale = sampled.numbers[str(libraries[0])]
        sampled.walker.attach()
        process.go_on()
        assert process.line() == b"1\n"  # both are at the same address
        sampled.until(lambda: len(sampled.unfinished()) > 10)
        assert not [stack for stack in sampled.stacks().values() if unpack_frame(stack.frames[0]).file == stale]
        sampled.publish(process.pid)

        def files() -> set[int]:
            return {unpack_frame(stack.frames[0]).file for stack in sampled.stacks().values() if stack.end is End.OUTERMOST}

        sampled.until(lambda: sampled.numbers[str(libraries[1])] in files())
        sampled.end()
        assert stale not in files()


@needs_bpf
def test_mappings_that_change_while_they_are_read_are_not_used(compile_c: Compiler) -> None:
    """A library that was loaded and unloaded since the last time: the kernel program never knew it."""
    libraries = two_libraries(compile_c)
    with Program(compile_c(HOLD + REUSES, "-O2"), *libraries, ends=False) as process, Sampled({process.pid}) as sampled:
        published = sampled.publish(process.pid)
        stale = sampled.numbers[str(libraries[0])]
        spans = sampled.spans[process.pid]
        assert sampled.walker.publish(process.pid, [span for span in spans if span.file != stale], published)
        sampled.walker.attach()
        epoch = sampled.walker.begin_epoch(process.pid)
        process.go_on()
        assert process.line() == b"1\n"  # both are at the same address
        assert sampled.walker.publish(process.pid, spans, epoch)
        sampled.until(lambda: len(sampled.unfinished()) > 10)
        sampled.end()
        assert not [stack for stack in sampled.stacks().values() if unpack_frame(stack.frames[0]).file == stale]


@needs_bpf
def test_processes_that_end_leave_no_entry(compile_c: Compiler) -> None:
    program = compile_c("int main(void) { volatile int i = 1 << 24; while (i) i--; }")
    ended = set()
    with Sampled(None) as sampled:
        sampled.walker.attach()
        for _ in range(20):
            with subprocess.Popen([program]) as process:
                ended.add(process.pid)
        sampled.end()
        known = {int.from_bytes(key, "little") for key, _ in sampled.walker._epochs.items(1 << 16)}
        assert ended & {record.pid for record in sampled.unfinished()}
        assert not known & ended


def is_loaded(number: int) -> bool:
    fd = library().functions.bpf_prog_get_fd_by_id(number)
    if fd >= 0:
        os.close(fd)
    return bool(fd >= 0)


@pytest.mark.sampled
@needs_bpf
def test_a_killed_profiler_leaves_nothing() -> None:
    code = (
        "from sframegen.profile.bpf.kernel_walker import KernelWalker\n"
        "from sframegen.profile.sampling_plan import ProfilePlan\n"
        "walker = KernelWalker(ProfilePlan(frequency=999)); walker.attach()\n"
        "info = open(f'/proc/self/fdinfo/{walker.program_fd}')\n"
        "print(*[line.split()[1] for line in info if line.startswith('prog_id')], flush=True)\n"
        "while True: walker.poll(10)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout
        number = int(process.stdout.readline())
        assert is_loaded(number)
        process.kill()
    while is_loaded(number):  # the kernel frees programs soon after
        os.sched_yield()


def test_an_extent_is_used_again_only_when_no_process_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    used: set[int] = set()
    now = [0.0]
    monkeypatch.setattr(extents, "monotonic", lambda: now[0])
    parts = Extents(10, lambda: used)
    first, second = parts.allocate(6), parts.allocate(4)
    assert (first, second, parts.allocate(1)) == (0, 6, None)
    parts.retire(0)
    assert parts.allocate(6) is None  # a run of the program may still read it
    now[0] = 2
    used.add(0)
    assert parts.allocate(6) is None  # a child has it
    used.clear()
    now[0] = 4
    assert (parts.allocate(2), parts.allocate(4)) == (0, 2)
    parts.retire(6)
    parts.retire(2)
    now[0] = 6
    assert parts.allocate(8) == 2
