"""tools/install-packages with an apt-get that only prints: nothing is removed for what is installed, and conflicts are named."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Install = Callable[..., subprocess.CompletedProcess[str]]

# As apt-get: a package whose name begins with `cross` conflicts with gcc-multilib.
APT_GET = """\
#!/bin/bash
echo "$*" >>"$(dirname "$0")/calls"
[[ " $* " == *" cross"* ]] || exit 0
case "$*" in
*--simulate*) printf '%s\\n' 'Remv gcc-multilib [12]' 'Remv lib32gcc [12] []' 'Inst cross-g++ (12 Debian)' ;;
*--no-remove*) echo 'E: Packages need to be removed but remove is disabled.' >&2; exit 100 ;;
esac
"""


@pytest.fixture
def install(tmp_path: Path) -> Install:
    (tmp_path / "apt-get").write_text(APT_GET)
    (tmp_path / "id").write_text('#!/bin/sh\necho "${TEST_UID:-0}"\n')
    for program in ("apt-get", "id"):
        (tmp_path / program).chmod(0o755)
    environment = dict(os.environ, PATH=f"{tmp_path}:{os.environ['PATH']}")

    def run(*packages: str, user: int = 0) -> subprocess.CompletedProcess[str]:
        command = [str(ROOT / "tools/install-packages"), *packages]
        return subprocess.run(command, check=False, capture_output=True, text=True, env=environment | {"TEST_UID": str(user)})

    return run


def installed(directory: Path) -> list[list[str]]:
    """The packages of each call that installs."""
    calls = (directory / "calls").read_text().splitlines()
    assert all("--no-remove" in call for call in calls if " install " in call and "--simulate" not in call)
    return [call.split("--no-install-recommends ")[1].split() for call in calls if "--no-remove" in call]


def test_packages_are_installed_together(install: Install, tmp_path: Path) -> None:
    done = install("gdb", "fish")
    assert (done.returncode, done.stderr) == (0, "")
    assert installed(tmp_path) == [["gdb", "fish"]]


def test_what_conflicts_is_named_and_left_out(install: Install, tmp_path: Path) -> None:
    done = install("gdb", "cross-g++", "fish")
    assert done.returncode == 1
    said = "Not installed: cross-g++ conflicts with gcc-multilib lib32gcc. To replace: sudo apt-get install cross-g++\n"
    assert done.stderr == said
    assert installed(tmp_path) == [["gdb", "fish"]]


def test_others_than_root_see_the_command(install: Install, tmp_path: Path) -> None:
    done = install("gdb", "fish", user=1000)
    assert done.returncode == 1
    assert "sudo apt-get install --no-remove gdb fish" in done.stderr
    assert not (tmp_path / "calls").exists()
