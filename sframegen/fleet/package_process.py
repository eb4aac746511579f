"""A process that works on one package after the other, within limits: what kills it, or makes it hang, costs one package.

It is a new program (fork and exec at once), not a fork that goes on: workers of Dask have threads, whose locks a fork would copy in
any state, and are daemonic processes, which may have no children of multiprocessing's. It reads requests from its standard input,
and ends with it: with the worker, whatever ends that.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import queue
import resource
import select
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from tempfile import TemporaryFile, mkdtemp
from time import monotonic
from typing import TYPE_CHECKING, Any, NoReturn

from sframegen.elf.text import count_of
from sframegen.fleet.output_directory import OutputDirectory
from sframegen.fleet.result_rows import Finished, Outcome
from sframegen.fleet.run_options import RunOptions
from sframegen.fleet.sources import items
from sframegen.program.workers import death

if TYPE_CHECKING:
    from sframegen.fleet.sources.items import Item

PROGRAM = "from sframegen.fleet.package_process import serve; serve()"
LAST_WORDS = 1 << 12  # bytes of its standard error
NO_MEMORY = "no memory"
EXIT_WAIT = 10.0  # seconds


class LimitError(Exception):
    """A package did not end as it should: `str()` is the reason."""


class PackageProcess:
    """The process, as its worker sees it. It is started when there is work."""

    def __init__(self, directory: str, output: OutputDirectory) -> None:
        """`directory`: where its temporary files go. `output`: stays open; the process has it from here, and looks up no path."""
        self.directory = directory
        self.output = output
        self.process: subprocess.Popen[bytes] | None = None
        self.served = 0

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
        request = json.dumps({"item": items.item_to_json(item), "options": options.to_json()}) + "\n"
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):  # its end is seen below
            process.stdin.write(request.encode("ascii"))
            process.stdin.flush()
        answer = self._line(process.stdout.fileno(), options.timeout)
        if not answer:
            raise LimitError(self._death())
        self.served += 1
        values = json.loads(answer)
        if NO_MEMORY in values:
            raise LimitError(f"needs more memory than {_size(options.memory)}")
        if "error" in values:
            raise OSError(None, values["error"])
        key, outcome, reason, is_new = values["finished"]
        return Finished(key, Outcome(outcome), reason, is_new)

    def _started(self, options: RunOptions) -> subprocess.Popen[bytes]:
        if self.process is None or self.process.poll() is not None:
            self.end()
            self.temporary = mkdtemp(prefix="package-", dir=self.directory)
            self.stderr = TemporaryFile()  # noqa: SIM115 - closed with the process
            output = self.output.descriptor
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", PROGRAM, str(options.memory), str(output), self.output.path],
                pass_fds=[output],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.stderr,
                start_new_session=True,  # one signal for it and the tools that it runs; a terminal's are for the command
                env=os.environ | {"TMPDIR": self.temporary},
            )
            self.served = 0
        return self.process

    def _line(self, descriptor: int, seconds: float) -> bytes:
        """Up to a line's end; b"" if the process ended. Raises _TimeoutError."""
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        end = monotonic() + seconds
        line = b""
        while not line.endswith(b"\n"):
            if not poll.poll(max(0.0, end - monotonic()) * 1000):
                raise _TimeoutError(f"took longer than {count_of(round(seconds), 'second')}")
            piece = os.read(descriptor, 1 << 16)
            if not piece:
                return b""
            line += piece
        return line

    def _death(self) -> str:
        """How the process died, with the last line that it printed."""
        assert self.process is not None
        code = self.process.wait()
        self.stderr.seek(max(0, self.stderr.seek(0, os.SEEK_END) - LAST_WORDS))
        lines = self.stderr.read().decode("utf-8", "replace").split("\n")
        words = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f"{death(code)}: {words}" if words else str(death(code))

    def end(self) -> None:
        """End it now, with what it started."""
        if self.process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()
        self.stderr.close()
        shutil.rmtree(self.temporary, ignore_errors=True)
        self.process = None


class _TimeoutError(LimitError):
    pass


def _size(size: int) -> str:
    return next(f"{size >> shift} {unit}iB" for shift, unit in ((30, "G"), (20, "M"), (10, "K")) if size >> shift or shift == 10)


# -- the process


def serve() -> NoReturn:
    """Answer requests until standard input ends."""
    from sframegen.fleet.package_work import work_on  # noqa: PLC0415 - with all of the tool, which workers do without

    memory, descriptor, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    os.set_inheritable(descriptor, False)  # by the tools that it runs
    output = OutputDirectory(descriptor, path)
    gc.set_threshold(1_000_000)  # as in the command
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print is no answer
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(requests,), daemon=True).start()
    while True:
        request = json.loads(requests.get())
        answers.write(_answered(request, output, work_on).encode("ascii") + b"\n")
        answers.flush()


def _read(requests: queue.SimpleQueue[bytes]) -> None:
    """The worker's death ends the work at once: nobody waits for it."""
    with suppress(OSError):
        for line in sys.stdin.buffer:
            requests.put(line)
    shutil.rmtree(os.environ["TMPDIR"], ignore_errors=True)
    os.killpg(0, signal.SIGKILL)


def _answered(request: dict[str, Any], output: OutputDirectory, work_on: Any) -> str:  # noqa: ANN401
    item, options = items.item_from_json(request["item"]), RunOptions.from_json(request["options"])
    try:
        return json.dumps({"finished": work_on(item, options, output)})
    except MemoryError:
        return json.dumps({NO_MEMORY: True})
    except OSError as error:
        if error.errno == errno.ENOMEM:
            return json.dumps({NO_MEMORY: True})
        return json.dumps({"error": f"{error.strerror or error}"})
