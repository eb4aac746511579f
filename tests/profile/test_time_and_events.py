"""`sframegen profile` of time off the CPU, of events, and of chosen tasks, as users run it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.support.kernel_events import needs_bpf

pytestmark = needs_bpf


def sframegen(*arguments: object, status: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "sframegen", "profile", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    return done


def as_json(*arguments: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(sframegen("--json", *arguments).stdout)
    return found


def microseconds(profile: dict[str, Any], function: str) -> int:
    return sum(row["total"] for row in profile["functions"] if row["function"] == function)


@pytest.mark.sampled
def test_a_command_that_sleeps() -> None:
    profile = as_json("--off-cpu", "--", "sleep", "0.5")
    assert profile["unit"] == "microseconds"
    assert microseconds(profile, "[off CPU: sleeping]") >= 480_000
    assert profile["frequency"] == 0
    kinds = {frame["kind"] for frame in profile["frames"] if frame["function"].startswith("[off CPU")}
    assert kinds == {"off the CPU"}


@pytest.mark.sampled
def test_a_process_that_sleeps_already() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            profile = as_json("--off-cpu", "--duration", "0.7", process.pid)
        finally:
            process.kill()
    assert microseconds(profile, "[off CPU: sleeping]") >= 600_000
    assert profile["complete"] >= 600_000


def test_each_page_fault_is_a_sample() -> None:
    assert as_json("-e", "page-faults", "-F", 1, "--", "true")["samples"] > 10


@pytest.mark.sampled
def test_nobody_of_that_name_is_sampled() -> None:
    profile = as_json("--duration", "0.3", "--comm", "no such name")
    assert profile["samples"] == 0


def test_what_has_no_meaning_is_refused() -> None:
    cases: list[tuple[tuple[str, ...], str]] = [
        (("--off-cpu", "--wall", "--system"), "--off-cpu"),
        (("--wall", "-e", "page-faults", "--system"), "--wall needs a clock event"),
    ]
    said = {message: sframegen(*arguments, status=2).stderr for arguments, message in cases}
    assert {message: line for message, line in said.items() if message not in line} == {}


@pytest.mark.sampled
def test_copies_cannot_do_it() -> None:
    for arguments in (["--off-cpu"], ["--comm", "x"]):
        refused = sframegen("--backend", "copies", *arguments, os.getpid(), status=1)
        assert "not possible with copies of stacks" in refused.stderr
