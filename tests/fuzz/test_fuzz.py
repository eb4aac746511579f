"""Every target of tests/fuzz/: the inputs that found something once, and some thousands of new ones, each time the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT

FUZZ = Path(__file__).parent
# About three seconds of each, interpreted.
FEWER = {"cfi": 500, "check": 500, "command_line": 150, "synthesize": 300, "instructions": 300, "jit": 200}
INPUTS = {path.stem: 1500 for path in (FUZZ / "targets").glob("[a-z]*.py")} | FEWER
A_BUG = """
SEEDS = ("program",)
def run(data: bytes) -> None:
    if data[:1] != b"\\x7f": %s
"""


def fuzz(*arguments: str, checkout: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.fuzz", *arguments]
    environment = os.environ | {"PYTHONPATH": str(checkout)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("target", INPUTS)
def test_no_input_is_a_bug(target: str) -> None:
    done = fuzz(target, "--inputs", str(INPUTS[target]))
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert f"{INPUTS[target]:,}" in done.stdout


@pytest.mark.once
@pytest.mark.parametrize(
    ("what", "found"),
    [
        ("raise KeyError", "KeyError in a_bug.py, run"),
        ("\n        while True: pass", "hang"),
        ("bytes(100 << 20)", "MemoryError in a_bug.py, run"),
        ("__import__('os').abort()", "killed by SIGABRT"),
    ],
)
def test_a_bug_is_found_and_can_be_repeated(what: str, found: str, tmp_path: Path) -> None:
    copy = tmp_path / "tests" / "fuzz"
    (copy / "targets").mkdir(parents=True)
    (copy.parent / "support").symlink_to(FUZZ.parent / "support")
    for file in [*FUZZ.glob("*.py"), FUZZ / "targets" / "__init__.py", FUZZ.parent / "__init__.py"]:
        (tmp_path / file.relative_to(ROOT)).write_text(file.read_text())
    (copy / "targets" / "a_bug.py").write_text(A_BUG % what)
    done = fuzz("a_bug", "--inputs", "60", "--cpu-seconds", "0.2", checkout=tmp_path)
    assert done.returncode == 1
    assert f"a_bug: {found}" in done.stdout
    recipe = tmp_path / "recipe"
    recipe.write_text(done.stdout[done.stdout.index("seed program") :].partition("\n\n")[0])
    assert len(recipe.read_text().splitlines()) == 2
    assert fuzz("a_bug", "--repeat", str(recipe), "--cpu-seconds", "0.2", checkout=tmp_path).returncode == 1
