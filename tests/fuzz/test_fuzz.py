"""Every target of tests/fuzz/: the inputs that found something once, and some thousands of new ones, each time the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import with_checkout

FUZZ = Path(__file__).parent
# About three seconds of each, interpreted.
FEWER = {"cfi": 500, "check": 500, "command_line": 150, "synthesize": 300, "instructions": 300, "jit": 200}
INPUTS = {path.stem: 1500 for path in (FUZZ / "targets").glob("[a-z]*.py")} | FEWER


@pytest.mark.parametrize("target", INPUTS)
def test_no_input_is_a_bug(target: str) -> None:
    command = [sys.executable, "-m", "tests.fuzz", target, "--inputs", str(INPUTS[target])]
    done = subprocess.run(command, env=with_checkout(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert f"{INPUTS[target]:,}" in done.stdout
