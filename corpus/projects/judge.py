"""A project built without and with the step: what must be true of the two, and figures."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sframegen import read

from .build import build, sha256_of
from .manifest import fetched, unpack

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from .build import Build
    from .manifest import Project


@dataclass
class Judged:
    """The results of one project. `restored`: outputs that remove made as the plain build's; `varying`: not, as builds differ."""

    project: Project
    version: str = ""
    sources: int = 0
    outputs: int = 0
    functions: int = 0
    section_bytes: int = 0
    passed: int = 0
    restored: int = 0
    varying: int = 0
    seconds: tuple[float, float] = (0.0, 0.0)  # without, with
    notes: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)

    def record(self) -> dict[str, object]:
        """CPU seconds are those of configure and the first build, without and with the step."""
        return {
            "project": self.project.name,
            "version": self.version,
            "build_system": self.project.system,
            "sources": self.sources,
            "linked_files": self.outputs,
            "functions": self.functions,
            "section_bytes": self.section_bytes,
            "tests_passed": self.passed or "all",
            "restored": self.restored,
            "not_reproducible": self.varying,
            "cpu_seconds": [round(seconds) for seconds in self.seconds],
            "notes": self.notes,
            "differences": self.differences,
        }


class Judge:
    def __init__(self, sframegen: str, readelf: str, environment: Mapping[str, str], scratch: Path) -> None:
        self.sframegen, self.readelf, self.environment, self.scratch = sframegen, readelf, environment, scratch

    def judge(self, project: Project) -> Judged:
        archive, version, notes = fetched(project)
        judged = Judged(project, version, notes=notes)
        plain = self.build(project, archive, "plain", judged)
        judged.sources = len(list((self.scratch / f"{project.name}.plain").glob(project.sources)))
        made = self.build(project, archive, "with", judged)
        judged.seconds = plain.seconds, made.seconds
        judged.outputs, judged.passed = len(made.outputs), made.passed
        if judged.differences:
            return judged
        judged.differences += compared(plain, made)
        directory = self.scratch / f"{project.name}.with"
        for name in made.outputs:
            differences, functions, size = self.section(directory, name)
            judged.differences += differences
            judged.functions += functions
            judged.section_bytes += size
        wrong = self.not_restored(directory, plain, made)
        if wrong:
            again = self.build(project, archive, "again", judged)
            varying = {name for name in wrong if again.outputs.get(name) != plain.outputs.get(name)}
            judged.varying = len(varying)
            judged.differences += [f"{name}: remove gives another file than the plain build" for name in wrong - varying]
        judged.restored = len(made.outputs) - len(wrong)
        return judged

    def build(self, project: Project, archive: Path, variant: str, judged: Judged) -> Build:
        """In a folder of the same name for each variant, because names of folders get into files; kept by another name."""
        directory = self.scratch / project.name
        unpack(archive, directory)
        made = build(project, directory, self.environment, with_step=variant == "with")
        for path in (directory, directory.with_name(directory.name + ".log")):
            path.rename(path.with_name(path.name.replace(project.name, f"{project.name}.{variant}", 1)))
        judged.differences += [f"{variant}: {problem}" for problem in made.problems]
        return made

    def section(self, directory: Path, name: str) -> tuple[list[str], int, int]:
        """What check or readelf find; the number of functions, the section's size in bytes."""
        checked = subprocess.run(
            [self.sframegen, "check", "--consumer", "all", name], cwd=directory, check=False, capture_output=True, text=True
        )
        if checked.returncode:
            return [f"{name}: {' '.join((checked.stdout + checked.stderr).split())[:300]}"], 0, 0
        shown = subprocess.run([self.readelf, "--sframe", name], cwd=directory, check=False, capture_output=True, text=True)
        said = [line for line in shown.stdout.splitlines() if "rror:" in line or "arning:" in line] + shown.stderr.splitlines()
        section = read(directory / name)
        differences = [f"{name}: readelf: {line}" for line in said] + [f"{name}: readelf: {shown.returncode}"] * bool(
            shown.returncode
        )
        return differences, len(section.table), section.data.nbytes

    def not_restored(self, directory: Path, plain: Build, made: Build) -> set[str]:
        """The outputs that are not, after remove, what the plain build made."""
        copy = directory.with_name(directory.name + ".removed")
        names = {}
        for number, name in enumerate(made.outputs):
            copy.mkdir(exist_ok=True)
            names[name] = copy / str(number)
            shutil.copy2(directory / name, names[name])
        subprocess.run([self.sframegen, "remove", *names.values()], check=True, capture_output=True)
        wrong = {name for name, file in names.items() if sha256_of(file) != plain.outputs.get(name)}
        shutil.rmtree(copy)
        return wrong


def compared(plain: Build, made: Build) -> list[str]:
    found = [f"said: {line}" for line in made.said]
    if plain.outputs.keys() != made.outputs.keys():
        found.append(f"other outputs: {', '.join(sorted(plain.outputs.keys() ^ made.outputs.keys()))}"[:300])
    if plain.passed != made.passed:
        found.append(f"{made.passed} tests passed, {plain.passed} without the step")
    if again := made.changed - plain.changed:
        found.append(f"a second build changes {', '.join(sorted(again))}"[:300])
    return found
