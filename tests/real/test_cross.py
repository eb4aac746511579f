"""add-section on what gcc makes for AArch64, of either byte order, and for s390x: true rules, and the programs run as before."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING, NamedTuple

import pytest

from sframegen import add_section
from sframegen.elf.file import open_elf
from tests.support.cross import ARM64, ARM64_BE, MACHINES, S390X, Machine
from tests.support.loops import for_each
from tests.support.oracles.compare import Verdict, compare
from tests.support.programs import AARCH64_ALONE, ALONE, ALONE_PRINTED, HOSTED, PRINTED, PROGRAM, RUNNER, THROWING, THROWN

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.peers import Compiler, Peers

    CrossCompiler = Callable[[Machine], Compiler]

pytestmark = pytest.mark.full


class Build(NamedTuple):
    machine: Machine
    flags: str
    shows: tuple[str, ...]  # patterns in readelf's text of the section: the flags made what they are for


FRAME = r"c-\d+ +c-\d+"
ARM64_BUILDS = {
    "-O0": (rf"sp\+40032 +{FRAME}$", rf"sp\+700032 +{FRAME}$", r"fp\+"),
    "-O2": (rf"sp\+700032 +{FRAME}$", rf"fp\+\d+ +{FRAME}$"),
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
    "-O2": (rf"sp\+40\d+ +{FRAME}$", rf"sp\+700\d+ +{FRAME}$", r"sp\+\d+ +u +c-\d+$", r"sp\+\d+ +u +r\d\d\+0$"),
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
BUILDS = [Build(ARM64, *build) for build in ARM64_BUILDS.items()] + [Build(S390X, *build) for build in S390X_BUILDS.items()]
FREESTANDING = ("-ffreestanding", "-nostdlib")


@pytest.fixture(scope="session")
def cross(peers: Peers, tmp_path_factory: pytest.TempPathFactory) -> CrossCompiler:
    compilers = {machine: machine.compiler(peers, tmp_path_factory.mktemp(machine.name)) for machine in (*MACHINES, ARM64_BE)}
    return compilers.__getitem__


def run(machine: Machine, program: Path, *arguments: Path) -> str:
    done = subprocess.run(machine.command(machine.root, program, *arguments), check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def add(original: Path, directory: Path, peers: Peers) -> tuple[Path, str]:
    """The file with a section that says all that the CFI does, and readelf's text of it."""
    result = directory / original.name
    summary = add_section(original, output=result)
    report = compare(original, result, peers)
    assert report.ok, str(report)
    assert report.bytes[Verdict.EQUAL] == summary.covered_bytes
    assert set(report.rows_by_reason) <= {"RA column"}, str(report)  # vfork of AArch64's glibc 2.36
    text = subprocess.run([peers.tool("readelf"), "--sframe", result], check=True, capture_output=True, text=True).stdout
    return result, "\n".join(line.rstrip() for line in text.splitlines())


@pytest.mark.parametrize("build", BUILDS, ids=lambda build: f"{build.machine.name} {build.flags}")
def test_true_and_running(build: Build, cross: CrossCompiler, peers: Peers, tmp_path: Path) -> None:
    shared = "-shared" in build.flags
    compile_c = cross(build.machine)
    result, text = add(compile_c(HOSTED if shared else PROGRAM, *build.flags.split()), tmp_path, peers)
    for pattern in build.shows:
        assert re.search(pattern, text, re.MULTILINE), f"nothing like {pattern}"
    command = (compile_c(RUNNER, "-O2", "-ldl"), result) if shared else (result,)
    assert run(build.machine, *command) == PRINTED


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_exceptions(machine: Machine, static: bool, cross: CrossCompiler, peers: Peers, tmp_path: Path) -> None:
    linked = machine.static.split() if static else ("-pie",)
    result, _ = add(cross(machine)(THROWING, "-x", "c++", "-O2", "-pthread", *linked, "-lstdc++", "-lm"), tmp_path, peers)
    assert run(machine, result) == THROWN


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_a_static_program_has_its_headers_before_it(machine: Machine, cross: CrossCompiler, tmp_path: Path) -> None:
    """Its relocations follow the program headers, and cannot move."""
    program, result = cross(machine)(PROGRAM, "-O2", "-static"), tmp_path / "result"
    add_section(program, output=result)
    assert open_elf(result).segments[0].p_vaddr < open_elf(program).segments[0].p_vaddr
    assert run(machine, result) == PRINTED


@for_each("flags", ["-O0", "-O2", "-O2 -mbranch-protection=standard"])
def test_aarch64_big_endian(flags: str, cross: CrossCompiler, peers: Peers, tmp_path: Path) -> None:
    static = ("-mbig-endian", *flags.split(), *FREESTANDING, "-static", "-Wl,-z,separate-code")
    result, text = add(cross(ARM64_BE)(AARCH64_ALONE, *static), tmp_path, peers)
    assert ("[s]" in text) == ("branch" in flags)
    assert run(ARM64_BE, result) == ALONE_PRINTED


@pytest.mark.parametrize(
    ("machine", "flags"),
    [
        (ARM64_BE, "-mbig-endian -O2 -fPIC"),
        (ARM64_BE, "-mbig-endian -O2 -fPIC -mbranch-protection=pac-ret+b-key"),
        (S390X, "-O2 -fPIC -mpacked-stack -mbackchain -msoft-float -DNO_FLOATING_POINT"),
        (S390X, "-O0 -fPIC -mpacked-stack -mbackchain -msoft-float -DNO_FLOATING_POINT"),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_libraries_that_only_kernels_could_run(
    machine: Machine, flags: str, cross: CrossCompiler, peers: Peers, tmp_path: Path
) -> None:
    add(cross(machine)(ALONE, *flags.split(), *FREESTANDING, "-shared"), tmp_path, peers)
