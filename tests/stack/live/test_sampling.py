"""Samples of `sframegen stack`: how many there are, what ends them, what is printed then, and the exit status."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.processes.live import Program, command, compiled, stack_line, state_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.peers import Compiler

pytestmark = [pytest.mark.sampled, pytest.mark.skipif(platform.machine() != "x86_64", reason="programs for x86-64")]

FOR_EVER = "1000000"
WAITS = "import sys; sys.stdin.buffer.read(1); sys.exit(7)"


@pytest.fixture
def cat() -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits until it is told to end."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        yield process
        process.kill()


def started(*arguments: object) -> subprocess.Popen[str]:
    line = stack_line("--convert", "-v", *arguments)
    return subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_samples(tool: subprocess.Popen[str], count: int) -> None:
    """By what -v says of each."""
    assert tool.stderr
    for _ in range(count):
        assert "stopped for" in tool.stderr.readline()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("plan", [("--until-exit",), ("--duration", FOR_EVER), ("-n", FOR_EVER)])
def test_an_interrupt_prints_what_was_sampled(plan: tuple[str, ...], number: signal.Signals, cat: subprocess.Popen[bytes]) -> None:
    with started("--folded", *plan, "--interval", 0, cat.pid) as tool:
        wait_for_samples(tool, 3)
        tool.send_signal(number)
        output, errors = tool.communicate(timeout=60)
    assert tool.returncode == 128 + number
    assert output.startswith("cat;")
    taken = sum(int(line.rpartition(" ")[2]) for line in output.splitlines())
    assert taken >= 3
    assert errors.splitlines()[-1] == f"sframegen: interrupted after {taken} samples"
    assert cat.poll() is None


def test_an_interrupt_ends_a_long_interval(cat: subprocess.Popen[bytes]) -> None:
    with started("--json", "--until-exit", "--interval", FOR_EVER, cat.pid) as tool:
        assert tool.stdout
        first = tool.stdout.readline()
        wait_for_samples(tool, 1)
        tool.send_signal(signal.SIGINT)
        output, errors = tool.communicate(timeout=60)
    assert (tool.returncode, output, errors) == (130, "", "sframegen: interrupted after 1 sample\n")
    assert json.loads(first)["pid"] == cat.pid


def test_json_ends_with_a_whole_line(cat: subprocess.Popen[bytes]) -> None:
    with started("--json", "--until-exit", "--interval", 0, cat.pid) as tool:
        wait_for_samples(tool, 2)
        tool.send_signal(signal.SIGINT)
        output, errors = tool.communicate(timeout=60)
    documents = [json.loads(line) for line in output.splitlines()]
    assert errors.splitlines()[-1] == f"sframegen: interrupted after {len(documents)} samples"
    assert output.endswith("}\n")


def test_until_the_process_ends(cat: subprocess.Popen[bytes]) -> None:
    with started("--folded", "--until-exit", "--interval", 0, cat.pid) as tool:
        wait_for_samples(tool, 2)
        cat.communicate()
        output, errors = tool.communicate(timeout=60)
    assert (tool.returncode, output[:4]) == (0, "cat;")
    assert all("stopped for" in line for line in errors.splitlines())


def test_a_process_that_ends_before_there_are_enough_samples(cat: subprocess.Popen[bytes]) -> None:
    with started("--folded", "-n", FOR_EVER, "--interval", 0, cat.pid) as tool:
        wait_for_samples(tool, 2)
        cat.communicate()
        output, errors = tool.communicate(timeout=60)
    assert (tool.returncode, output[:4]) == (1, "cat;")
    assert errors.splitlines()[-1].startswith(f"sframegen: process {cat.pid}: ")


@pytest.mark.parametrize("interval", ["0", "0.001", "1000"])
def test_for_some_time(interval: str, cat: subprocess.Popen[bytes]) -> None:
    """The first sample is at the beginning; none would be after the end."""
    done = command("--convert", "--json", "--duration", 0.05, "--interval", interval, cat.pid)
    assert (done.returncode, done.stderr) == (0, "")
    samples = len(done.stdout.splitlines())
    assert samples == 1 if interval == "1000" else samples >= 1


@pytest.mark.parametrize("plan", [("--until-exit",), ("-n", "1")])
def test_the_exit_status_is_the_commands(plan: tuple[str, ...]) -> None:
    with started("--folded", *plan, "--interval", 0, "--", sys.executable, "-c", WAITS) as tool:
        wait_for_samples(tool, 1)
        output, _ = tool.communicate("x", timeout=60)
    assert (tool.returncode, output.startswith("python")) == (7, True)


@pytest.mark.parametrize("plan", [("--until-exit",), ("-n", "1")])
def test_a_signal_is_passed_on_to_the_command(plan: tuple[str, ...]) -> None:
    """Which may end in its own way; also while it is only waited for."""
    code = f"import signal, sys; signal.signal(15, lambda *_: sys.exit(5)); print('here', flush=True); {WAITS}"
    with started("--folded", *plan, "--interval", 0, "--", sys.executable, "-c", code) as tool:
        assert tool.stdout
        while tool.stdout.readline() != "here\n":  # after the stacks, if there is one sample
            pass
        wait_for_samples(tool, 1)
        tool.send_signal(signal.SIGTERM)
        assert tool.wait(60) == 5


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_that_ends_the_command_too(number: signal.Signals) -> None:
    """As from a terminal: that there are fewer samples than asked for is no failure then."""
    with started("--folded", "-n", FOR_EVER, "--interval", 0, "--", "sh", "-c", "echo $$; exec cat") as tool:
        assert tool.stdout
        child = int(tool.stdout.readline())
        wait_for_samples(tool, 1)
        tool.send_signal(number)
        os.kill(child, number)
        output, errors = tool.communicate(timeout=60)
    assert tool.returncode == 128 + number
    assert output.startswith(("cat;", "sh;"))
    assert "interrupted after" in errors.splitlines()[-1]


def test_a_command_that_a_signal_ends() -> None:
    """As shells say it."""
    with started("--until-exit", "--interval", 0, "--", "sh", "-c", "read line; kill -KILL $$") as tool:
        wait_for_samples(tool, 1)
        tool.communicate("\n", timeout=60)
    assert tool.returncode == 128 + signal.SIGKILL


def test_a_command_that_ends_before_it_is_sampled() -> None:
    for status in (0, 3):
        done = command("--until-exit", "--interval", 100, "--", "sh", "-c", f"exit {status}")
        assert (done.returncode, done.stdout) == (status or 1, "")
        assert done.stderr.endswith(": it has ended\n")


def test_a_second_interrupt_does_not_wait_for_the_command() -> None:
    """One that takes no notice of them."""
    code = "import os, signal, sys; signal.signal(2, signal.SIG_IGN); print(os.getpid(), flush=True); sys.stdin.read()"
    with started("--until-exit", "--interval", 0, "--folded", "--", sys.executable, "-c", code) as tool:
        assert tool.stdout
        assert tool.stderr
        child = int(tool.stdout.readline())
        wait_for_samples(tool, 1)
        tool.send_signal(signal.SIGINT)
        assert tool.stdout.readline().startswith("python")
        tool.send_signal(signal.SIGINT)
        assert tool.wait(60) == 130
        os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize(
    "arguments",
    [
        ("-n", 2, "--duration", 1, "1"),
        ("--duration", 1, "--until-exit", "1"),
        ("--duration", 0, "1"),
    ],
)
def test_wrong_usage(arguments: tuple[object, ...]) -> None:
    assert command(*arguments).returncode == 2


SPINNING = r"""
static pthread_barrier_t both;
static volatile int over;
static void *spin(void *unused) { pthread_barrier_wait(&both); while (!over) after++; return NULL; }
int main(void) {
    pthread_t thread;
    pthread_barrier_init(&both, NULL, 2);
    pthread_create(&thread, NULL, spin, NULL);
    pthread_barrier_wait(&both);
    hold();
    over = 1;
    pthread_join(thread, NULL);
    puts("done");
    return 0;
}
"""


def test_threads_that_wait_can_be_left_out(compile_c: Compiler, tmp_path: Path) -> None:
    with Program(compiled(compile_c, tmp_path, SPINNING, "-O2", "-static", "-pthread")) as running:
        while state_of(running.pid) != "S":
            pass
        everybody, busy = (command("--json", *option, running.pid) for option in ((), ("--no-idle",)))
    threads = {thread["tid"]: thread for thread in json.loads(everybody.stdout)["threads"]}
    assert [thread["idle"] for thread in threads.values()] == [True, False]
    assert threads[running.pid]["idle"]
    (thread,) = json.loads(busy.stdout)["threads"]
    assert (thread["tid"] in threads, thread["tid"] == running.pid, thread["idle"]) == (True, False, False)
    assert "spin" in {frame["function"] for frame in thread["frames"]}
