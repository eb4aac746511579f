"""Cores of real programs, walked, and each frame compared with gdb's: gcore's and the kernel's, and qemu's of other machines."""

from __future__ import annotations

import resource
import shutil
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import sframegen
from sframegen.stack.core.core_process import Core
from sframegen.stack.live.process import Process
from sframegen.stack.tracer import Tracer
from sframegen.stack.walking.ends import End
from sframegen.stack.walking.frames import How
from tests.support.cross import ARM64, S390X, Machine
from tests.support.processes.emulated import PIE, QEMUS, RECURSION, crash, make_program, make_root, qemu_of
from tests.support.processes.gdb_frames import differences, frames_by_gdb, unfinished

if TYPE_CHECKING:
    from sframegen.stack.walking.frames import Thread
    from tests.support.peers import Compiler, Peers
    from tests.support.processes.emulated import Emulated

pytestmark = [pytest.mark.once, pytest.mark.full]

CORE_PATTERN = Path("/proc/sys/kernel/core_pattern").read_text().strip()  # may name a program, or a place far away


def tool(name: str) -> str:
    return shutil.which(name) or pytest.skip(f"no {name} on this machine")


def state(task: Path) -> str:
    return (task / "stat").read_text().rpartition(") ")[2][0]


def frames(threads: list[Thread]) -> dict[int, list[tuple[int, int | None, How | None]]]:
    return {thread.tid: [(frame.pc, frame.cfa, frame.how) for frame in thread.frames] for thread in threads}


# -- this machine's

THREADS = 5
WAITING = r"""
#define _GNU_SOURCE
#include <pthread.h>
#include <semaphore.h>
#include <sys/prctl.h>
#include <unistd.h>
static sem_t there;
volatile long after;
__attribute__((noinline)) void wait_forever(void) {
    if (getpid() == gettid()) write(1, "ready\n", 6);
    else sem_post(&there);
    for (;;) pause();
}
__attribute__((noinline)) void recurse(long depth) {
    volatile char room[depth * 16 + 16];
    room[depth] = 0;
    if (depth) recurse(depth - 1); else wait_forever();
    after += room[depth];
}
void *thread(void *depth) { recurse((long)depth); return 0; }
int main(void) {
    pthread_t made;
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 1 << 17);
    sem_init(&there, 0, 0);
    for (long i = 1; i < %d; i++) pthread_create(&made, &small, thread, (void *)(i * 10));
    for (long i = 1; i < %d; i++) sem_wait(&there);
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
    recurse(100);
}
"""


@pytest.mark.parametrize("static", [True, False], ids=["sections", "convert"])
def test_cores_of_gcore_and_of_the_kernel(static: bool, compile_c: Compiler, tmp_path: Path) -> None:
    """Both tell of the same threads what they tell themselves while they live."""
    source = WAITING % (THREADS, THREADS)
    program = tmp_path / "program"
    shutil.copy(compile_c(source, "-O2", "-pthread", *(["-static"] if static else ["-pie", "-fPIE"])), program)
    if static:
        sframegen.add_section(program, verify=False)
    gcore, gdb = tool("gcore"), tool("gdb")

    def threads_of(core: Path) -> list[Thread]:
        return Tracer(convert=not static).trace(Core(core))

    with subprocess.Popen([program], cwd=tmp_path, stdout=subprocess.PIPE) as process:
        resource.prlimit(process.pid, resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"ready\n"
            while any(state(task) != "S" for task in Path(f"/proc/{process.pid}/task").iterdir()):
                pass  # some may still be on their way into pause()
            live = Tracer(convert=not static).trace_process(Process(process.pid))
            subprocess.run([gcore, "-o", tmp_path / "gcore", str(process.pid)], check=True, capture_output=True)
        finally:
            process.send_signal(signal.SIGABRT)
    cores = {"gcore": tmp_path / f"gcore.{process.pid}"}
    if CORE_PATTERN[:1] not in ("|", "/"):
        [cores["kernel"]] = tmp_path.glob(CORE_PATTERN.partition("%")[0] + "*")
    assert len(live) == THREADS
    for thread in live:
        assert thread.end in (End.OUTERMOST, End.NO_RETURN)
        assert {frame.how for frame in thread.frames} <= {How.SFRAME if static else How.CONVERTED}
    assert max(len(thread.frames) for thread in live) > 100
    for kind, core in cores.items():
        threads = threads_of(core)
        assert frames(threads) == frames(live), kind
        theirs = frames_by_gdb(gdb, f"file {program}", f"core-file {core}")
        assert sum(map(len, theirs.values())) > 200
        assert list(differences(threads, theirs)) == [], kind
        assert list(unfinished(threads, theirs)) == [], kind


# -- other machines'


@pytest.fixture(scope="module", params=[ARM64, S390X], ids=lambda machine: machine.name)
def machine(request: pytest.FixtureRequest) -> Machine:
    assert isinstance(request.param, Machine)
    return request.param


@pytest.fixture(scope="module")
def root(machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_root(machine, tmp_path_factory.mktemp("root"))


def walked(made: Emulated) -> Thread:
    [thread] = Tracer().trace(Core(made.core, made.program, made.root))
    return thread


@pytest.mark.parametrize("which", QEMUS)
@pytest.mark.parametrize("kind", ["static", "-no-pie -fno-pie", PIE])
def test_an_abort(kind: str, which: str, machine: Machine, root: Path, peers: Peers, tmp_path: Path) -> None:
    qemu = qemu_of(machine, which)
    program = make_program(machine.compiler(peers, tmp_path), machine.static if kind == "static" else kind, tmp_path)
    made = crash(machine, qemu, program, root)
    thread = walked(made)
    assert thread.end is End.OUTERMOST
    assert {frame.how for frame in thread.frames} == {How.SFRAME}
    theirs = frames_by_gdb(tool("gdb-multiarch"), *made.gdb_commands())
    assert [len(frames) for frames in theirs.values()] == [len(thread.frames)]
    assert list(differences([thread], theirs)) == []
    assert list(unfinished([thread], theirs)) == []


@pytest.mark.parametrize("which", QEMUS)
def test_through_a_signal_handler(which: str, machine: Machine, root: Path, peers: Peers, tmp_path: Path) -> None:
    qemu = qemu_of(machine, which)
    made = crash(machine, qemu, make_program(machine.compiler(peers, tmp_path), machine.static, tmp_path), root, "restorer")
    thread = walked(made)
    assert thread.end is End.OUTERMOST
    [at] = [number for number, frame in enumerate(thread.frames) if frame.signal]
    assert at > RECURSION
    assert {frame.how for frame in thread.frames if not frame.signal} == {How.SFRAME}
    theirs = frames_by_gdb(tool("gdb-multiarch"), *made.gdb_commands())
    assert [[number for number, frame in enumerate(frames) if frame.signal] for frames in theirs.values()] == [[at]]
    assert list(differences([thread], theirs)) == []
    assert list(unfinished([thread], theirs)) == []
