"""A whole profile with the kernel program: what the kernel program knows of a process stays true."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from sframegen.profile import kernel_session
from sframegen.profile.bpf import kernel_walker
from sframegen.profile.bpf.kernel_records import Statistic
from sframegen.profile.copied_session import BACKENDS, open_session
from sframegen.profile.events.attributes import EventError
from sframegen.profile.events.names import find_event
from sframegen.profile.following import processes
from sframegen.profile.following.processes import NOT_FOLLOWED
from sframegen.profile.kernel_session import KernelSession
from sframegen.profile.limits import MAX_COPY
from sframegen.profile.packed_frames import unpack_frame
from sframegen.profile.report.naming import name_stacks
from sframegen.profile.sampling_plan import ProfilePlan
from sframegen.profile.stack_walks import NO_TABLE_IN_TIME
from sframegen.profile.this_machine import RAISED_PRIORITY
from sframegen.program.helper import helpers
from tests.support.kernel_events import needs_bpf
from tests.support.peers import Compiler
from tests.support.processes.live import HOLD, SPIN, Program

pytestmark = needs_bpf

LIBRARY = "void *work(volatile long *count) { for (;;) ++*count; return 0; }"
# The child maps the code of the second library where the first one's is: with MAP_FIXED, the kernel looks for no free addresses.
REPLACES = r"""
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
int main(int count, char **words) {
    void *(*work)(volatile long *) = dlsym(dlopen(words[1], RTLD_NOW), "work");
    Dl_info info;
    hold();
    if (fork() == 0) {
        char *page = (char *)((uintptr_t)work & -4096);
        dladdr(work, &info);
        int second = open(words[2], O_RDONLY), flags = MAP_PRIVATE | MAP_FIXED;
        if (mmap(page, 4096, PROT_READ | PROT_EXEC, flags, second, page - (char *)info.dli_fbase) != page) _exit(8);
        hold();
        work(&after);
    }
    wait(0);
}
"""
# The child has ended before the profiler looks again.
ENDS = r"""
#include <sys/wait.h>
#include <time.h>
int main(int count, char **words) {
    if (count > 1) {
        while (clock() < CLOCKS_PER_SEC / 5) after++;
        return 0;
    }
    hold();
    if (fork() == 0) execl(words[0], words[0], "child", (char *)0);
    wait(0);
    hold();
}
"""
DEEP = r"""
static int deep(int left) {
    char bytes[60000];
    memset(bytes, left, sizeof bytes);
    if (left) return deep(left - 1) + bytes[left];
    for (;;) ++after;
}
int main(void) { puts("here"); fflush(stdout); return deep(2); }
"""
BUFFER = 8 << 20  # bytes
SAMPLES = 200


def plan_for(pid: int) -> ProfilePlan:
    return ProfilePlan(frozenset([pid]), find_event("cpu-clock"), 999)


@contextmanager
def begun(pid: int) -> Iterator[KernelSession]:
    with closing(KernelSession(plan_for(pid))) as session:
        session.begin()
        yield session


@pytest.mark.sampled
def test_helpers_begin_first_and_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that waited for a processor would be taken for a file system that does not answer."""
    own = os.getpriority(os.PRIO_PROCESS, 0)
    seen: list[int] = []
    monkeypatch.setattr(kernel_session, "begin_helpers", lambda: seen.append(os.getpriority(os.PRIO_PROCESS, 0)))
    monkeypatch.setattr(kernel_session, "TableBuilder", Mock(side_effect=EventError("what is made after them")))
    with pytest.raises(EventError):
        KernelSession(plan_for(os.getpid()))
    assert seen == [RAISED_PRIORITY if own == 0 == os.geteuid() else own]
    assert os.getpriority(os.PRIO_PROCESS, 0) == own


@pytest.mark.sampled
def test_a_child_that_replaces_what_it_has_from_its_parent(compile_c: Compiler) -> None:
    flags = ("-O2", "-shared", "-fPIC")
    libraries = [compile_c(f"{LIBRARY} int version = {number};", *flags, name=f"lib{number}.so") for number in (1, 2)]
    with Program(compile_c(HOLD + REPLACES, "-O2"), *libraries, ends=False) as program, begun(program.pid) as session:
        program.go_on()
        program.wait()
        session.advance()
        session.advance()
        program.go_on()
        while session.samples < SAMPLES:
            session.advance()
        collected = session.finish()
    paths = {Path(collected.files[unpack_frame(stack.frames[0]).file].path).name for stack in collected.stacks if stack.frames}
    assert "lib2.so" in paths
    assert "lib1.so" not in paths


@pytest.mark.sampled
def test_samples_of_a_process_that_has_ended_long_ago_are_walked_with_its_mappings(
    compile_c: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where thousands of mappings, or a busy machine, keep the profiler from looking for seconds."""
    monkeypatch.setattr(processes, "MAX_DELAY", 0)
    with Program(compile_c(HOLD + ENDS, "-O1"), ends=False) as program, begun(program.pid) as session:
        program.go_on()
        program.wait()
        collected = session.finish()
    assert collected.stacks.samples > SAMPLES // 4
    assert collected.lost[NOT_FOLLOWED] == 0


@pytest.fixture
def no_file_is_the_mapped_one(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each seems to have been replaced since a process mapped it."""
    monkeypatch.setattr("fcntl.ioctl", lambda *_: (3).to_bytes(8, "little"))  # the generation of its inode
    helpers().close()  # the next one has this ioctl
    yield
    helpers().close()


@pytest.mark.usefixtures("no_file_is_the_mapped_one")
def test_a_file_that_is_only_known_once_its_samples_are_walked_and_cannot_be_opened(compile_c: Compiler) -> None:
    """All of them wait for its table, which nobody will make."""
    test_a_file_that_is_only_known_once_its_samples_are_walked(compile_c)


@pytest.mark.sampled
def test_a_file_that_is_only_known_once_its_samples_are_walked(compile_c: Compiler) -> None:
    """All of them wait for its table, which somebody has to ask for."""
    child = compile_c(HOLD + ENDS.replace("count > 1", "1"), "-O1")
    parent = compile_c(HOLD + ENDS.replace("count > 1", "0").replace("words[0], words[0]", "words[1], words[1]"), "-O1")
    with Program(parent, child, ends=False) as program, begun(program.pid) as session:
        program.go_on()
        program.wait()
        collected = session.finish()
    assert collected.stacks.samples > SAMPLES // 4
    assert collected.lost[NO_TABLE_IN_TIME] == 0


@pytest.mark.sampled
def test_samples_are_taken_while_the_profiler_is_busy_for_longer_than_the_ring_buffer_has_room(
    compile_c: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_walker, "choose_ring_size", lambda *_: BUFFER)
    with Program(compile_c(HOLD + DEEP, "-O1"), ends=False) as program, closing(KernelSession(plan_for(program.pid))) as session:
        with monkeypatch.context() as context:
            context.setattr(session._publications, "publish", lambda: None)
            session.begin()
        ring, taken = session._walker.ring, session._walker.statistics
        while ring._bytes < 2 * BUFFER and taken()[Statistic.SAMPLES] < 50 * BUFFER // MAX_COPY:
            pass
        collected = session.finish()
    assert collected.stacks.samples > 3 * BUFFER // 2 // MAX_COPY


@pytest.mark.sampled
def test_a_slow_file_system_does_not_keep_a_process_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what costs CPU time is done more rarely. On this machine everything takes a second, but no CPU time."""
    seconds = count(1.0)
    clock = SimpleNamespace(
        monotonic=lambda: next(seconds), process_time=lambda: 0.0, time=time.time, monotonic_ns=time.monotonic_ns
    )
    monkeypatch.setattr(kernel_session, "time", clock)
    with begun(os.getpid()) as session:
        assert session._publications._not_before == {}


@pytest.mark.sampled
def test_the_buffer_is_given_back_before_names_are_found() -> None:
    with begun(os.getpid()) as session:
        assert "bpf-map" in Path("/proc/self/maps").read_text()
        session.finish()
        assert "bpf-map" not in Path("/proc/self/maps").read_text()
        assert not session._builder._forker.is_running, "what forks the processes that make tables has ended"


@pytest.mark.sampled
def test_samples_taken_while_mappings_are_read_do_not_make_them_be_read_again(
    compile_c: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine each reading takes longer than the time between two samples."""
    readings: list[int] = []

    def slow_scan(pid: int, drained: int = 0) -> bool:
        readings.append(pid)
        before = session._walker.statistics()[Statistic.SAMPLES]
        while session._walker.statistics()[Statistic.SAMPLES] < before + 3:
            pass
        return scan(pid, drained)

    program = compile_c(SPIN + "int main(void) { spin(); }", "-O2")
    with Program(program, ends=False) as process, begun(process.pid) as session:
        while session.samples < 1:  # what was mapped at its begin is known
            session.advance()
        scan = session.follower.scan
        monkeypatch.setattr(session.follower, "scan", slow_scan)
        session._publications.due.add(process.pid)
        for _ in range(5):
            session.advance()
    assert len(readings) == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_stays_open(backend: str) -> None:
    """Not even the files that names were read from, once nobody has the profile."""

    def profile() -> int:
        with closing(open_session(plan_for(os.getpid()), backend)[0]) as session:
            session.begin()
            while session.samples < 20:
                session.advance()
            name_stacks(session.finish())
        del session
        gc.collect()
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a list of names

    assert profile() == profile()
