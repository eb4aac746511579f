"""Samples of `sframegen stack` in the formats of profiles."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from sframegen.profile.report.formats.file_formats import FORMATS
from sframegen.profile.report.named import FrameKind, NamedFrame
from sframegen.profile.report.traced import TracedStacks
from sframegen.stack.names.frame_names import NamedPlace
from sframegen.stack.report import Sample
from sframegen.stack.walking.frames import End, Frame, Thread
from tests.support.processes.live import Program, compiled

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.peers import Compiler

SOURCE = 'KEPT void inner(void) { hold(); after++; }\nint main(void) { inner(); puts("done"); return 0; }\n'


def command(*arguments: str | Path | float) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-P", "-m", "sframegen", "stack", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.dear
def test_all_formats(compile_c: Compiler, tmp_path: Path) -> None:
    with Program(compiled(compile_c, tmp_path, SOURCE, "-static", "-O1")) as running:
        for ending in FORMATS:
            done = command("-n", 2, "--interval", 0, "-o", tmp_path / f"out{ending}", running.pid)
            assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
            assert (tmp_path / f"out{ending}").stat().st_size > 0
    assert re.fullmatch(r"program;_start;.*main;inner;hold;(.*;)?read(;__\w+)* 2\n", (tmp_path / "out.folded").read_text())
    document = json.loads((tmp_path / "out.json").read_text())
    assert (document["samples"], document["complete"], document["groups"]) == (2, 2, {"program": 2})
    assert document["stacks"][0]["pid"] == running.pid


class FromMap:
    """Names of code that a process made."""

    def place(self, frame: Frame) -> NamedPlace:
        return NamedPlace("JS:*work file:///srv/app.js:3:1" if frame.pc < 0x2000 else None, frame.pc & 0xFFF, "", None)


def test_functions_of_scripts() -> None:
    frames = [Frame(pc, None, None, None, exact=False, guessed=guessed) for pc, guessed in ((0x1008, False), (0x2008, True))]
    stacks = TracedStacks(FromMap(), 0.01)  # type: ignore[arg-type] # all that it asks for
    for _ in range(3):
        stacks.add(Sample(7, "/usr/bin/node", [Thread(7, "", frames, End.NOT_COVERED)], 1.0))
    named = stacks.named()
    (stack,) = named.stacks
    assert (stack.samples, stack.labels, named.frequency) == (3, ("7", "[callers unknown]", "[??] [guess]", "work"), 100)
    assert stack.frames[-1] == NamedFrame("work", "app.js", "/srv/app.js", 0x1007, FrameKind.RUNTIME, guessed=False)


@pytest.mark.sampled
def test_refusals(tmp_path: Path) -> None:
    done = command("-o", "out.svg", 1)
    assert (done.returncode, done.stdout) == (2, "")
    assert "out.svg: unknown output format (known: " in done.stderr
    assert command("-o", "out.html", "--json", 1).returncode == 2
    with subprocess.Popen(["sleep", "1000"]) as process:
        done = command("--convert", "-o", tmp_path / "no" / "out.html", process.pid)
        process.kill()
    assert (done.returncode, done.stderr) == (1, f"sframegen: {tmp_path}/no/out.html: No such file or directory\n")
