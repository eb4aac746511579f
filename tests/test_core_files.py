"""A core tells the build-ids of the files that it was made by, without them: they stay in the first page of each."""

from __future__ import annotations

import re
import resource
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from linker_inputs import blocking_script, inject

from sframegen.elf import open_elf

if TYPE_CHECKING:
    from collections.abc import Callable

    from peers import Compiler, Peers

pytestmark = pytest.mark.once

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
    "library": LIBRARY,
    "library, tail": (*LIBRARY, "-Wl,-T,{script}"),
}


def kernel_core(program: Path, environ: dict[str, str]) -> Path:
    """What the kernel writes."""
    pattern = Path("/proc/sys/kernel/core_pattern").read_text().strip()
    if pattern.startswith(("|", "/")):
        pytest.skip(f"the kernel here gives cores to {pattern}")

    def allow_cores() -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    done = subprocess.run([program], env=environ, cwd=program.parent, check=False, preexec_fn=allow_cores)
    assert done.returncode < 0
    [core] = program.parent.glob(pattern.partition("%")[0] + "*")
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


@pytest.mark.parametrize("write_core", [kernel_core, gdb_core])
@pytest.mark.parametrize("kind", KINDS)
def test_a_core_tells_the_build_ids(
    kind: str, write_core: Callable[[Path, dict[str, str]], Path], compile_c: Compiler, peers: Peers, tmp_path: Path
) -> None:
    (tmp_path / "script").write_text(blocking_script())
    flags = ("-O1", "-Wl,--build-id", *(flag.format(script=tmp_path / "script") for flag in KINDS[kind]))
    library = "library" in kind
    original = compile_c(CRASHING, *flags, name="libcrash.so" if library else "program")
    program = compile_c(USER, f"-L{original.parent}", "-lcrash") if library else original
    changed = {}
    for file in {program, original}:
        plan = inject(file, tmp_path / file.name)
        assert plan.layout == ("tail" if "tail" in kind and file == original else "front")
        changed[file.name] = open_elf(file).build_id()
    core = write_core(tmp_path / program.name, {"LD_LIBRARY_PATH": str(tmp_path)})
    for name in changed:
        (tmp_path / name).unlink()
    told = subprocess.run([peers.tool("eu-unstrip"), "-n", f"--core={core}"], capture_output=True, text=True, check=True).stdout
    ids = set(re.findall(r"^0x\w+\+0x\w+ ([0-9a-f]{40})@", told, re.MULTILINE))
    for name, build_id in changed.items():
        assert build_id is not None
        assert build_id.hex() in ids, (name, told)
