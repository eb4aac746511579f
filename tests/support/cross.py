"""Machines that this one is not: gcc's cross compiler for each, and qemu to run their programs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.peers import Compiler, Peers


class Machine(NamedTuple):
    name: str  # of the architecture, as Debian says
    prefix: str  # of the cross tools' names
    qemu: str
    static: str = ""  # links a static program; ld leaves too little room for program headers before .rela.plt, which cannot move

    def command(self, root: Path | str, program: Path | str, *arguments: Path | str, **environ: Path | str) -> list[str]:
        """Runs a program by qemu, its interpreter and libraries found under `root` first. `environ` is the program's alone."""
        qemu = shutil.which(self.qemu)
        if qemu is None:
            pytest.skip(f"no {self.qemu} on this machine: install qemu-user")
        settings = [word for name, value in environ.items() for word in ("-E", f"{name}={value}")]
        return [qemu, "-L", str(root), *settings, str(program), *map(str, arguments)]

    def compiler(self, peers: Peers, directory: Path) -> Compiler:
        return Compiler(peers, directory, self.prefix)

    @property
    def root(self) -> str:
        """Where the cross compiler has its C library."""
        return f"/usr/{self.prefix.removesuffix('-')}"


ARM64 = Machine("arm64", "aarch64-linux-gnu-", "qemu-aarch64", "-static -Wl,--section-start=.rela.plt=0x400400")
ARM64_BE = ARM64._replace(name="arm64-be", qemu="qemu-aarch64_be")  # no C library is made for it
S390X = Machine("s390x", "s390x-linux-gnu-", "qemu-s390x", "-static -Wl,--section-start=.rela.plt=0x1000400")
MACHINES = (ARM64, S390X)
