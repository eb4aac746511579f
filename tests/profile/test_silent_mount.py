"""Programs and libraries on a mount whose server stops answering: what others do goes on, and what is known is shown."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.support.kernel_events import needs_bpf
from tests.support.processes.live import until_it_runs
from tests.support.processes.silent_mount import SilentMount

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.peers import Compiler

BUSY = """
#include <dlfcn.h>
#include <sys/mman.h>
#include <fcntl.h>
#include <unistd.h>
volatile unsigned long sum;
__attribute__((noinline)) void inner(void) { for (;;) sum++; }
__attribute__((noinline)) int outer(void) { inner(); return sum & 1; }
int main(int count, char **arguments) {
    if (count > 1) mmap(0, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, open(arguments[1], O_RDONLY), 0); /* is never touched */
    if (write(1, "here\\n", 5) != 5) return 1;
    return outer();
}
"""
SILENT = "its file system does not answer"
GUARD = 120  # seconds, as for a busy machine: a freeze fails a test


class Silent(NamedTuple):
    """Processes that run, busy: `healthy`; one whose program is on the silent mount; one that has only mapped a file there."""

    healthy: int
    program: int
    mapped: int


@pytest.fixture
def silent(compile_c: Compiler, tmp_path: Path) -> Iterator[Silent]:
    """The mount answers no more."""
    healthy, mount = compile_c(BUSY, "-O2", "-fno-optimize-sibling-calls"), tmp_path / "mount"
    mount.mkdir()
    with ExitStack() as opened:
        processes: list[subprocess.Popen[bytes]] = []
        opened.callback(lambda: [process.communicate() for process in processes])  # after the mount has gone: they may wait for it
        try:
            server = opened.enter_context(SilentMount(mount, {"victim": healthy.read_bytes(), "library": healthy.read_bytes()}))
        except OSError as error:
            pytest.skip(f"no BPF: no FUSE either: {error.strerror}")
        mapping = shutil.copy(healthy, tmp_path / "mapping")
        for command in ([healthy], [mount / "victim"], [mapping, mount / "library"]):
            process = subprocess.Popen(command, stdout=subprocess.PIPE)
            processes.append(process)
            opened.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.readline() == b"here\n"
            until_it_runs(process.pid)
        server.be_silent()
        Path("/proc/sys/vm/drop_caches").write_text("3")
        yield Silent(*(process.pid for process in processes))


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sframegen", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=GUARD, check=False)


@pytest.mark.sampled
@pytest.mark.parametrize("which", ["program", "mapped"])
def test_a_stack_is_printed(silent: Silent, which: str) -> None:
    pid = getattr(silent, which)
    done = run("stack", "--convert", pid)
    assert (done.returncode, f"PID {pid}" in done.stdout) == (0, True)
    assert SILENT in done.stderr, done.stdout + done.stderr
    assert ("inner" in done.stdout) == (which == "mapped"), "its own program is elsewhere"


@pytest.mark.sampled
@needs_bpf
@pytest.mark.parametrize("backend", ["kernel", "copies"])
@pytest.mark.parametrize("which", ["program", "mapped"])
def test_the_others_are_profiled(silent: Silent, backend: str, which: str) -> None:
    pid = getattr(silent, which)
    sampled = {silent.healthy, pid} if which == "mapped" else {silent.healthy}
    for seconds in (0.5, 4, 32):  # longer, if they got too little of a busy machine's CPUs
        done = run("profile", "--json", "-F", 999, "-d", seconds, "--backend", backend, pid, silent.healthy)
        assert done.returncode == 0, done.stderr
        profile = json.loads(done.stdout)
        if sampled <= {stack["pid"] for stack in profile["stacks"]}:
            break
    for one in sampled:
        complete = [stack["frames"][-2:] for stack in profile["stacks"] if stack["pid"] == one and stack["complete"]]
        functions = {tuple(profile["frames"][number]["function"] for number in frames) for frames in complete}
        assert functions == {("outer", "inner")}, done.stdout + done.stderr
    if which == "program":
        assert any(SILENT in note for note in profile["notes"]), done.stdout + done.stderr
