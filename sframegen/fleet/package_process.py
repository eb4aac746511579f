"""Runs a process that works on one package after the other, within limits: if it crashes or hangs, only one package fails.

It is a new program (fork and exec), not a plain fork: Dask workers have threads, whose locks a fork would copy in any state. It
ends with the process that started it, whatever ends that.
"""

from __future__ import annotations

import errno
import gc
import os
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from functools import partial
from pickle import PickleError
from tempfile import TemporaryFile, mkdtemp
from time import monotonic
from typing import TYPE_CHECKING

from sframegen.base.text import format_count
from sframegen.fleet.output_directory import OutputDirectory
from sframegen.fleet.package_work import work_on
from sframegen.fleet.result_rows import AnswerKind, Finished, RowOutcome, finished_of
from sframegen.program.forked import death, is_readable, receive, send, serve

if TYPE_CHECKING:
    from sframegen.fleet.run_options import RunOptions
    from sframegen.fleet.sources.items import Item

PROGRAM = "from sframegen.fleet.package_process import main; main()"
LAST_WORDS = 1 << 12  # bytes at the end of its output that are searched for the last line
NO_ANSWER = (TypeError, ValueError, LookupError, AttributeError, ImportError, PickleError)  # from unpickling bad bytes


class LimitError(Exception):
    """Raised if the process ended or exceeded a limit while it worked on a package: `str()` is the reason."""


class PackageProcess:
    """A handle on the process, which is started when there is work."""

    def __init__(self, directory: str, output: OutputDirectory, options: RunOptions) -> None:
        """`directory`: for its temporary files. `output`: has to stay open; the process inherits its descriptor."""
        self.directory = directory
        self.output = output
        self.options = options
        self.process: subprocess.Popen[bytes] | None = None

    def work_on(self, item: Item) -> Finished:
        """Work on a package, and return its result. Raises OSError if the result cannot be written."""
        finished = self.begin(item)
        while finished is None:
            is_readable(self.pipe, max(0.0, self.deadline - monotonic()))
            finished = self.outcome()
        return finished

    def begin(self, item: Item) -> Finished | None:
        """Begin to work on a package, until `deadline`; `pipe` is readable when there is an outcome. Return None, or the failure
        if the process cannot be started. Raises OSError if that cannot be written.
        """
        self.item = item
        self.deadline = monotonic() + self.options.timeout
        self.is_fresh = self.process is None or self.process.poll() is not None
        try:
            if self.is_fresh:
                self.end()
                self._start()
            with suppress(ConnectionError):  # the process has died: `outcome` reports it
                send(self.pipe, (item, self.options))
        except OSError as error:
            return self._fail(error.strerror or str(error))
        return None

    def outcome(self) -> Finished | None:
        """Return the package's result; None if there is none yet. If a process dies that worked on others before, a new one tries.

        Raises OSError if the result cannot be written.
        """
        try:
            if is_readable(self.pipe, 0):
                return self._answer()
            if monotonic() < self.deadline:
                return None
            why = f"took longer than {format_count(round(self.options.timeout), 'second')}"
            self.is_fresh = True
        except LimitError as error:
            why = str(error)
        self.end()
        return self._fail(why) if self.is_fresh else self.begin(self.item)

    def _answer(self) -> Finished:
        """Return the result that the process has sent. Raises LimitError if it died or exceeded a limit."""
        try:
            kind, value = receive(self.pipe).value
            if kind == AnswerKind.FINISHED:
                return finished_of(value)
        except (EOFError, ConnectionError):
            raise LimitError(self._describe_death()) from None
        except NO_ANSWER as error:
            raise LimitError(f"its process returned no result: {error}") from None
        if kind == AnswerKind.NO_MEMORY:
            raise LimitError(f"needs more memory than {_size(self.options.memory)}")
        return self._fail(str(value))

    def _fail(self, why: str) -> Finished:
        return self.output.write_no_content(self.options.key_without_content(self.item), self.item, RowOutcome.FAILED, why)

    def _start(self) -> None:
        self.temporary = mkdtemp(prefix="package-", dir=self.directory)
        self.printed = TemporaryFile()  # noqa: SIM115 - closed with the process
        self.pipe, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        given = (theirs.fileno(), self.output.descriptor)
        numbers = (*given, self.options.memory, self.options.timeout)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", PROGRAM, *map(str, numbers), self.output.path],
                pass_fds=given,
                stdin=subprocess.DEVNULL,
                stdout=self.printed,
                stderr=self.printed,
                start_new_session=True,  # so that one signal ends it and its tools, and a terminal's signals only reach the command
                env=os.environ | {"TMPDIR": self.temporary},
            )

    def _describe_death(self) -> str:
        """Return how the process died, with the last line that it printed."""
        code = self.process.wait() if self.process else 0
        self.printed.seek(max(0, self.printed.seek(0, os.SEEK_END) - LAST_WORDS))
        lines = self.printed.read().decode("utf-8", "replace").split("\n")
        words = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f"{death(code)}: {words}" if words else str(death(code))

    def end(self) -> None:
        """Kill the process and the tools that it started."""
        if self.process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.pipe.close()
        self.printed.close()
        shutil.rmtree(self.temporary, ignore_errors=True)
        self.process = None


def _size(size: int) -> str:
    return next(f"{size >> shift} {unit}iB" for shift, unit in ((30, "G"), (20, "M"), (10, "K")) if size >> shift or shift == 10)


# -- the process


def main() -> None:
    """Answer requests until the other end of the pipe is closed."""
    descriptor, directory, memory, seconds, path = *map(int, sys.argv[1:4]), float(sys.argv[4]), sys.argv[5]
    for inherited in (descriptor, directory):
        os.set_inheritable(inherited, False)  # tools must not inherit them
    gc.set_threshold(1_000_000)  # the same as in the command
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    threading.Thread(target=_end_with_parent, args=(descriptor,), daemon=True).start()
    with socket.socket(fileno=descriptor) as pipe:
        serve(
            pipe, partial(_answer, OutputDirectory(directory, path)), seconds
        )  # whoever asked ends it at that time, if not killed: then a timer does
        _end_with_parent(descriptor)


def _end_with_parent(pipe: int) -> None:
    """The death of who asked ends the work at once: nobody waits for it."""
    poll = select.poll()
    poll.register(pipe, 0)  # the end of the other side
    poll.poll()
    shutil.rmtree(os.environ["TMPDIR"], ignore_errors=True)
    os.killpg(0, signal.SIGKILL)


def _answer(output: OutputDirectory, item: Item, options: RunOptions) -> tuple[AnswerKind, object]:
    try:
        return AnswerKind.FINISHED, tuple(work_on(item, options, output))
    except MemoryError:
        return AnswerKind.NO_MEMORY, None
    except OSError as error:
        if error.errno == errno.ENOMEM:
            return AnswerKind.NO_MEMORY, None
        return AnswerKind.FAILED, f"{error.strerror or error}"
