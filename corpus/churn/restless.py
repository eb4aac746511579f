"""Processes that are hard to follow, on more busy programs than the machine has processors."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from corpus.churn.profiled import Profiled, only_of, profile
from corpus.churn.truth import OURS, PLUGINS, Verdict, judge

if TYPE_CHECKING:
    from collections.abc import Iterable

SOURCES = Path(__file__).with_name("programs")
FLAGS = ("-O2", "-fno-optimize-sibling-calls", "-fno-ipa-icf", "-Wall")
KINDS = ("fork", "exec", "spawn", "plugins", "threads")
SHORT_LIVED = ("/bin/true", "a static program")
FEW = 10_000  # short-lived processes


class Row(NamedTuple):
    name: str
    run: Profiled
    verdict: Verdict


def compile_all(folder: Path) -> None:
    """Compile all programs of this study into a folder. Raises CalledProcessError."""

    def compiled(name: str, source: str, *more: str) -> None:
        subprocess.run(["gcc", *FLAGS, *more, SOURCES / source, "-o", folder / name], check=True)

    compiled("restless", "restless.c", "-pthread")
    compiled("executed", "executed.c")
    compiled("executed-static", "executed.c", "-static")
    compiled("corrupting", "corrupting.c")
    compiled("hostile", "hostile.c")
    compiled("short-static", "short.c", "-static")
    for number in PLUGINS:
        compiled(f"plugin{number}.so", "plugin.c", "-shared", "-fPIC", f"-DNUMBER={number}")


def restless(folder: Path, seconds: float, kinds: Iterable[str] = KINDS) -> list[Row]:
    """Profile each kind of restless process, then all at once."""
    kinds = list(kinds)
    processors = os.cpu_count() or 1
    runs = [(kind, [kind]) for kind in kinds] + [("all at once", kinds + ["busy"] * (2 * processors))]
    return [_row(name, profile("--", folder / "restless", seconds, folder, *which)) for name, which in runs]


def short_lived(folder: Path, number: int = FEW) -> list[Row]:
    """Profile a shell that starts many programs, one after the other, which do nothing."""
    rows = []
    for name, path in zip(SHORT_LIVED, ("/bin/true", folder / "short-static"), strict=True):
        script = f"for i in $(seq {number}); do {path}; done"
        run = profile("--", "bash", "-c", script)
        rows.append(Row(f"{number:,} times {name}", run, judge(run.profile, ours=False)))
    return rows


def _row(name: str, run: Profiled) -> Row:
    return Row(name, run, judge(only_of(run.profile, OURS)))
