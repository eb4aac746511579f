"""Signals at random moments: a killed profiler leaves nothing, an interrupted one prints its profile."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from corpus.churn.profiled import PROFILE
from corpus.churn.remains import POLL, has_events, held_by, remaining, temporary_files

MOST = 2.5  # seconds until the signal
AT_MOST = 60.0  # seconds that an end may take
INTERRUPTED = (128 + signal.SIGINT, -signal.SIGINT)


class Killed(NamedTuple):
    """`faults`: what is not as it should be. `seen`: how many were killed or interrupted while they had a program in the kernel."""

    times: int
    seen: int
    faults: list[str]
    slowest: float = 0.0  # seconds from the signal to the end


def _wait(process: subprocess.Popen[Any], moment: float, *, sampling: bool) -> None:
    """Wait until a moment after the start, or after sampling began, which on a busy machine is later than any of the moments."""
    deadline = time.monotonic() + AT_MOST
    while sampling and process.poll() is None and not has_events(process.pid) and time.monotonic() < deadline:
        time.sleep(POLL)
    time.sleep(moment)


def _is_later(turn: int) -> bool:
    """Return whether the moment of this turn is counted from when it samples: for half of them."""
    return turn % 4 < 2


def kill(times: int, seed: int = 1) -> Killed:
    """SIGKILL, at random moments of profiles of the whole machine."""
    moments = random.Random(seed)  # noqa: S311 - the same ones each time
    seen, faults, slowest = 0, [], 0.0
    with tempfile.TemporaryDirectory() as own:  # others that run meanwhile have files in the one of all
        files = temporary_files(Path(own))
        command, environment = [*PROFILE, "--system"], os.environ | {"TMPDIR": own}
        for turn in range(times):
            moment = moments.uniform(0.1, MOST)
            with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment) as process:
                _wait(process, moment, sampling=_is_later(turn))
                process.send_signal(signal.SIGSTOP)  # so that what it holds is known at the moment of its end
                held = held_by(process.pid)
                process.kill()
                began = time.monotonic()
            seen += bool(held.objects)
            faults += [f"after {moment:.2f} s: {left}" for left in remaining(held)]
            slowest = max(slowest, time.monotonic() - began)
        faults += [f"file {name}" for name in sorted(temporary_files(Path(own)) - files)]
    return Killed(times, seen, faults, slowest)


def _ended(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Return what it printed; kill it if it does not end."""
    try:
        return process.communicate(timeout=AT_MOST)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate()


def interrupt(times: int, seed: int = 1) -> Killed:
    """SIGINT and SIGTERM, at random moments: the profile is printed, and the status is 128 + the signal's number."""
    moments = random.Random(seed)  # noqa: S311 - the same ones each time
    signal.signal(signal.SIGINT, signal.default_int_handler)  # not ignored, as in the background of a shell: children inherit that
    seen, faults, slowest = 0, [], 0.0
    for turn in range(times):
        moment, number = moments.uniform(0.1, MOST), (signal.SIGINT, signal.SIGTERM)[turn % 2]
        with subprocess.Popen([*PROFILE, "--system"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            _wait(process, moment, sampling=_is_later(turn))
            held = held_by(process.pid)
            process.send_signal(number)
            began = time.monotonic()
            out, error = _ended(process)
        slowest = max(slowest, time.monotonic() - began)
        sampled = held.events > 0
        seen += sampled
        where = f"{number.name} after {moment:.2f} s"
        if process.returncode != 128 + number and (sampled or process.returncode != -number):
            faults.append(f"{where}: status {process.returncode}: {error[-300:]}")
        elif sampled and "cpu-clock" not in out:
            faults.append(f"{where}: nothing printed")
        if "Traceback" in error and sampled:
            faults.append(f"{where}: {error[-600:]}")
        faults += [f"{where}: {left}" for left in remaining(held)]
    return Killed(times, seen, faults, slowest)


def interrupt_twice(times: int, seed: int = 1) -> Killed:
    """A second Ctrl-C during the report ends the program at once."""
    moments = random.Random(seed)  # noqa: S311 - the same ones each time
    signal.signal(signal.SIGINT, signal.default_int_handler)
    seen, faults, slowest = 0, [], 0.0
    for _ in range(times):
        moment = moments.uniform(0.0, 1.0)
        with subprocess.Popen([*PROFILE, "--system"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            _wait(process, MOST, sampling=True)
            held = held_by(process.pid)
            process.send_signal(signal.SIGINT)
            time.sleep(moment)
            runs = process.poll() is None
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGINT)
            began = time.monotonic()
            _, error = _ended(process)
        slowest = max(slowest, time.monotonic() - began)
        seen += runs
        if "Traceback" in error or process.returncode not in INTERRUPTED:
            faults.append(f"second SIGINT {moment:.2f} s later: status {process.returncode}: {error[-900:]}")
        faults += [f"second SIGINT {moment:.2f} s later: {left}" for left in remaining(held)]
    return Killed(times, seen, faults, slowest)
