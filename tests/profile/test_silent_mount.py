"""Programs and libraries on a mount whose server stops answering: what others do goes on, and what is known is shown."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import shutil
import signal
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple, Self

import pytest

from tests.support.kernel_events import needs_bpf
from tests.support.peers import Compiler
from tests.support.processes.live import until_it_runs

IN = struct.Struct("<IIQQIIII")  # len, opcode, unique, nodeid, uid, gid, pid, padding
OUT = struct.Struct("<IiQ")  # len, error, unique
LOOKUP, FORGET, GETATTR, OPEN, READ, INIT, OPENDIR, INTERRUPT, BATCH_FORGET = 1, 2, 3, 14, 15, 26, 27, 36, 42
ROOT = 1  # its number
ENOENT, ENOSYS = 2, 38


class SilentMount:
    """A FUSE file system of a few files, mounted at a directory within the block. Needs root and /dev/fuse: OSError without them.

    It speaks the protocol itself. When it is silent, requests are read and not answered, as by a server that hangs: not even
    SIGKILL ends a process that waits for one. The end of the block ends the server, and with it all waits.
    """

    def __init__(self, directory: Path, files: dict[str, bytes]) -> None:
        self.directory = directory
        self._names = list(files)
        self._contents = list(files.values())
        self._is_silent = mmap.mmap(-1, mmap.PAGESIZE)  # shared with the server
        self._libc = ctypes.CDLL(None, use_errno=True)

    def __enter__(self) -> Self:
        device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={device},rootmode=40755,user_id=0,group_id=0,allow_other".encode()
        if self._libc.mount(b"silent", os.fsencode(self.directory), b"fuse.silent", 0, options) != 0:
            os.close(device)
            raise OSError(ctypes.get_errno(), "mount")
        self._server = os.fork()
        if not self._server:
            try:
                self._serve(device)
            finally:
                os._exit(1)
        os.close(device)
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._server, signal.SIGKILL)  # the last copy of the device: all waits end with an error
        os.waitpid(self._server, 0)
        self._libc.umount2(os.fsencode(self.directory), 2)  # MNT_DETACH

    def be_silent(self) -> None:
        """Answer no more. Pages that were read before are forgotten where nobody has mapped them."""
        self._is_silent[0] = 1

    # -- the server

    def _serve(self, device: int) -> None:
        while True:
            request = os.read(device, 1 << 20)  # no request is longer
            _, opcode, unique, node, *_ = IN.unpack_from(request)
            if self._is_silent[0] or opcode in (FORGET, INTERRUPT, BATCH_FORGET):
                continue
            error, reply = self._answer(opcode, node, request[IN.size :])
            with suppress(FileNotFoundError):  # whoever asked has gone
                os.write(device, OUT.pack(OUT.size + len(reply), -error, unique) + reply)

    def _answer(self, opcode: int, node: int, body: bytes) -> tuple[int, bytes]:
        if opcode == INIT:
            major, minor, ahead, _ = struct.unpack_from("<4I", body)
            return 0, struct.pack("<4I2H2I2H8I", major, min(minor, 31), ahead, 0, 12, 9, 1 << 17, 1, 32, 0, *[0] * 8)
        if opcode == LOOKUP:
            name = os.fsdecode(body.rstrip(b"\0"))
            if name not in self._names:
                return ENOENT, b""
            found = self._names.index(name) + ROOT + 1
            return 0, struct.pack("<4Q2I", found, 1, 0, 0, 0, 0) + self._attributes(found)
        if opcode == GETATTR:
            return 0, struct.pack("<Q2I", 0, 0, 0) + self._attributes(node)
        if opcode in (OPEN, OPENDIR):
            return 0, struct.pack("<Q2I", 0, 0, 0)
        if opcode == READ:
            _, offset, size = struct.unpack_from("<QQI", body)
            return 0, self._contents[node - ROOT - 1][offset : offset + size]
        return ENOSYS, b""

    def _attributes(self, node: int) -> bytes:
        """Valid for no time: each look at them is a request."""
        size = 0 if node == ROOT else len(self._contents[node - ROOT - 1])
        mode = stat.S_IFDIR | 0o755 if node == ROOT else stat.S_IFREG | 0o755
        return struct.pack("<6Q10I", node, size, -(-size // 512), 1, 1, 1, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


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
    healthy, mount = compile_c(BUSY, "-O2", "-fno-optimize-sibling-calls"), tmp_path / "mount"
    mount.mkdir()
    with ExitStack() as opened:
        processes: list[subprocess.Popen[bytes]] = []
        opened.callback(lambda: [process.communicate() for process in processes])  # after the mount has gone: they may wait for it
        try:
            server = opened.enter_context(SilentMount(mount, {"victim": healthy.read_bytes(), "library": healthy.read_bytes()}))
        except OSError as error:
            pytest.skip(f"no BPF: no FUSE either: {error.strerror}")
        for command in ([healthy], [mount / "victim"], [shutil.copy(healthy, tmp_path / "mapping"), mount / "library"]):
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
