"""Programs of other machines that crash under qemu, which writes a core then; and what gdb has to be told of it."""

from __future__ import annotations

import resource
import shutil
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

import sframegen
from sframegen.stack.core.core_process import Core
from tests.support.peers import cache_directory

if TYPE_CHECKING:
    from tests.support.cross import Machine
    from tests.support.peers import Compiler

CRASHING = r"""
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
volatile int sink;
__attribute__((noinline)) void inner(int n) {
    char text[100];
    memset(text, n, sizeof text);
    sink = text[n];
    abort();
}
__attribute__((noinline)) void sized(int n) {
    volatile int room[n];
    room[0] = n;
    inner(n);
    sink = room[0];
}
__attribute__((noinline)) void recurse(int n) {
    if (n > 5) recurse(n - 1);
    else sized(n);
    sink++;
}
// Handlers return to where we want them to: qemu's own code for that is in no core of its newer versions.
#if defined __aarch64__
__asm__(".text\nnop\n.type back, %function\nback: mov x8, #139\nsvc #0\n.size back, .-back");
#elif defined __s390x__
__asm__(".text\nnopr\n.type back, @function\nback: svc 119\n.size back, .-back");
#endif
void back(void);
void handler(int number) { recurse(20); sink += number; }
int main(int count, char **words) {
    struct {
        void (*handler)(int);
        unsigned long flags;
        void (*restorer)(void);
        unsigned long mask;
    } action = {handler, 0x04000000, back, 0};
    if (count == 1) recurse(20);
    else if (words[1][0] == 'r') syscall(SYS_rt_sigaction, SIGUSR1, &action, 0, 8);
    else signal(SIGUSR1, handler);
    raise(SIGUSR1);
    return sink;
}
"""
RECURSION = 16  # frames of recurse()
CPU = {"qemu-aarch64": ("-cpu", "cortex-a57")}  # gdb 13 does not come to an end with the signal frames of CPUs that have SVE
LOADERS = {"arm64": "ld-linux-aarch64.so.1", "s390x": "ld64.so.1"}
QEMUS = ("system", "newest")
PIE = "-pie -fPIE"
POSITION_INDEPENDENT = 1 << 32  # other programs are below


class Emulated(NamedTuple):
    """`root`: what is / to the program."""

    core: Path
    program: Path
    root: Path

    def gdb_commands(self) -> list[str]:
        """gdb finds out where a position-independent program is by its headers, which are not in the core: it has to be told."""
        core = Core(self.core, self.program, self.root)
        starts = {row.path: row.start for row in reversed(core.mappings.rows) if row.inode}
        start = starts[str(self.program)]
        if "/lib/libc.so.6" not in starts or start < POSITION_INDEPENDENT:
            return [f"set sysroot {self.root}", f"file {self.program}", f"core-file {self.core}"]
        return [
            f"exec-file {self.program}",
            f"core-file {self.core}",
            f"symbol-file -o {start} {self.program}",
            f"add-symbol-file -o {starts['/lib/libc.so.6']} {self.root}/lib/libc.so.6",
        ]


def qemu_of(machine: Machine, which: str) -> str:
    """The system's, or the one of tools/get-qemu; skips the test without it."""
    if which == "system":
        return shutil.which(machine.qemu) or pytest.skip(f"no {machine.qemu} on this machine")
    program = cache_directory() / "qemu/bin" / machine.qemu
    return str(program) if program.exists() else pytest.skip(f"no {program}: run tools/get-qemu")


def make_root(machine: Machine, directory: Path) -> Path:
    """The dynamic linker, and the C library with a section."""
    (directory / "lib").mkdir()
    for file in ("libc.so.6", LOADERS[machine.name]):
        shutil.copy(f"{machine.root}/lib/{file}", directory / "lib")
    sframegen.add_section(directory / "lib/libc.so.6", verify=False)
    return directory


def make_program(compiler: Compiler, flags: str, directory: Path) -> Path:
    """It has a section."""
    program = directory / "program"
    shutil.copy(compiler(CRASHING, "-O2", *flags.split(), name="crashing"), program)
    sframegen.add_section(program, verify=False)
    return program


def crash(machine: Machine, qemu: str, program: Path, root: Path, *arguments: str) -> Emulated:
    """Its core, the only one in the program's folder. `restorer`: it crashes in a signal handler."""

    def only_qemus_own() -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        Path("/proc/self/coredump_filter").write_text("0")

    command = [qemu, *CPU.get(machine.qemu, ()), "-s", "65536", "-L", str(root), str(program), *arguments]
    done = subprocess.run(command, cwd=program.parent, capture_output=True, check=False, preexec_fn=only_qemus_own)
    assert done.returncode in (-signal.SIGABRT, 128 + signal.SIGABRT), done
    [core] = program.parent.glob("qemu_*.core")
    return Emulated(core, program, root)
