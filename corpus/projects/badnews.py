"""What a build does when the step cannot be done: sframegen is missing, killed, or refuses the file; with --strict, too."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import sframegen
from sframegen import read
from sframegen.base.errors import FormatError

from .build import SAID, run
from .judge import Judged
from .manifest import fetched

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .judge import Judge
    from .manifest import Project

PROJECT = "xz"  # which this knows how to link again
PROGRAM, SHIM = "src/xzdec/xzdec", "shims/ld"
LINK = f"rm -f {PROGRAM} && make --silent -C src/xzdec xzdec LDFLAGS='-static'"  # libtool's, of its own libraries only
STATIC = LINK.replace("-static", "-static -static-pie -fuse-ld=mold")

# Preloaded: what a Python forks is killed, and `sframegen link` forks for nothing but the section.
KILLER = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>
pid_t fork(void)
{
    pid_t child = ((pid_t (*)(void))dlsym(RTLD_NEXT, "fork"))();
    if (!child && !strncmp(program_invocation_short_name, "python", 6))
        kill(getpid(), SIGKILL);
    return child;
}
"""


@dataclass
class News:
    what: str
    fatal: bool
    status: int
    said: str
    program: str
    differences: list[str] = field(default_factory=list)


def try_all(judge: Judge, project: Project) -> Iterator[News]:
    kept = judge.scratch / f"{project.name}.with"
    if not kept.exists():
        judge.build(project, fetched(project)[0], "with", Judged(project))
    directory = kept.rename(judge.scratch / project.name)
    killer = judge.scratch / "killer.so"
    killer.with_suffix(".c").write_text(KILLER)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", killer, killer.with_suffix(".c")], check=True)
    shim = directory / SHIM
    text = shim.read_text()
    for fatal in (False, True):
        shim.write_text(text.replace(sframegen.__file__, "/nonexistent/__init__.py"))
        yield tried(judge, directory, "missing", LINK, fatal=fatal)
        shim.write_text(text)
        yield tried(judge, directory, "killed", LINK.replace("make", f"LD_PRELOAD={killer} make"), fatal=fatal)
    for fatal in (False, True):
        yield tried(judge, directory, "refuses the file: static-pie, linked by mold", STATIC, fatal=fatal)
    directory.rename(kept)


def tried(judge: Judge, directory: Path, what: str, command: str, *, fatal: bool) -> News:
    options = "--min-kernel 5.17" + " --strict" * fatal  # later kernels would accept STATIC
    environment = {**judge.environment, "SFRAMEGEN_LINK_OPTIONS": options}
    status, text = run(command, directory, environment)
    said = SAID.findall(text)
    runs = run(f"{PROGRAM} --version", directory, judge.environment)[0] == 0
    program = "runs, without a section" if runs else "does not exist"
    news = News(what, fatal, status, " ".join(said), program)
    if len(said) != 1:
        news.differences.append(f"{what}: {len(said)} lines by sframegen: {text[-300:]}")
    if fatal and (status == 0 or (directory / PROGRAM).exists()):
        news.differences.append(f"{what}: goes on, in spite of --strict")
    if not fatal and (status or not runs or has_section(directory / PROGRAM)):
        news.differences.append(f"{what}: status {status}, the program {program}")
    return news


def has_section(file: Path) -> bool:
    try:
        read(file)
    except FormatError:
        return False
    return True
