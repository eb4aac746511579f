"""Processes of a Forker: forked from a small process, ended with it, and with the one that has made it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from sframegen.program import forked
from sframegen.program.forked import ForkedProcess, die_with_parent
from sframegen.program.forker import Forker
from sframegen.program.pool import Pool

pytestmark = pytest.mark.sampled

WAIT = 60_000  # milliseconds, against an endless test


def pause(_: int) -> None:
    signal.pause()


def prepare(_pipe: int) -> None:
    die_with_parent()


def test_they_keep_no_end_of_other_pipes() -> None:
    def sockets() -> set[str]:
        names = [one for one in Path("/proc/self/fd").iterdir() if os.path.lexists(one)]  # not that of the folder itself
        return {link for one in names if (link := str(one.readlink())).startswith("socket:")}

    before = sockets()
    forker = Forker(sockets, prepare)
    forker.begin()
    workers = [forker.start_process() for _ in range(3)]
    for worker in workers:
        worker.ask(())
    own = [worker.answer().value - before for worker in workers]
    assert [len(one) for one in own] == [1] * 3
    assert len(set.union(*own)) == 3
    for worker in workers:
        worker.end()
    forker.close()
    assert sockets() == before


def test_they_hold_of_what_was_open_only_what_they_need() -> None:
    """A process that waits for the end of one of our pipes need not wait for these."""
    (first, first_end), (second, second_end) = os.pipe(), os.pipe()
    forker = Forker(lambda: os.write(second_end, b"held"), prepare, (second_end,))
    forker.begin()
    worker = forker.start_process()
    os.close(first_end)
    with os.fdopen(first, "rb") as pipe:
        assert pipe.read() == b""
    worker.ask(())
    assert worker.answer().value == 4
    worker.end()
    forker.close()
    os.close(second_end)
    with os.fdopen(second, "rb") as pipe:
        assert pipe.read() == b"held"


def killed(forker: Forker) -> None:
    assert forker._process is not None
    os.kill(forker._process.pid, signal.SIGKILL)
    os.waitid(os.P_PID, forker._process.pid, os.WEXITED | os.WNOWAIT)


def test_with_the_small_process_those_that_it_has_forked_end() -> None:
    """The others are forked from this one."""
    forker = Forker(lambda number: signal.pause() if number == 1 else os.getppid(), prepare)
    forker.begin()
    with closing(Pool[int](forker.start_process, 1)) as pool:
        pool.put(1, 2)
        [(worker, _)] = pool._workers.values()
        killed(forker)
        found: dict[int, object] = {}
        while pool.pending:
            ready = pool.take_answers(WAIT / 1000)
            assert ready, "nothing came"
            found |= {item: answer.value for item, answer in ready}
        assert worker.exit_code is not None
    forker.close()
    assert isinstance(found[1], ChildProcessError)
    assert found[2] == os.getpid()


def test_without_the_forker_nothing_gets_a_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its number may be another process's then."""
    forker = Forker(pause, prepare)
    forker.begin()
    worker = forker.start_process()
    killed(forker)
    sent: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, _number: sent.append(pid))
    worker.kill(signal.SIGTERM)
    worker.end()
    forker.close()
    assert sent == []


def test_one_that_begins_after_the_death_of_the_forker_ends() -> None:
    may_go, go = os.pipe()

    def late(_pipe: int) -> None:
        os.read(may_go, 1)
        die_with_parent()

    forker = Forker(pause, late)
    forker.begin()
    worker = forker.start_process()
    worker.ask((0,))
    killed(forker)
    forker.close()
    os.write(go, b"x")
    assert worker.has_answered(WAIT / 1000), "it still runs"
    with pytest.raises(ChildProcessError):
        worker.answer()
    worker.end()
    os.close(may_go)
    os.close(go)


def test_nothing_is_left_of_a_process_that_is_killed() -> None:
    code = """
import os, signal
from sframegen.program.forked import die_with_parent
from sframegen.program.forker import Forker
def work():
    os.write(1, b"at work")
    signal.pause()
forker = Forker(work, lambda _: die_with_parent())
forker.begin()
worker = forker.start_process()
worker.ask(())
signal.pause()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout
        end = select.poll()
        end.register(process.stdout, select.POLLIN)
        assert end.poll(WAIT)
        assert os.read(process.stdout.fileno(), 100) == b"at work"
        process.kill()
        assert end.poll(WAIT), "something still has the pipe"
        assert os.read(process.stdout.fileno(), 100) == b""


def busy(_: int) -> None:
    while True:
        pass


@pytest.mark.parametrize(("work", "outcome"), [(lambda _: time.sleep(0.3), "None"), (busy, "it took longer than 0.2 seconds")])
def test_the_most_for_a_task_is_time_on_a_cpu(monkeypatch: pytest.MonkeyPatch, work: Callable[[int], None], outcome: str) -> None:
    monkeypatch.setattr(forked, "REAL_TIME_FACTOR", 1000)
    process = ForkedProcess(work, seconds=0.2)
    process.ask((1,))
    try:
        found: object = process.answer().value
    except ChildProcessError as error:
        found = error
    assert str(found) == outcome
    process.end()
