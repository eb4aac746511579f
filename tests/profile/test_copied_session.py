"""Perf events with copies of stacks, on our own processes: as root, and as a user without privileges."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import sframegen
from sframegen.profile import copied_session
from sframegen.profile.copied_session import (
    LARGEST_COPY,
    NOT_REACHED,
    NOT_REACHED_OR_KERNEL,
    RING_FULL,
    SMALLEST_COPY,
    CopiedSession,
    choose_copy_size,
)
from sframegen.profile.events.attributes import EventAttributes, EventError, open_event
from sframegen.profile.events.names import find_event
from sframegen.profile.sampling_plan import ProfilePlan
from tests.support.kernel_events import needs_perf_events

NOBODY = 65_534
BUSY = """
import os, threading, time
def deep(n):
    if n:
        deep(n - 1)
    while time.process_time() < 1:
        sorted(range(100), key=lambda x: -x)
child = os.fork()
if not child:
    threading.Thread(target=deep, args=(10,)).start()
deep(10)
if child:
    os.waitpid(child, 0)
"""
FORKS = """
import os, time
for _ in range(100):
    if not os.fork():
        while time.process_time() < 0.003:
            pass
        os._exit(0)
    os.wait()
"""


def run(python: str, *arguments: str, user: int | None) -> subprocess.CompletedProcess[str]:
    environ = os.environ | {"PYTHONPATH": str(Path(sframegen.__file__).parents[1])}
    as_user: dict[str, Any] = {"user": user, "group": user, "extra_groups": [] if user else None}
    command = [python, "-P", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", env=environ, timeout=200, **as_user)


def python_of(user: int) -> str:
    """A Python that this user, too, can run: ours may be in the home of root."""
    for python in (sys.executable, "/usr/bin/python3"):
        try:
            if run(python, "-c", "import sframegen.profile.walk.steps", user=user).returncode == 0:
                return python
        except OSError:
            continue
    pytest.skip("no Python that another user can run")


def profiled(program: str, user: int | None) -> dict[str, Any]:
    python = python_of(user) if user else sys.executable
    options = ("--json", "--backend", "copies", "-F", "199", "--by", "tid")
    done = run(python, "-m", "sframegen", "profile", *options, "--", python, "-c", program, user=user)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.sampled
@needs_perf_events
@pytest.mark.parametrize("privileged", [True, False])
def test_samples_of_threads_and_children_reach_the_outermost_frame(privileged: bool) -> None:
    profile = profiled(BUSY, None if privileged or os.geteuid() else NOBODY)
    assert profile["samples"] > 100
    assert profile["complete"] >= profile["samples"] * 0.98
    assert max(len(stack["frames"]) for stack in profile["stacks"]) > 10
    assert profile["guessed"] <= profile["samples"] * 0.02
    assert len({stack["pid"] for stack in profile["stacks"]}) == 2
    assert len({stack["tid"] for stack in profile["stacks"]}) == 3
    assert set(profile["lost"]) <= {RING_FULL, NOT_REACHED_OR_KERNEL}
    assert any("python" in frame["object"] for frame in profile["frames"])


@pytest.mark.sampled
@needs_perf_events
@pytest.mark.parametrize("privileged", [True, False])
def test_processes_shorter_than_a_period_are_sampled_or_said_to_be_missing(privileged: bool) -> None:
    """100 of 3 ms, where a sample is taken each 5 ms."""
    user = None if privileged or os.geteuid() else NOBODY
    profile = profiled(FORKS, user)
    samples, lost = profile["samples"], profile["lost"]
    missing = lost.get(NOT_REACHED_OR_KERNEL, 0) + lost.get(NOT_REACHED, 0)
    assert samples + missing > 30
    assert missing > 30 if user else not missing


@needs_perf_events
@pytest.mark.skipif(os.geteuid() != 0, reason="events of all processes are allowed where there is a level of 0, or for root")
def test_a_process_of_another_user_is_refused_where_all_processes_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its samples could be taken there, but its mappings could not be read."""

    def open_or_refuse(attributes: EventAttributes, pid: int, cpu: int, *, name: str = "") -> int:
        if pid > 0:
            raise EventError(f"process {pid}: refused", errno.EACCES)
        return open_event(attributes, pid, cpu, name=name)

    monkeypatch.setattr(copied_session, "open_event", open_or_refuse)
    with pytest.raises(EventError, match=f"^process {os.getpid()}: refused$"):
        CopiedSession(ProfilePlan(frozenset({os.getpid()}), find_event("cpu-clock"), 99))


def test_copies_are_as_large_as_the_ring_buffer_allows() -> None:
    assert (choose_copy_size(99, 2 << 20), choose_copy_size(9999, 2 << 20)) == (LARGEST_COPY, SMALLEST_COPY)
    assert SMALLEST_COPY < choose_copy_size(99, 512 << 10) < LARGEST_COPY
    assert choose_copy_size(99, 512 << 10) % 8 == 0
