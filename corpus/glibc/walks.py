"""What is walked, and whether two walks found the same frames."""

from __future__ import annotations

import signal
import subprocess
from itertools import takewhile
from operator import eq
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

NEVERS = 16  # functions of walks.c that end with a call which never returns


class Scenario(NamedTuple):
    """`runs`: arguments of the program, a run each."""

    title: str
    runs: tuple[tuple[str, ...], ...]
    differs: bool = False  # SFrame cannot say all of it; docs/consumers.md explains


SCENARIOS = (
    Scenario("recursion, 1,000 deep", (("recursion",),)),
    Scenario("call from a library that `dlopen` loaded", (("dlopen",),)),
    Scenario("constructor of such a library, through the dynamic linker", (("constructor",),)),
    Scenario("comparison called by `qsort`", (("qsort",),)),
    Scenario("`alloca`, and a frame pointer", (("alloca",),)),
    Scenario("signal handler, by `raise`", (("signal",),)),
    Scenario("signal handler, by a fault at a function's first instruction", (("fault",),)),
    Scenario("second thread", (("thread",),)),
    Scenario("last call that never returns, 16 functions", tuple(("never", str(n)) for n in range(NEVERS)), differs=True),
    Scenario("stack realigned, CFA in a slot (DRAP)", (("realigned",),), differs=True),
)


class Compared(NamedTuple):
    """Runs of one scenario whose frames are the same, and of the first other: frames before it differs, and frames in all."""

    runs: int
    equal: int
    common: int = 0
    found: int = 0
    expected: int = 0

    @property
    def text(self) -> str:
        if self.equal == self.runs:
            return "equal"
        if self.runs > 1:
            return f"{self.equal} of {self.runs} equal"
        return f"{self.found:,} of {self.expected:,}" + (f", {self.common:,} the same" if self.common < self.found else "")


def frames(folder: Path, loader: str, run: tuple[str, ...]) -> list[str]:
    """OBJECT+OFFSET of each, by the glibc and with the libraries of the folder. Raises CalledProcessError.

    None where backtrace() gives up: it turns to libgcc, which aborts as it finds no CFI, not even its own.
    """
    command: list[str | Path] = [folder / loader, "--library-path", folder, folder / "walks", *run]
    done: subprocess.CompletedProcess[str] = subprocess.run(command, check=False, capture_output=True, text=True, env={})
    if done.returncode != -signal.SIGABRT:
        done.check_returncode()
    return done.stdout.splitlines()


def compared(found: list[list[str]], expected: list[list[str]]) -> Compared:
    """For each run of a scenario: what was found, and what DWARF gives."""
    pairs = list(zip(found, expected, strict=True))
    different = [pair for pair in pairs if pair[0] != pair[1]]
    if not different:
        return Compared(len(pairs), len(pairs))
    ours, theirs = different[0]
    common = len(list(takewhile(bool, map(eq, ours, theirs))))
    return Compared(len(pairs), len(pairs) - len(different), common, len(ours), len(theirs))


def unexplained(found: Mapping[str, Sequence[Compared]]) -> list[str]:
    """By way, each scenario: where frames differ though SFrame can say all of them."""
    return [
        f"{way}: {scenario.title}: {one.text}"
        for way, every in found.items()
        for scenario, one in zip(SCENARIOS, every, strict=True)
        if one.equal != one.runs and not scenario.differs
    ]
