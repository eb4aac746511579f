"""Judges mutants: each takes the place of its module in a copy of an environment, and the nearest folder of tests runs there."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Literal, NamedTuple

from tests.mutations.draw import Mutant

Outcome = Literal["killed", "survived", "hung"]

MEMORY_BYTES = 4 << 30  # of address space, for each process
SPARE_SECONDS = 10  # of processor time, beside three times what the tests need without a mutant
WALL = 4  # times the processor time: the machine has other work, and what waits for ever needs no processor
PASSED, FAILED_TO_FIND_TESTS = 0, 5  # pytest's exit statuses; each of the others means that a test or an import noticed


class BaselineError(Exception):
    """The tests fail without a mutant."""


class Run(NamedTuple):
    status: int | None  # None: out of time
    cpu_seconds: float
    output: str


def tests_of(room: str) -> str:
    """The nearest folder of tests."""
    return f"tests/{room.removeprefix('sframegen/')}"


class Judge:
    """An environment's copy in `directory`. `root`: where the tests are."""

    def __init__(self, environment: Path, root: Path, directory: Path) -> None:
        self.root = root
        self.directory = directory
        self.place = directory / "environment"
        shutil.copytree(environment, self.place, symlinks=True)
        for script in (self.place / "bin").glob("sframegen*"):
            script.write_text(script.read_text().replace(str(environment), str(self.place)))
        self.python = self.place / "bin" / "python"
        self.packages = packages_of(self.place)
        self.limits: dict[str, int] = {}

    def measure(self, room: str) -> None:
        """The time that a room's tests need without a mutant. Raises BaselineError if they fail."""
        run = self._run(self._tests(room, ""), 3600)
        if run.status != PASSED:
            raise BaselineError(f"{tests_of(room)} fails without a mutant:\n{run.output}")
        self.limits[room] = round(3 * run.cpu_seconds) + SPARE_SECONDS

    def judge(self, mutant: Mutant, room: str) -> Outcome:
        path = self.packages / mutant.module
        original = path.read_bytes()
        try:
            replace(path, mutant.text.encode())
            run = self._run(self._tests(room, mutant.module), self.limits[room])
        finally:
            replace(path, original)
        if run.status == FAILED_TO_FIND_TESTS:
            raise BaselineError(f"no tests in {tests_of(room)}")
        if run.status in (None, -signal.SIGXCPU, -signal.SIGKILL):
            return "hung"
        return "survived" if run.status == PASSED else "killed"

    def _tests(self, room: str, module: str) -> list[str]:
        """The room's files of tests, those first that name the module."""
        dotted = module.removesuffix(".py").replace("/", ".")
        files = sorted((self.root / tests_of(room)).rglob("test_*.py"))
        files.sort(key=lambda file: dotted not in file.read_text(encoding="utf-8"))
        return [str(file.relative_to(self.root)) for file in files]

    def _run(self, tests: list[str], limit: int) -> Run:
        """pytest, within `limit` seconds of processor time; until the first test fails."""
        command = ["prlimit", f"--as={MEMORY_BYTES}", f"--cpu={limit}", "--core=0", "--", str(self.python), "-m", "pytest"]
        command += ["-x", "-q", "-p", "no:xdist", "-m", "not full", "--hypothesis-seed=0", "--hypothesis-profile=mutations"]
        command += [f"--basetemp={self.directory / 'tmp'}", *tests]
        own = {"PYTHONSAFEPATH": "1", "SFRAMEGEN_EXPECT_BUILD": "interpreted", "SFRAMEGEN_PURE_PYTHON": str(self.python)}
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | own
        output = self.directory / "output"
        before = os.times()
        with (
            output.open("w") as file,
            subprocess.Popen(command, cwd=self.root, env=env, stdout=file, stderr=file, start_new_session=True) as child,
        ):
            descriptor = os.pidfd_open(child.pid)
            try:
                has_ended = bool(select.select([descriptor], [], [], WALL * limit)[0])
            finally:  # ends what the tests started, too; the number is their own, as nobody has waited for them
                os.killpg(child.pid, signal.SIGKILL)
                os.close(descriptor)
            status = child.wait()
        after = os.times()
        cpu_seconds = sum(after[2:4]) - sum(before[2:4])
        return Run(status if has_ended else None, cpu_seconds, output.read_text(errors="replace"))


def packages_of(environment: Path) -> Path:
    [packages] = environment.glob("lib/python3*/site-packages")
    return packages


def replace(path: Path, content: bytes) -> None:
    """Python knows a compiled file by the size and the second of its source, which two mutants can share."""
    path.write_bytes(content)
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):
        compiled.unlink()
