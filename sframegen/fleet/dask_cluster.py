"""The engine of many machines: workers of Dask, whose scheduler the user has started. Who reaches that runs code as its user.

What comes back is checked. Dask unpickles whatever its scheduler sends, so whoever answers at an address without TLS could run code
here, too: then no pickle in this process may name a function or a class.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import os
import socket
import sys
import threading
from contextlib import ExitStack, contextmanager
from pickle import PickleError, UnpicklingError
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

from sframegen import __version__
from sframegen.base.errors import FormatError
from sframegen.fleet.output_directory import OutputDirectory
from sframegen.fleet.package_process import PackageProcess
from sframegen.fleet.result_rows import AnswerKind, RowOutcome, finished_of, one_line
from sframegen.fleet.run_options import EngineError, RunOptions
from sframegen.fleet.sources import items

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sframegen.fleet.result_rows import Finished
    from sframegen.fleet.run_options import Job, NumberedItem, NumberedResult
    from sframegen.fleet.sources.items import Item

ENCRYPTED = ("tls", "wss")
PLAIN_TYPES = frozenset({"bytearray", "bytes", "dict", "float", "int", "list", "set", "str", "tuple"})  # of `builtins`
IN_FLIGHT_PER_THREAD = 4
MIN_IN_FLIGHT = 32  # clusters that grow with their work need to see some
LOST = ("lost", "pending")  # states of a future that Dask computes again
GONE = "lost the scheduler; run the same command to continue"
NO_ANSWER = "no scheduler answers at this address: start one there with `dask scheduler`, or give another address"
NOT_ONE = "there is no scheduler at this address, but another service; give the address that `dask scheduler` prints"
NO_RESULT = "a worker's answer is not from this version of sframegen"
NO_CERTIFICATES = "TLS needs certificates (distributed.comm.tls): https://distributed.dask.org/en/stable/tls.html"
NO_WORKERS = "this scheduler has no workers yet; the run waits for some"
CONNECT_SECONDS = 30
CLOSE_SECONDS = 10


class DaskCluster:
    """A block: within it, this process is a client of the scheduler."""

    def __init__(self, job: Job, address: str) -> None:
        self._job = job
        self._address = address

    def __enter__(self) -> Self:
        """Raises EngineError if there is no scheduler."""
        from distributed import Client  # noqa: PLC0415 - of the extra `fleet`

        for name in ("distributed", *(name for name in logging.root.manager.loggerDict if name.startswith("distributed."))):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # deaths of workers are lines of the run's own
        with ExitStack() as stack:
            if not is_encrypted(self._address):
                stack.enter_context(plain_pickles())
            asyncio.run(_expect_scheduler(self._address))
            with _reached():
                self._client = Client(self._address, timeout=CONNECT_SECONDS, set_as_default=False)
            stack.callback(self._client.close, timeout=CLOSE_SECONDS)
            if not self._threads():
                self._job.note(f"{self._address}: {NO_WORKERS}: `dask worker {self._address}`")
            self._ends = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    def submit(self, waiting: Iterable[NumberedItem]) -> Iterator[NumberedResult]:
        """A few packages at a time are known to the scheduler. Raises EngineError.

        Dask suspects all packages that a worker had when it died: suspects are tried once more at the end, each alone.
        """
        from distributed import as_completed  # noqa: PLC0415

        self._completed = as_completed(loop=self._client.loop)
        self._in_flight: dict[str, NumberedItem] = {}
        suspects: list[NumberedItem] = []
        for number, item in waiting:
            self._begin(number, item)
            if len(self._in_flight) >= max(MIN_IN_FLIGHT, IN_FLIGHT_PER_THREAD * self._threads()):
                yield from self._next(suspects)
        while self._in_flight:
            yield from self._next(suspects)
        for number, item in suspects:
            self._begin(number, item, "alone-")
            unfinished: list[NumberedItem] = []
            while self._in_flight:
                yield from self._next(unfinished)
            if unfinished:
                why = "the workers that worked on it died"
                key = self._job.options.key_without_content(item)
                yield number, item, self._job.output.write_no_content(key, item, RowOutcome.FAILED, why)

    def _threads(self) -> int:
        """Those of all workers that have joined the scheduler."""
        with _reached():
            return sum(self._client.nthreads().values())

    def _begin(self, number: int, item: Item, which: str = "") -> None:
        key = f"sframegen-{self._job.token}-{which}{number}"
        arguments = (list(item), self._job.options.to_json(), self._job.output.path, self._job.token, __version__)
        self._in_flight[key] = number, item
        with _reached():
            self._completed.add(self._client.submit(package_task, *arguments, key=key, pure=False))

    def _next(self, suspects: list[NumberedItem]) -> Iterator[NumberedResult]:
        """The next package that ends: its result, or one suspect more."""
        future = next(self._completed)
        if future.status in LOST:  # its worker has died since, and another one does it again: it finds the result
            self._completed.add(future)
            return
        number, item = self._in_flight.pop(future.key)
        if future.status == "finished":
            with _reached():
                answer = future.result()
            yield number, item, _answered(answer)
        elif future.status != "error":
            raise EngineError(GONE)
        elif "KilledWorker" in (error := f"{type(future.exception()).__name__}: {future.exception()}"):
            suspects.append((number, item))
        else:
            raise EngineError(one_line(f"a worker cannot be used: {error}"))


def _answered(text: object) -> Finished:
    """From what `package_task` returns. Raises EngineError for anything else."""
    try:
        match json.loads(text) if isinstance(text, str) else None:
            case [AnswerKind.CANNOT_WORK, str(why)]:
                raise EngineError(one_line(why))
            case [AnswerKind.FINISHED, values]:
                return finished_of(values)
    except (ValueError, RecursionError):
        pass
    raise EngineError(NO_RESULT)


@contextmanager
def _reached() -> Iterator[None]:
    """Whatever Dask raises where its scheduler does not answer any more becomes an EngineError."""
    from distributed import CancelledError  # noqa: PLC0415
    from distributed.client import ClosedClientError  # noqa: PLC0415

    try:
        yield
    except (OSError, CancelledError, ClosedClientError) as error:
        raise EngineError(GONE) from error
    except PickleError as error:
        raise EngineError(NO_RESULT) from error


async def _expect_scheduler(address: str) -> None:
    """Raises EngineError if no scheduler answers. Dask's client would wait for a silent port for ever."""
    from distributed.comm import connect  # noqa: PLC0415 - of the extra `fleet`
    from distributed.security import Security  # noqa: PLC0415

    arguments = Security().get_connection_args("client")
    if is_encrypted(address) and arguments["ssl_context"] is None:
        raise EngineError(NO_CERTIFICATES, file=address)
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            comm = await connect(address, timeout=CONNECT_SECONDS, **arguments)
    except OSError as error:
        raise EngineError(NO_ANSWER, file=address) from error
    except Exception as error:  # whatever Dask makes of bytes that are none of its own
        raise EngineError(NOT_ONE, file=address) from error
    comm.abort()


# -- what is not encrypted


def is_encrypted(address: str) -> bool:
    return urlsplit(address).scheme in ENCRYPTED


def is_this_machine(address: str) -> bool:
    """True if all addresses of the host are loopback ones: nobody else is on the way."""
    try:
        found = socket.getaddrinfo(urlsplit(address).hostname, 0, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return all(ipaddress.ip_address(str(place[0]).partition("%")[0]).is_loopback for *_, place in found)


_plain = threading.Event()  # set within `plain_pickles`


@contextmanager
def plain_pickles() -> Iterator[None]:
    """Within the block, no pickle is loaded in this process that names anything but a plain type."""
    sys.addaudithook(_audit)  # none can be removed
    _plain.set()
    try:
        yield
    finally:
        _plain.clear()


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "pickle.find_class" and _plain.is_set():
        module, name, *_ = arguments
        if module != "builtins" or name not in PLAIN_TYPES:
            raise UnpicklingError(f"{module}.{name}: not from a scheduler without TLS")


# -- in a worker

_local = threading.local()  # a process for each thread, for the run whose packages it works on


def package_task(item: list[Any], options: dict[str, Any], output: str, token: str, version: str) -> str:
    """One package, in the process of this thread. JSON: a pickle would name classes."""
    return json.dumps(_worked_on(item, RunOptions.from_json(options), output, token, version))


def _worked_on(item: list[Any], options: RunOptions, output: str, token: str, version: str) -> tuple[AnswerKind, object]:
    from distributed import get_worker  # noqa: PLC0415

    worker = get_worker()
    if version != __version__:
        return AnswerKind.CANNOT_WORK, f"the worker {worker.address} has sframegen {__version__}, and the run is of {version}"
    if getattr(_local, "token", None) != token:
        _forget()
        if why := _begin(output, token, options, worker.local_directory):
            return (
                AnswerKind.CANNOT_WORK,
                f"the worker {worker.address} cannot write to {output}{why}: give a directory that all workers share",
            )
    return AnswerKind.FINISHED, _local.process.work_on(items.item_from_json(item))


def _forget() -> None:
    """End the process of another run."""
    if getattr(_local, "token", None) is not None:
        _local.token = None
        _local.process.end()
        _local.process.output.close()


def _begin(path: str, token: str, options: RunOptions, temporary: str) -> str:
    """Have a process for that run. Returns why there is none, or ""."""
    try:
        output = OutputDirectory.opened(path)
    except OSError as error:
        return f" ({error.strerror})"
    try:
        with output.file("run.json") as file:
            is_there = token.encode() in file.read()
    except (OSError, FormatError):
        is_there = False
    if not is_there or not os.access(".", os.W_OK, dir_fd=output.descriptor):
        output.close()
        return " as the run does"
    _local.process = PackageProcess(temporary, output, options)
    _local.token = token
    return ""
