"""The engine for many machines: Dask workers, whose scheduler the user has started. Whoever reaches it can run code as its user.

Results are checked. Dask unpickles all data from its scheduler, so without TLS anybody who answers at its address could run code
here, too. Therefore pickles in this process then must not name functions or classes.
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
from sframegen.fleet.result_rows import AnswerKind, Finished, RowOutcome, finished_of, one_line
from sframegen.fleet.run_options import EngineError, Job, NumberedItem, NumberedResult, RunOptions
from sframegen.fleet.sources import items

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sframegen.fleet.sources.items import Item

ENCRYPTED = ("tls", "wss")
PLAIN_TYPES = frozenset({"bytearray", "bytes", "dict", "float", "int", "list", "set", "str", "tuple"})  # of `builtins`
IN_FLIGHT_PER_THREAD = 4
MIN_IN_FLIGHT = 32  # packages: clusters that grow with their work need some in their queue
LOST = ("lost", "pending")  # states of futures that Dask computes again
GONE = "lost the connection to the scheduler; run the same command to continue"
NO_ANSWER = "no scheduler answers at this address: start one there with `dask scheduler`, or give another address"
NOT_ONE = "there is no scheduler at this address, but another service; give the address that `dask scheduler` prints"
NO_RESULT = "a worker's answer is not from this version of sframegen"
NO_CERTIFICATES = "TLS needs certificates (distributed.comm.tls): https://distributed.dask.org/en/stable/tls.html"
NO_WORKERS = "this scheduler has no workers yet; the run waits for some"
CONNECT_SECONDS = 30
CLOSE_SECONDS = 10


class DaskCluster:
    """A block within which this process is a client of the scheduler."""

    def __init__(self, job: Job, address: str) -> None:
        self._job = job
        self._address = address

    def __enter__(self) -> Self:
        """Connect to the scheduler. Raises EngineError if there is none."""
        from distributed import Client  # noqa: PLC0415 - of the extra `fleet`

        for name in ("distributed", *(name for name in logging.root.manager.loggerDict if name.startswith("distributed."))):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # the run itself reports deaths of workers
        with ExitStack() as stack:
            if not is_encrypted(self._address):
                stack.enter_context(plain_pickles())
            asyncio.run(_expect_scheduler(self._address))
            with _engine_errors():
                self._client = Client(self._address, timeout=CONNECT_SECONDS, set_as_default=False)
            stack.callback(self._client.close, timeout=CLOSE_SECONDS)
            if not self._threads():
                self._job.note(f"{self._address}: {NO_WORKERS}: `dask worker {self._address}`")
            self._ends = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    def submit(self, waiting: Iterable[NumberedItem]) -> Iterator[NumberedResult]:
        """Yield the packages and results; the scheduler gets a few packages at a time. Raises EngineError.

        Dask suspects all packages that a worker had when it died. Suspects are tried once more at the end, one at a time.
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
        """Return the number of threads of all workers that have joined the scheduler."""
        with _engine_errors():
            return sum(self._client.nthreads().values())

    def _begin(self, number: int, item: Item, which: str = "") -> None:
        key = f"sframegen-{self._job.token}-{which}{number}"
        arguments = (list(item), self._job.options.to_json(), self._job.output.path, self._job.token, __version__)
        self._in_flight[key] = number, item
        with _engine_errors():
            self._completed.add(self._client.submit(package_task, *arguments, key=key, pure=False))

    def _next(self, suspects: list[NumberedItem]) -> Iterator[NumberedResult]:
        """Wait for the next package that ends; yield its result, or add it to `suspects`."""
        future = next(self._completed)
        if future.status in LOST:  # its worker has died since: another worker will find the result
            self._completed.add(future)
            return
        number, item = self._in_flight.pop(future.key)
        if future.status == "finished":
            with _engine_errors():
                answer = future.result()
            yield number, item, _parse_answer(answer)
        elif future.status != "error":
            raise EngineError(GONE)
        elif "KilledWorker" in (error := f"{type(future.exception()).__name__}: {future.exception()}"):
            suspects.append((number, item))
        else:
            raise EngineError(one_line(f"a worker cannot be used: {error}"))


def _parse_answer(text: object) -> Finished:
    """Parse the return value of `package_task`. Raises EngineError for anything else."""
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
def _engine_errors() -> Iterator[None]:
    """Turn exceptions in the block that mean a lost scheduler into an EngineError."""
    from distributed import CancelledError  # noqa: PLC0415
    from distributed.client import ClosedClientError  # noqa: PLC0415

    try:
        yield
    except (OSError, CancelledError, ClosedClientError) as error:
        raise EngineError(GONE) from error
    except PickleError as error:
        raise EngineError(NO_RESULT) from error


async def _expect_scheduler(address: str) -> None:
    """Raise EngineError if no scheduler answers. Dask's client would wait for a silent port forever."""
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
    except Exception as error:  # any exception that Dask raises for bytes of another protocol
        raise EngineError(NOT_ONE, file=address) from error
    comm.abort()


# -- what is not encrypted


def is_encrypted(address: str) -> bool:
    return urlsplit(address).scheme in ENCRYPTED


def is_this_machine(address: str) -> bool:
    """Return True if all addresses of the host are loopback ones, so that nobody else can intercept the connection."""
    try:
        found = socket.getaddrinfo(urlsplit(address).hostname, 0, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return all(ipaddress.ip_address(str(place[0]).partition("%")[0]).is_loopback for *_, place in found)


_plain = threading.Event()  # set within `plain_pickles`


@contextmanager
def plain_pickles() -> Iterator[None]:
    """Forbid this process to load pickles in the block that name anything but a plain type."""
    sys.addaudithook(_audit)  # audit hooks cannot be removed
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

_local = threading.local()  # each thread's package process, and the run that it works for


def package_task(item: list[Any], options: dict[str, Any], output: str, token: str, version: str) -> str:
    """Work on one package in this thread's process. Return JSON, because a pickle would name classes."""
    return json.dumps(_work_on(item, RunOptions.from_json(options), output, token, version))


def _work_on(item: list[Any], options: RunOptions, output: str, token: str, version: str) -> tuple[AnswerKind, object]:
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
    """End this thread's process, which worked for another run."""
    if getattr(_local, "token", None) is not None:
        _local.token = None
        _local.process.end()
        _local.process.output.close()


def _begin(path: str, token: str, options: RunOptions, temporary: str) -> str:
    """Start this thread's process for that run. Return the reason if that fails, or ""."""
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
