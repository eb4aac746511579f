"""The three walkers: each runs ./program of a folder, and gives its stacks as lines of names, as .folded files have them."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from corpus.ground_truth.judge import GUESS, UNKNOWN_CALLERS
from corpus.ground_truth.subjects import OUTPUT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

FREQUENCY = 1999
STOPS = 8
_SFRAMEGEN = (sys.executable, "-P", "-m", "sframegen")


def _sampled(backend: str, folder: Path, seconds: float) -> list[str]:
    profile = (*_SFRAMEGEN, "profile", "--backend", backend, "-F", str(FREQUENCY), "-o", "out.folded", "--")
    command = (*profile, f"./{OUTPUT}", str(seconds))
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=60 + 10 * seconds)
    return (folder / "out.folded").read_text().splitlines()


def _stopped(folder: Path, _seconds: float) -> list[str]:
    """Stop the program STOPS times, each a random moment after the last."""
    moments, lines = random.Random(1), list[str]()  # noqa: S311 - repeatable
    with subprocess.Popen((f"./{OUTPUT}", "600"), cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        command = (*_SFRAMEGEN, "stack", "--convert", "--json", "--max-frames", "300000", str(process.pid))
        try:
            for _ in range(STOPS):
                time.sleep(moments.uniform(0, 0.2))
                stop = subprocess.run(command, check=True, capture_output=True, timeout=60)
                lines += map(_line, json.loads(stop.stdout)["threads"])
        finally:
            process.kill()
    return lines


def _line(thread: dict[str, Any]) -> str:
    return ";".join((OUTPUT, *_names(thread))) + " 1"


def _names(thread: dict[str, Any]) -> Iterator[str]:
    if not thread["complete"]:
        yield UNKNOWN_CALLERS
    for frame in reversed(thread["frames"]):
        yield (frame["function"] or "??") + GUESS * frame["guessed"]


WALKERS: dict[str, Callable[[Path, float], list[str]]] = {
    "kernel program": partial(_sampled, "kernel"),
    "copies": partial(_sampled, "copies"),
    "stack": _stopped,
}
