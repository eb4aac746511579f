"""Signals at every moment of a run, from the program's first line on: silence, the conventional status, nothing left over.

Moments are counted, not timed: the process sends itself the signal when it imports the n-th module, or calls the n-th function.
The event "lief" is a call while LIEF is imported, in whose C++ code an exception would end the process.
"""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.processes.answering import Answering

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.peers import Compiler

ENDS = {signal.SIGINT: {-signal.SIGINT, 130}, signal.SIGTERM: {-signal.SIGTERM, 143}, signal.SIGHUP: {-signal.SIGHUP, 129}}

# Each run in a process forked before anything of ours is imported. A line of stdin is (arguments, event, signal, moment); one of
# stdout is (status, stderr, events): how many there are for moment 0, else 1 if the signal was sent. Moments count from the line on
# that takes care of Ctrl-C: what is before is the interpreter's.
DRIVER = """
import json, os, signal, sys, tempfile

def run(arguments, event, number, moment):
    read, write = os.pipe()
    with tempfile.TemporaryFile() as stderr:
        child = os.fork()
        if not child:
            os.dup2(stderr.fileno(), 2)
            sys.argv[1:] = arguments
            main = os.getpid()
            seen = 0
            def count(*_):
                nonlocal seen
                if signal.getsignal(signal.SIGINT) is signal.default_int_handler or os.getpid() != main:
                    return
                seen += 1
                if seen == moment:
                    os.write(write, b"1")
                    os.kill(main, number)
            def imports_lief():
                return getattr(getattr(sys.modules.get("lief"), "__spec__", None), "_initializing", False)
            if event == "import":
                sys.addaudithook(lambda name, _: count() if name == "import" else None)
            else:
                sys.setprofile(lambda _, name, __: count() if name == "call" and (event == "call" or imports_lief()) else None)
            if moment == 0:
                import atexit
                atexit.register(lambda: os.write(write, str(seen).encode()))
            if event == "lief":
                from linker.files import read_back
                read_back.MIN_FILES_FOR_LIEF = 1  # LIEF reads many files back
            from sframegen.cli.start import main as program
            program()
        os.close(write)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        events = os.read(read, 100).decode()
        os.close(read)
        stderr.seek(0)
        return status, stderr.read().decode(), int(events or 0)

for line in sys.stdin:
    print(json.dumps(run(*json.loads(line))), flush=True)
"""


@pytest.fixture(scope="module")
def driver() -> Iterator[Answering]:
    with Answering([sys.executable, "-c", DRIVER]) as process:
        yield process


@pytest.mark.dear
@pytest.mark.full
@pytest.mark.parametrize(
    ("event", "number", "moments"),
    [
        ("import", signal.SIGINT, 16),
        ("import", signal.SIGTERM, 6),
        ("call", signal.SIGINT, 10),
        ("call", signal.SIGHUP, 4),
        ("lief", signal.SIGINT, 10),
        ("lief", signal.SIGTERM, 6),
    ],
)
def test_a_signal_at_any_moment(
    driver: Answering, compile_c: Compiler, tmp_path: Path, event: str, number: signal.Signals, moments: int
) -> None:
    program = compile_c("int f(int x) { return x + 1; }\nint main(void) { return f(1); }", "-O1")
    before = program.read_bytes()
    arguments = ["add-section", "-q", "-j1", "-o", str(tmp_path / "out"), str(program)]
    status, stderr, events = driver.ask([arguments, event, number, 0])
    assert (status, stderr) == (0, "")
    assert events
    (tmp_path / "out").unlink()
    for moment in range(1, events + 1, max(1, events // moments)):
        status, stderr, sent = driver.ask([arguments, event, number, moment])
        assert stderr == "", f"moment {moment} of {events}"
        assert status in (ENDS[number] if sent else {0}), f"moment {moment} of {events}"
        assert sent or moment > events * 0.9, f"moment {moment} of {events}"  # no two runs have quite the same events
        assert [path.name for path in tmp_path.iterdir()] in ([], ["out"]), f"moment {moment} of {events}"
        (tmp_path / "out").unlink(missing_ok=True)
    assert program.read_bytes() == before
