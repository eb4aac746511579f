"""A process that works on one package after the other, within limits: if it crashes or hangs, only one package fails.

It is a new program (fork and exec at once), not a fork that goes on: workers of Dask have threads, whose locks a fork would copy in
any state. It ends with its worker, whatever ends that.
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
from tempfile import TemporaryFile, mkdtemp
from typing import TYPE_CHECKING

from sframegen.elf.text import count_of
from sframegen.fleet.output_directory import OutputDirectory
from sframegen.program.forked import death, is_readable, receive, send, serve

if TYPE_CHECKING:
    from collections.abc import Callable

    from sframegen.fleet.result_rows import Finished
    from sframegen.fleet.run_options import RunOptions
    from sframegen.fleet.sources.items import Item

PROGRAM = "from sframegen.fleet.package_process import main; main()"
LAST_WORDS = 1 << 12  # bytes of its standard error


class LimitError(Exception):
    """A package did not end as it should: `str()` is the reason."""


class PackageProcess:
    """The process, as its worker sees it. It is started when there is work."""

    def __init__(self, directory: str, output: OutputDirectory) -> None:
        """`directory`: where its temporary files go. `output`: stays open; the process has it from here, and looks up no path."""
        self.directory = directory
        self.output = output
        self.process: subprocess.Popen[bytes] | None = None

    def work_on(self, item: Item, options: RunOptions) -> Finished:
        """Raises LimitError, and OSError where the output cannot be written. A process that others wore out is not their fault."""
        while True:
            is_fresh = self.process is None or self.process.poll() is not None
            try:
                return self._answer(item, options)
            except _TimeoutError as error:
                self.end()
                raise LimitError(str(error)) from None
            except LimitError:
                self.end()
                if is_fresh:
                    raise

    def _answer(self, item: Item, options: RunOptions) -> Finished:
        process = self._started(options)
        try:
            send(self.pipe, (item, options))
            if not is_readable(self.pipe, options.timeout):
                raise _TimeoutError(f"took longer than {count_of(round(options.timeout), 'second')}")
            answer: Finished | MemoryError | OSError = receive(self.pipe).value
        except (EOFError, ConnectionError):
            raise LimitError(self._death(process)) from None
        if isinstance(answer, MemoryError):
            raise LimitError(f"needs more memory than {_size(options.memory)}")
        if isinstance(answer, OSError):
            raise answer
        return answer

    def _started(self, options: RunOptions) -> subprocess.Popen[bytes]:
        if self.process is None or self.process.poll() is not None:
            self.end()
            self.temporary = mkdtemp(prefix="package-", dir=self.directory)
            self.printed = TemporaryFile()  # noqa: SIM115 - closed with the process
            self.pipe, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            given = (theirs.fileno(), self.output.descriptor)
            with theirs:
                self.process = subprocess.Popen(
                    [sys.executable, "-P", "-c", PROGRAM, *map(str, given), self.output.path, str(options.memory)],
                    pass_fds=given,
                    stdin=subprocess.DEVNULL,
                    stdout=self.printed,
                    stderr=self.printed,
                    start_new_session=True,  # one signal for it and the tools that it runs; a terminal's are for the command
                    env=os.environ | {"TMPDIR": self.temporary},
                )
        return self.process

    def _death(self, process: subprocess.Popen[bytes]) -> str:
        """How the process died, with the last line that it printed."""
        code = process.wait()
        self.printed.seek(max(0, self.printed.seek(0, os.SEEK_END) - LAST_WORDS))
        lines = self.printed.read().decode("utf-8", "replace").split("\n")
        words = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f"{death(code)}: {words}" if words else str(death(code))

    def end(self) -> None:
        """End it now, with what it started."""
        if self.process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.pipe.close()
        self.printed.close()
        shutil.rmtree(self.temporary, ignore_errors=True)
        self.process = None


class _TimeoutError(LimitError):
    pass


def _size(size: int) -> str:
    return next(f"{size >> shift} {unit}iB" for shift, unit in ((30, "G"), (20, "M"), (10, "K")) if size >> shift or shift == 10)


# -- the process


def main() -> None:
    """Answer until there is no worker any more."""
    from sframegen.fleet import package_work  # noqa: PLC0415 - with all of the tool, which workers do without

    descriptor, directory, path, memory = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    for inherited in (descriptor, directory):
        os.set_inheritable(inherited, False)  # by the tools that it runs
    gc.set_threshold(1_000_000)  # as in the command
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    threading.Thread(target=_end_with_worker, args=(descriptor,), daemon=True).start()
    with socket.socket(fileno=descriptor) as pipe:
        serve(pipe, partial(_work_on, package_work.work_on, OutputDirectory(directory, path)))
        _end_with_worker(descriptor)


def _end_with_worker(pipe: int) -> None:
    """The worker's death ends the work at once: nobody waits for it."""
    poll = select.poll()
    poll.register(pipe, 0)  # the end of the other side
    poll.poll()
    shutil.rmtree(os.environ["TMPDIR"], ignore_errors=True)
    os.killpg(0, signal.SIGKILL)


def _work_on(
    work: Callable[[Item, RunOptions, OutputDirectory], Finished], output: OutputDirectory, item: Item, options: RunOptions
) -> Finished | MemoryError | OSError:
    try:
        return work(item, options, output)
    except MemoryError:
        return MemoryError()
    except OSError as error:
        return MemoryError() if error.errno == errno.ENOMEM else OSError(None, f"{error.strerror or error}")
