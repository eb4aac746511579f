"""One build of a project: how long it takes, what its tests say, what a second build does, which files it links."""

from __future__ import annotations

import hashlib
import os
import re
import resource
import subprocess
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from sframegen.elf.records import EHDR_SIZE
from sframegen.format.abi import is_linked

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from .manifest import Project

STEPS = ("configure", "build", "build", "test")
SAID = re.compile(r"^.*sframegen: .*$", re.MULTILINE)


@dataclass
class Build:
    seconds: float = 0.0  # of processors, for configure and the first build: other work on the machine counts little in them
    changed: set[str] = field(default_factory=set)  # files that the second build changed
    passed: int = 0  # tests
    outputs: dict[str, str] = field(default_factory=dict)  # linked files with their sha256
    said: list[str] = field(default_factory=list)  # lines by sframegen
    problems: list[str] = field(default_factory=list)


def run(command: str, directory: Path, environment: Mapping[str, str]) -> tuple[int, str]:
    """The exit status, and what it wrote on standard output and error."""
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=directory, env=dict(environment), check=False, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, errors="replace",
    )  # fmt: skip
    return done.returncode, done.stdout


def build(project: Project, directory: Path, environment: Mapping[str, str], *, with_step: bool) -> Build:
    """Builds what was unpacked into `directory`; a log of each command is left beside it."""
    made = Build()
    if with_step:
        step(project, "before", directory, environment, made, with_step=True)
    started = processor_seconds()
    for number, which in enumerate(STEPS):
        before = states(directory) if number == STEPS.index("build") + 1 else {}
        text = step(project, which, directory, environment, made, with_step=with_step)
        if which == "build" and not before:
            made.seconds = processor_seconds() - started
        elif which == "build":
            now = states(directory)
            changed = {name for name in before.keys() | now.keys() if before.get(name) != now.get(name)}
            made.changed = {name for name in changed if not fnmatchcase(name, project.restless)}
        elif which == "test" and project.passed:
            made.passed = sum(int(next(filter(None, found.groups()))) for found in re.finditer(project.passed, text))
        if made.problems:
            return made
    for file in regular_files(directory):
        name = str(file.relative_to(directory))
        if is_linked(file.read_bytes()[:EHDR_SIZE]) and not (project.tried and name.startswith(project.tried)):
            made.outputs[name] = sha256_of(file)
    if len(made.outputs) < project.outputs:
        made.problems.append(f"{len(made.outputs)} linked files, {project.outputs} were to be")
    return made


def processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def step(project: Project, which: str, directory: Path, environment: Mapping[str, str], made: Build, *, with_step: bool) -> str:
    command = project.command(which, with_step=with_step)
    status, text = run(command, directory, environment)
    with directory.with_name(directory.name + ".log").open("a") as log:
        log.write(f"$ {command}\n{text}\n")
    made.said += SAID.findall(text)
    if status:
        made.problems.append(f"{which}: exit status {status}: {' '.join(text.split())[-300:]}")
    return text


def regular_files(directory: Path) -> Iterator[Path]:
    for parent, directories, names in os.walk(directory):
        directories.sort()
        yield from (file for name in sorted(names) if (file := Path(parent, name)).is_file() and not file.is_symlink())


def states(directory: Path) -> dict[str, tuple[int, int, int]]:
    """For each file, what a build that writes it changes."""
    return {
        str(file.relative_to(directory)): (status.st_ino, status.st_size, status.st_mtime_ns)
        for file in regular_files(directory)
        for status in [file.stat()]
    }


def sha256_of(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
