"""Samples of `sframegen stack` in the formats of profiles."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sframegen.profile.report.formats.file_formats import FORMATS
from tests.support.processes.live import Program, compiled

if TYPE_CHECKING:
    from tests.support.peers import Compiler

SOURCE = 'KEPT void inner(void) { hold(); after++; }\nint main(void) { inner(); puts("done"); return 0; }\n'


def command(*arguments: str | Path | float) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-P", "-m", "sframegen", "stack", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, check=False, timeout=60)


def test_all_formats(compile_c: Compiler, tmp_path: Path) -> None:
    with Program(compiled(compile_c, tmp_path, SOURCE, "-static", "-O1")) as running:
        for ending in FORMATS:
            done = command("-n", 2, "--interval", 0, "-o", tmp_path / f"out{ending}", running.pid)
            assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
            assert (tmp_path / f"out{ending}").stat().st_size > 0
    assert re.fullmatch(r"program;_start;.*main;inner;hold;.*read 2\n", (tmp_path / "out.folded").read_text())
    document = json.loads((tmp_path / "out.json").read_text())
    assert (document["samples"], document["complete"], document["groups"]) == (2, 2, {"program": 2})
    assert document["stacks"][0]["pid"] == running.pid
    thread = json.loads((tmp_path / "out.firefox.json").read_text())["threads"][0]
    assert thread["samples"]["weight"] == [1, 1]
    assert thread["samples"]["time"][0] == 0 < thread["samples"]["time"][1]


def test_functions_of_scripts(tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node on this machine")
    script = tmp_path / "work.js"
    script.write_text(
        "function work() { let sum = 0; for (let i = 0; i < 1e5; i++) sum += Math.sqrt(i); return sum }\n"
        "console.log('here'); for (;;) work()\n"
    )
    line: list[str | Path] = [node, "--perf-basic-prof", "--interpreted-frames-native-stack", script]
    with subprocess.Popen(line, stdout=subprocess.PIPE, cwd=tmp_path) as process:
        assert process.stdout
        process.stdout.readline()
        done = command("--convert", "-n", 5, "--interval", 0.05, "-o", tmp_path / "out.json", process.pid)
        process.kill()
    Path(f"/tmp/perf-{process.pid}.map").unlink()
    assert done.returncode == 0
    frames = json.loads((tmp_path / "out.json").read_text())["frames"]
    kinds = {(frame["function"], frame["object"], frame["path"]) for frame in frames if frame["kind"] == "made at run time"}
    assert ("work", "work.js", str(script)) in kinds


def test_refusals(tmp_path: Path) -> None:
    done = command("-o", "out.svg", 1)
    assert (done.returncode, done.stdout) == (2, "")
    assert "the ending of out.svg is not that of a format" in done.stderr
    assert command("-o", "out.html", "--json", 1).returncode == 2
    with subprocess.Popen(["sleep", "1000"]) as process:
        done = command("--convert", "-o", tmp_path / "no" / "out.html", process.pid)
        process.kill()
    assert (done.returncode, done.stderr) == (1, f"sframegen: {tmp_path}/no/out.html: No such file or directory\n")
