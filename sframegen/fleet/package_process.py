"""Runs a process that works on one package after the other, within limits. If it crashes or hangs, only one package fails.

The process runs a new program instead of being a mere fork, because a fork would copy the locks of a Dask worker's threads, held
or not. It kills itself when its parent dies, even if the parent is killed, and even if it is stopped, as SIGCONT then wakes it.
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
from sframegen.fleet.result_rows import AnswerKind, Finished, RowOutcome, parse_finished
from sframegen.program.forked import PR_SET_PDEATHSIG, build_death_error, is_readable, receive, send, serve

if TYPE_CHECKING:
    from sframegen.fleet.run_options import RunOptions
    from sframegen.fleet.sources.items import Item

PROGRAM = f"import ctypes; ctypes.CDLL(None).prctl({PR_SET_PDEATHSIG}, {signal.SIGCONT}); from {__name__} import main; main()"
MAX_LAST_OUTPUT = 1 << 12  # bytes at the end of the process' output in which its last line is searched
UNPICKLING_ERRORS = (TypeError, ValueError, LookupError, AttributeError, ImportError, PickleError)  # raised for damaged pickles


class LimitError(Exception):
    """Raised if the process died or exceeded a limit while it worked on a package. `str()` gives the reason."""


class PackageProcess:
    """The parent's handle on the process, which is started when there is a package to work on."""

    def __init__(self, directory: str, output: OutputDirectory, options: RunOptions) -> None:
        """`directory`: for temporary files of the process. `output`: has to stay open, as the process inherits its descriptor."""
        self.directory = directory
        self.output = output
        self.options = options
        self.process: subprocess.Popen[bytes] | None = None

    def work_on(self, item: Item) -> Finished:
        """Work on a package, and return its result. Raises OSError if the result cannot be written."""
        finished = self.begin(item)
        while finished is None:
            is_readable(self.pipe, max(0.0, self.deadline - monotonic()))
            finished = self.poll_result()
        return finished

    def begin(self, item: Item) -> Finished | None:
        """Begin to work on a package, until `deadline`. `pipe` becomes readable when `poll_result` has something to return.

        Return None, or the failed result if the process cannot be started. Raises OSError if that result cannot be written.
        """
        self.item = item
        self.deadline = monotonic() + self.options.timeout
        self.may_retry = self.process is not None and self.process.poll() is None  # earlier packages may have damaged it
        try:
            if not self.may_retry:
                self.end()
                self._start_process()
            with suppress(ConnectionError):  # if the process has died, `poll_result` reports that
                send(self.pipe, (item, self.options))
        except OSError as error:
            return self._fail(error.strerror or str(error))
        return None

    def poll_result(self) -> Finished | None:
        """Return the package's result, or None if there is none yet. Raises OSError if the result cannot be written.

        If the process died and had worked on other packages before, a new process tries once more.
        """
        try:
            if is_readable(self.pipe, 0):
                return self._receive_result()
            if monotonic() < self.deadline:
                return None
            why = f"took longer than {format_count(round(self.options.timeout), 'second')}"
            self.may_retry = False
        except LimitError as error:
            why = str(error)
        self.end()
        return self.begin(self.item) if self.may_retry else self._fail(why)

    def _receive_result(self) -> Finished:
        """Receive the result from the process. Raises LimitError if it died or exceeded a limit."""
        try:
            kind, value = receive(self.pipe).value
            if kind == AnswerKind.FINISHED:
                return parse_finished(value)
        except (EOFError, ConnectionError):
            raise LimitError(self._describe_death()) from None
        except UNPICKLING_ERRORS as error:
            raise LimitError(f"its process returned no result: {error}") from None
        if kind == AnswerKind.NO_MEMORY:
            raise LimitError(f"needs more memory than {_format_size(self.options.memory)}")
        return self._fail(str(value))

    def _fail(self, why: str) -> Finished:
        """Write and return a failed result."""
        return self.output.write_no_content(self.options.make_key_without_content(self.item), self.item, RowOutcome.FAILED, why)

    def _start_process(self) -> None:
        """Start the process with a pipe for requests, a directory for temporary files, and a file for what it prints."""
        self.temporary = mkdtemp(prefix="package-", dir=self.directory)
        self.printed = TemporaryFile()  # noqa: SIM115 - closed with the process
        self.pipe, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        inherited = (child_end.fileno(), self.output.descriptor)
        numbers = (*inherited, self.options.memory, self.options.timeout)
        with child_end:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", PROGRAM, *map(str, numbers), self.output.path],
                pass_fds=inherited,
                stdin=subprocess.DEVNULL,
                stdout=self.printed,
                stderr=self.printed,
                start_new_session=True,  # one signal can end it and its tools, and signals of a terminal do not reach it
                env=os.environ | {"TMPDIR": self.temporary},
            )

    def _describe_death(self) -> str:
        """Return how the process died, with the last line that it printed."""
        code = self.process.wait() if self.process else 0
        self.printed.seek(max(0, self.printed.seek(0, os.SEEK_END) - MAX_LAST_OUTPUT))
        lines = self.printed.read().decode("utf-8", "replace").split("\n")
        words = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f"{build_death_error(code)}: {words}" if words else str(build_death_error(code))

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


def _format_size(size: int) -> str:
    return next(f"{size >> shift} {unit}iB" for shift, unit in ((30, "G"), (20, "M"), (10, "K")) if size >> shift or shift == 10)


def main() -> None:
    """Answer requests until the parent closes its end of the pipe. This is the main function of the process."""
    descriptor, directory, memory, seconds, path = *map(int, sys.argv[1:4]), float(sys.argv[4]), sys.argv[5]
    for inherited in (descriptor, directory):
        os.set_inheritable(inherited, False)  # so that the tools it starts do not keep them open
    gc.set_threshold(1_000_000)  # the same threshold as in the command
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    threading.Thread(target=_kill_when_parent_dies, args=(descriptor,), daemon=True).start()
    with socket.socket(fileno=descriptor) as pipe:
        serve(pipe, partial(_handle_request, OutputDirectory(directory, path)), seconds)  # `seconds`: if the parent does not act
        _kill_when_parent_dies(descriptor)


def _kill_when_parent_dies(pipe: int) -> None:
    """Wait until the parent has died, then kill this process and its tools at once, because nobody waits for the result."""
    poll = select.poll()
    poll.register(pipe, 0)  # without any event, only the end of the other side (POLLHUP) is reported
    poll.poll()
    for _ in range(9):  # another thread may still make files in it
        shutil.rmtree(os.environ["TMPDIR"], ignore_errors=True)
    with suppress(OSError):  # another process still uses it, or a worker does
        os.rmdir(os.path.dirname(os.environ["TMPDIR"]))  # noqa: PTH106, PTH120 - as text
    os.killpg(0, signal.SIGKILL)


def _handle_request(output: OutputDirectory, item: Item, options: RunOptions) -> tuple[AnswerKind, object]:
    """Work on one package, and return the answer to send to the parent."""
    try:
        return AnswerKind.FINISHED, tuple(work_on(item, options, output))
    except MemoryError:
        return AnswerKind.NO_MEMORY, None
    except OSError as error:
        if error.errno == errno.ENOMEM:
            return AnswerKind.NO_MEMORY, None
        return AnswerKind.FAILED, f"{error.strerror or error}"
