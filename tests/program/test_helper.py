"""Functions that are called in another process: what they return, and what becomes of those that never do."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sframegen.base.errors import FormatError
from sframegen.program import forker, helper, time_limits
from sframegen.program.forked import MAX_MESSAGE, Answer, ForkedProcess
from sframegen.program.helper import Helpers, NoAnswerError
from sframegen.program.time_limits import TimeLimits

if TYPE_CHECKING:
    from collections.abc import Iterator

    Pipe = tuple[int, int]

pytestmark = pytest.mark.sampled


@pytest.fixture
def called() -> Iterator[Helpers]:
    helpers = Helpers()
    yield helpers
    helpers.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[Helpers]:
    """Waits as shortly as may be: what does not answer, does not however long one waits."""
    monkeypatch.setattr(time_limits, "current", TimeLimits(sleeping_helper=0, all_helpers=0))
    helpers = Helpers()
    yield helpers
    helpers.close()


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    read, write = os.pipe()
    yield read, write
    os.close(read)
    os.close(write)


KNOWN = {"when": "at first"}


def known() -> Answer:
    return Answer((KNOWN["when"], os.getpid()))


def twice(text: str) -> Answer:
    return Answer(2 * text)


def long() -> Answer:
    return Answer(2 * MAX_MESSAGE * "a")


def process(*_: object) -> Answer:
    return Answer(os.getpid())


def of_file(text: str, given: int) -> Answer:
    file = os.memfd_create("test")
    os.write(file, os.read(given, 100) + text.encode())
    os.lseek(file, 0, os.SEEK_SET)
    return Answer(None, [file])


def refusal() -> Answer:
    raise FormatError("not this", ".text", 8, "a file")


def death() -> Answer:
    os.kill(os.getpid(), signal.SIGBUS)
    return Answer(None)


def until_told(pipe: int) -> Answer:
    """As a file whose server does not answer: no signal ends it but SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.read(pipe, 1)
    return Answer("at last")


def held() -> Answer:
    """What it has open, and can write to."""
    found = [os.readlink(path) for path in map(str, Path("/proc/self/fd").iterdir()) if os.path.lexists(path)]  # noqa: PTH115
    return Answer([path for path in found if path != os.devnull and not path.startswith(("socket:", "/proc"))])


def test_the_first_call_is_for_the_process_that_was_begun(called: Helpers) -> None:
    begun = called.begin()
    assert called.begin() is begun
    os.kill(begun.pid, signal.SIGTERM)  # as `timeout` and systemd send it to all processes of a group
    os.kill(begun.pid, signal.SIGHUP)
    assert called.call("a risk", process).value == begun.pid != os.getpid()


def test_one_that_died_before_it_was_called_costs_no_answer(called: Helpers) -> None:
    begun = called.begin()
    os.kill(begun.pid, signal.SIGKILL)
    assert begun.has_answered(60)  # the end of its pipe
    assert called.call("a risk", twice, "a").value == "aa"


def test_those_that_begin_later_have_what_the_first_one_has(called: Helpers, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of a profiler of 200 MB kept 50 MB that the profiler changed after it."""
    pids = {called.begin().pid}
    monkeypatch.setitem(KNOWN, "when", "later")
    for number in range(1, 3):
        with pytest.raises(OSError, match="could not be read"):
            called.call("a risk", death)
        when, pid = called.call("a risk", known).value
        pids.add(pid)
        assert (when, len(pids)) == ("at first", number + 1)


def test_without_the_small_process_they_are_copies_of_this_one(called: Helpers, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = called.begin()
    monkeypatch.setitem(KNOWN, "when", "later")
    small = called._forker._process
    assert small is not None
    os.kill(small.pid, signal.SIGTERM)  # as of a group
    assert called.call("a risk", known).value == ("at first", begun.pid)
    os.kill(small.pid, signal.SIGKILL)
    assert begun.has_answered(60)  # the end of its pipe
    assert called.call("a risk", known).value[0] == "later"


def test_what_is_returned_comes_back(called: Helpers) -> None:
    assert called.call("risk", twice, "ab").value == "abab"
    assert len(called.call("risk", long).value) == 2 * MAX_MESSAGE
    first = called.call("risk", process).value
    assert os.getpid() != first == called.call("another", process).value


def test_descriptors_go_and_come(called: Helpers, pipe: Pipe) -> None:
    read, write = pipe
    os.write(write, b"given, ")
    answer = called.call("risk", of_file, "returned", descriptors=[read])
    [file] = answer.descriptors
    assert os.read(file, 100) == b"given, returned"
    os.close(file)


def test_a_descriptor_that_cannot_be_taken_is_an_error(called: Helpers, pipe: Pipe) -> None:
    """At the limit of open files, the kernel drops it without a word."""
    read, write = pipe
    os.write(write, b"given, ")
    called.begin()
    usual = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(read)
    os.close(free)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, usual[1]))  # as many as are open
        with pytest.raises(OSError, match="Too many open files"):
            called.call("risk", of_file, "returned", descriptors=[read])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, usual)
    assert called.call("risk", twice, "a").value == "aa"


def test_what_is_raised_comes_back(called: Helpers) -> None:
    with pytest.raises(FormatError, match="not this") as caught:
        called.call("risk", refusal)
    assert (caught.value.file, caught.value.offset) == ("a file", 8)


@pytest.mark.usefixtures("pipe")
def test_it_holds_nothing_of_ours(called: Helpers) -> None:
    """Else whoever reads our output waits for the end of a process that cannot end."""
    assert called.call("risk", held).value == []


def test_what_does_not_answer_is_left_alone(impatient: Helpers, monkeypatch: pytest.MonkeyPatch, pipe: Pipe) -> None:
    read, write = pipe
    with pytest.raises(NoAnswerError, match="does not answer"):
        impatient.call("dead", until_told, descriptors=[read])
    monkeypatch.setattr(helper, "MIN_WAIT", 60)
    with pytest.raises(NoAnswerError):
        impatient.call("dead", twice, "is not asked")
    assert not impatient.is_free("dead")
    assert impatient._wasted_seconds > 0
    assert impatient.call("alive", twice, "a").value == "aa"
    os.write(write, b".")
    while not impatient.is_free("dead"):
        pass
    assert impatient._wasted_seconds == pytest.approx(0)
    assert impatient.call("dead", twice, "b").value == "bb"


def test_one_that_answered_late_is_the_next_to_be_asked(impatient: Helpers, monkeypatch: pytest.MonkeyPatch, pipe: Pipe) -> None:
    """Also by a call of another risk: else it waits as long as the profiler runs, and another process begins."""
    read, write = pipe
    with pytest.raises(NoAnswerError):
        impatient.call("late", until_told, descriptors=[read])
    [(late, _)] = impatient._stuck.values()
    os.write(write, b".")
    assert late.has_answered(60)
    monkeypatch.setattr(helper, "MIN_WAIT", 60)
    assert impatient.call("another", process).value == late.pid


def test_there_are_not_too_many(impatient: Helpers, monkeypatch: pytest.MonkeyPatch, pipe: Pipe) -> None:
    monkeypatch.setattr(helper, "MAX_STUCK", 2)
    for number in range(2):
        with pytest.raises(NoAnswerError):
            impatient.call(number, until_told, descriptors=pipe[:1])
    monkeypatch.setattr(helper, "MIN_WAIT", 60)
    with pytest.raises(NoAnswerError):
        impatient.call("alive", twice, "is not asked")


def test_vain_waits_use_up_the_time_of_all_helpers(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    clock = iter(range(0, 1000, 3))
    monkeypatch.setattr("time.monotonic", lambda: float(next(clock)))  # each wait in vain takes three seconds

    def has_answered(_: object, seconds: float) -> bool:
        if seconds:  # else nobody waits: the question is only whether it has answered by now
            waits.append(seconds)
        return False

    monkeypatch.setattr(ForkedProcess, "has_answered", has_answered)
    monkeypatch.setattr(helper, "_read_state", lambda _: b"S")
    monkeypatch.setattr(time_limits, "current", TimeLimits(sleeping_helper=2, all_helpers=4, busy_helper=3))
    helpers = Helpers()
    for risk in range(3):
        with pytest.raises(NoAnswerError):
            helpers.call(risk, twice, "a")
    helpers.close()
    assert waits == [2, 1, helper.MIN_WAIT]


def busy_until_told(pipe: int) -> Answer:
    """It is always ready to run, as on a machine whose CPUs all have other work."""
    os.set_blocking(pipe, False)
    while True:
        try:
            return Answer(os.read(pipe, 1))
        except BlockingIOError:
            pass


@pytest.mark.parametrize(("state", "in_all"), [(b"R", 0), (b"R", 1), (b"D", 1)])
def test_one_that_only_lacks_a_cpu_or_a_disk_is_waited_for(
    state: bytes, in_all: float, monkeypatch: pytest.MonkeyPatch, pipe: Pipe
) -> None:
    monkeypatch.setattr(time_limits, "current", TimeLimits(sleeping_helper=0, all_helpers=in_all, busy_helper=60))
    helpers = Helpers()
    monkeypatch.setattr(helper, "_read_state", lambda _: state)
    read, write = pipe
    answers = iter([False, False, False])

    class Slow(ForkedProcess):
        def has_answered(self, *_: float) -> bool:
            if not next(answers, True):
                return False
            os.write(write, b".")
            return super().has_answered(60)

    monkeypatch.setattr(forker, "ForkedProcess", Slow)
    assert helpers.call("busy", busy_until_told, descriptors=[read]).value == b"."
    helpers.close()


@pytest.mark.parametrize(("state", "in_all"), [(b"S", 1), (b"D", 0), (b"R", 0)])
def test_what_sleeps_or_takes_too_long_is_not_waited_for(
    state: bytes, in_all: float, monkeypatch: pytest.MonkeyPatch, pipe: Pipe
) -> None:
    """Of a disk, after others have not answered: it may be a server that never does."""
    busy_helper = 0 if state == b"R" else 60
    monkeypatch.setattr(time_limits, "current", TimeLimits(sleeping_helper=0, all_helpers=in_all, busy_helper=busy_helper))
    helpers = Helpers()
    monkeypatch.setattr(helper, "_read_state", lambda _: state)
    with pytest.raises(NoAnswerError):
        helpers.call("slow", until_told, descriptors=pipe[:1])
    helpers.close()
