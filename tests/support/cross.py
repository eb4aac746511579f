"""Machines that this one is not: gcc's cross compiler for each and the ways to compile, and qemu to run their programs."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.support.peers import Compiler

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.peers import Peers


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


class Build(NamedTuple):
    machine: Machine
    flags: str
    shows: tuple[str, ...] = ()  # patterns in readelf's text of the section: the flags made what they are for


FRAME = r"c-\d+ +c-\d+"
ARM64_BUILDS = {
    "-O0": (rf"sp\+40032 +{FRAME}$", rf"sp\+700032 +{FRAME}$", r"fp\+"),
    "-O1": (),
    "-O2": (rf"sp\+700032 +{FRAME}$", rf"fp\+\d+ +{FRAME}$"),
    "-O3": (),
    "-Os": (),
    "-O2 -fomit-frame-pointer": (r"sp\+\d+ +u +c-\d+$",),
    "-O2 -mbranch-protection=standard": (r"sp\+0 +u +u\[s\]$", rf"sp\+\d+ +{FRAME}\[s\]$"),
    "-O2 -mbranch-protection=pac-ret+leaf+b-key": (r"pauth = B key", rf"fp\+\d+ +{FRAME}\[s\]$"),
    "-O2 -fstack-clash-protection -fstack-protector-strong": (r"r12\+655360 *u +u$",),
    "-O2 -no-pie": (),
    f"-O2 {ARM64.static}": (),
    "-O2 -static-pie": (r"sp\+-16 +",),
    "-O2 -shared -fPIC": (),
}
S390X_BUILDS = {
    "-O0": (rf"fp\+700\d+ +{FRAME}$", r"sp\+\d+ +r\d\d\+0 +U$", r"sp\+\d+ +r\d\d\+0 +r\d\d\+0$"),
    "-O1": (),
    "-O2": (rf"sp\+40\d+ +{FRAME}$", rf"sp\+700\d+ +{FRAME}$", r"sp\+\d+ +u +c-\d+$", r"sp\+\d+ +u +r\d\d\+0$"),
    "-O3": (),
    "-Os": (),
    "-O2 -fno-omit-frame-pointer": (r"fp\+\d+ +r\d\d\+0 +U$", r"fp\+\d+ +r\d\d\+0 +r\d\d\+0$"),
    "-O2 -march=z13": (),
    "-O2 -march=z900": (r"sp\+\d+ +c-\d+ +U$",),
    "-O2 -mpacked-stack": (r"sp\+\d+ +u +c-16$",),
    "-O2 -mbackchain": (),
    "-O2 -fno-pie -no-pie": (),
    f"-O2 {S390X.static}": (),
    "-O2 -shared -fPIC": (),
}
BUILDS = [
    Build(machine, flags, shows)
    for machine, builds in ((ARM64, ARM64_BUILDS), (S390X, S390X_BUILDS))
    for flags, shows in builds.items()
]
