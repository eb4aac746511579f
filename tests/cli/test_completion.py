"""Completion as docs/installing.md has it, in the shells themselves."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.packages.package_makers import needs

INSTALLING = (ROOT / "docs" / "installing.md").read_text()
PROMPT = "ready> "
TYPED = [  # up to TAB, and what stands there then
    ("sframegen add-s", "sframegen add-section"),
    ("sframegen check --cons", "sframegen check --consumer"),
    ("sframegen check --consumer ke", "sframegen check --consumer kernel"),
    ("sframegen check libr", "sframegen check library.so"),
    ("sframegen merge --map prog", "sframegen merge --map program.map"),
]
INTERACTIVE = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], ""),
    "zsh": (["zsh", "-f", "-i"], "unsetopt zle_bracketed_paste promptsp; bindkey -e; autoload -U compinit; compinit -D -u;"),
}


def documented(shell: str) -> str:
    line: str
    [line] = re.findall(rf"^\| {shell}\b.*\| `([^`]*{shell}_source[^`]*)` \|$", INSTALLING.split("## Man pages")[0], re.MULTILINE)
    return line.replace("\\|", "|")


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """For a shell in a directory with two files, that finds the sframegen under test."""
    (tmp_path / "library.so").touch()
    (tmp_path / "program.map").touch()
    monkeypatch.chdir(tmp_path)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return os.environ | {"PATH": path, "HOME": str(tmp_path), "TERM": "dumb", "PS1": PROMPT, "LC_ALL": "C.UTF-8"}


@pytest.mark.parametrize("shell", INTERACTIVE)
def test_tab(shell: str, environment: dict[str, str]) -> None:
    needs(shell)
    command, prepare = INTERACTIVE[shell]
    terminal, theirs = pty.openpty()
    with subprocess.Popen(["setsid", "--ctty", *command], stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        screen = ""

        def wait_for(text: str) -> str:
            nonlocal screen
            while text not in screen:
                screen += os.read(terminal, 4096).decode()
            before, _, screen = screen.partition(text)
            return before

        try:
            wait_for(PROMPT)
            os.write(terminal, f"{prepare} {documented(shell)}; echo pre''pared\r".encode())
            wait_for("prepared\r\n")
            for typed, completed in TYPED:
                wait_for(PROMPT)
                os.write(terminal, f"{typed}\t\x01echo '<\x05>'\r".encode())
                wait_for("\n<")
                assert wait_for(">").rstrip() == completed
        finally:
            process.kill()
            os.close(terminal)


def test_fish(environment: dict[str, str]) -> None:
    needs("fish")
    for typed, completed in TYPED:
        script = f"{documented('fish')}; complete -C '{typed}'"
        done = subprocess.run(["fish", "--no-config", "-c", script], env=environment, check=True, capture_output=True, text=True)
        words = [line.split("\t")[0] for line in done.stdout.splitlines()]
        assert completed.split()[-1] in words
