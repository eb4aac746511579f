"""A core shows the build-ids of what was mapped, without the files: a core keeps the first page of each, nothing else of them."""

from __future__ import annotations

import re
import resource
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from sframegen.elf.file import open_elf
from sframegen.elf.notes import read_build_id
from tests.support.inputs.linker_inputs import blocking_script, inject
from tests.support.peers import Compiler, Peers

CRASHING = r"""
#include <sys/prctl.h>
#include <unistd.h>
void wait_or_crash(int wait) {
    if (!wait) __builtin_trap();
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
    write(1, "waiting\n", 8);
    for (;;) pause();
}
#ifndef LIBRARY
int main(int count, char **words) { wait_or_crash(count > 1); }
#endif
"""
USER = "void wait_or_crash(int wait); int main(int count, char **words) { wait_or_crash(count > 1); }"
LIBRARY = ("-shared", "-fPIC", "-DLIBRARY")
KINDS = {
    "PIE": ("-pie",),
    "non-PIE": ("-no-pie",),
    "static-PIE": ("-static-pie",),
    "static-PIE, tail": ("-static-pie", "-fuse-ld=lld", "-B{peers}"),
    "library": LIBRARY,
    "library, tail": (*LIBRARY, "-Wl,-T,{script}"),
}
CORE_PATTERN = Path("/proc/sys/kernel/core_pattern").read_text().strip()  # may name a program, or a place far away


def kernel_core(program: Path, environ: dict[str, str]) -> Path:
    """What the kernel writes."""

    most = resource.getrlimit(resource.RLIMIT_CORE)[1]
    if most == 0:
        pytest.skip("no core files: their limit is 0")

    def allow_cores() -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (most, most))

    done = subprocess.run([program], env=environ, cwd=program.parent, check=False, preexec_fn=allow_cores)
    assert done.returncode < 0
    [core] = program.parent.glob(CORE_PATTERN.partition("%")[0] + "*")
    return core


def gdb_core(program: Path, environ: dict[str, str]) -> Path:
    """What gdb writes."""
    gcore = shutil.which("gcore") or pytest.skip("no gcore on this machine: install gdb")
    with subprocess.Popen([program, "wait"], env=environ, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"waiting\n"
        try:
            subprocess.run([gcore, "-o", program.parent / "core", str(process.pid)], check=True, capture_output=True)
        finally:
            process.kill()
    return program.parent / f"core.{process.pid}"


def build_ids(core: Path, peers: Peers) -> set[str]:
    told = subprocess.run([peers.tool("eu-unstrip"), "-n", f"--core={core}"], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"^0x\w+\+0x\w+ ([0-9a-f]{40})@", told, re.MULTILINE))


@pytest.mark.parametrize("write_core", [gdb_core] if CORE_PATTERN[:1] in "|/" else [gdb_core, kernel_core])
@pytest.mark.parametrize("kind", KINDS)
def test_a_core_tells_the_build_ids(
    kind: str,
    write_core: Callable[[Path, dict[str, str]], Path],
    compile_c: Compiler,
    peers: Peers,
    tmp_path: Path,
) -> None:
    (tmp_path / "script").write_text(blocking_script())
    lld = Path(peers.tool("ld.lld")).parent
    flags = ("-O1", "-Wl,--build-id", *(flag.format(script=tmp_path / "script", peers=lld) for flag in KINDS[kind]))
    is_library, is_tail = "library" in kind, kind.endswith("tail")
    subject = compile_c(CRASHING, *flags, name="libcrash.so" if is_library else "program")
    program = compile_c(USER, f"-L{subject.parent}", "-lcrash") if is_library else subject
    for file in {program, subject}:
        assert inject(file, tmp_path / file.name, min_kernel="5.18").layout == (
            "tail" if is_tail and file == subject else "before" if kind == "non-PIE" and file == subject else "front"
        )
    core = write_core(tmp_path / program.name, {"LD_LIBRARY_PATH": str(tmp_path)})
    for file in {program, subject}:
        (tmp_path / file.name).unlink()
    told = build_ids(core, peers)
    for file in {program, subject}:
        build_id = read_build_id(open_elf(file))
        assert build_id is not None
        # In the tail layout the first page has the build-id, but not the program headers by which it would be found.
        assert (build_id.hex() in told) == (not (is_tail and file == subject)), told
