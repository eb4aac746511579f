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
import os, sys, threading
sys.stdin.readline()  # children that are there before the events would not be sampled
def deep(n):
    while n == 0:
        sorted(range(100), key=lambda x: -x)
    deep(n - 1)
if not os.fork():
    threading.Thread(target=deep, args=(10,)).start()
deep(10)
"""
FORKS = """
import os, sys, time
sys.stdin.readline()
for _ in range(100):
    if not os.fork():
        while time.process_time() < 0.003:
            pass
        os._exit(0)
    os.wait()
"""
SAMPLE = """
import json, os, signal, subprocess, sys
from sframegen.profile.copied_session import CopiedSession
from sframegen.profile.events.names import find_event
from sframegen.profile.packed_frames import unpack_frame
from sframegen.profile.sampling_plan import ProfilePlan
def late(*_):
    raise TimeoutError
signal.signal(signal.SIGALRM, late)
signal.alarm(120)
target = subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, start_new_session=True)
try:
    with CopiedSession(ProfilePlan(frozenset({target.pid}), find_event("cpu-clock"), 199, by="tid")) as session:
        session.begin()
        target.stdin.close()
        while target.poll() is None and (session.samples < 200 or len(session.collected.stacks.tasks) < 3):
            session.advance()
        found = session.finish()
finally:
    if target.poll() is None:
        os.killpg(target.pid, signal.SIGKILL)
stacks = [(stack.end.name, len(stack.frames), stack.samples) for stack in found.stacks]
guessed = sum(stack.samples for stack in found.stacks if any(unpack_frame(frame).guessed for frame in stack.frames))
pids = {stack.pid for stack in found.stacks}
files = [file.path for file in found.files.values()]
print(json.dumps([stacks, guessed, len(pids), dict(found.lost), files, session.samples]))
"""


def run(script: str, user: int | None, python: str) -> subprocess.CompletedProcess[str]:
    environ = os.environ | {"PYTHONPATH": str(Path(sframegen.__file__).parents[1])}
    as_user: dict[str, Any] = {"user": user, "group": user, "extra_groups": [] if user else None}
    command = [python, "-P", "-c", script]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", env=environ, timeout=200, **as_user)


def python_of(user: int) -> str:
    """A Python that this user, too, can run: ours may be in the home of root."""
    for python in (sys.executable, "/usr/bin/python3"):
        try:
            if run("import sframegen.profile.walk.steps", user, python).returncode == 0:
                return python
        except OSError:
            continue
    pytest.skip("no Python that another user can run")


def sampled(program: str, user: int | None) -> list[Any]:
    """What SAMPLE prints, of a user."""
    done = run(SAMPLE.replace("PROGRAM", repr(program)), user, python_of(user) if user else sys.executable)
    assert done.returncode == 0, done.stderr
    found: list[Any] = json.loads(done.stdout)
    return found


@pytest.mark.sampled
@needs_perf_events
@pytest.mark.parametrize("privileged", [True, False])
def test_samples_of_threads_and_children_reach_the_outermost_frame(privileged: bool) -> None:
    stacks, guessed, processes, lost, files, _ = sampled(BUSY, None if privileged or os.geteuid() else NOBODY)
    samples = sum(count for *_, count in stacks)
    outermost = sum(count for end, _, count in stacks if end == "OUTERMOST")
    assert outermost >= samples * 0.98
    assert max(frames for _, frames, _ in stacks) > 10
    assert guessed <= samples * 0.02
    assert processes == 2
    assert set(lost) <= {RING_FULL, NOT_REACHED_OR_KERNEL}
    assert any(path == os.path.realpath(sys.executable) or "python" in path for path in files)


@pytest.mark.sampled
@needs_perf_events
@pytest.mark.parametrize("privileged", [True, False])
def test_processes_shorter_than_a_period_are_sampled_or_said_to_be_missing(privileged: bool) -> None:
    """100 of 3 ms, where a sample is taken each 5 ms."""
    user = None if privileged or os.geteuid() else NOBODY
    *_, lost, _, samples = sampled(FORKS, user)
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
    assert choose_copy_size(99, 2 << 20) == LARGEST_COPY
    assert choose_copy_size(9999, 2 << 20) == SMALLEST_COPY
    assert SMALLEST_COPY < choose_copy_size(99, 512 << 10) < LARGEST_COPY
    assert choose_copy_size(99, 512 << 10) % 8 == 0
