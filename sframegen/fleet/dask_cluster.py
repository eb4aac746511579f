"""The engine for many machines: gives packages to Dask workers, whose scheduler the user has started.

In a worker, each thread has a process of its own for packages, as OneMachine has them, because a package can crash a process.
Anybody who can connect to the scheduler can run code on its workers. This process checks their results. Dask unpickles all data
from the scheduler, also what workers send. Therefore pickles that name functions or classes are refused here.
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
from contextlib import ExitStack, contextmanager, suppress
from pickle import PickleError
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

from sframegen import __version__
from sframegen.base.errors import FormatError
from sframegen.fleet.output_directory import OutputDirectory
from sframegen.fleet.package_process import PackageProcess
from sframegen.fleet.result_rows import AnswerKind, Finished, RowOutcome, parse_finished, to_one_line
from sframegen.fleet.run_options import EngineError, Job, NumberedItem, NumberedResult, RunOptions
from sframegen.fleet.sources.items import Item

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ENCRYPTED = ("tls", "wss")
ALLOWED_TYPES = frozenset({"bytearray", "bytes", "dict", "float", "int", "list", "set", "str", "tuple"})  # of `builtins`
IN_FLIGHT_PER_THREAD = 4  # packages
MIN_IN_FLIGHT = 32  # packages, because clusters that grow on demand look at the length of the queue
RECOMPUTED_STATES = ("lost", "pending")  # states of completed futures that Dask computes again
CONNECTION_LOST = "lost the connection to the scheduler; run the same command to continue"
NO_SCHEDULER = "no scheduler answers at this address: start one there with `dask scheduler`, or give another address"
OTHER_SERVICE = "there is no scheduler at this address, but another service; give the address that `dask scheduler` prints"
NO_TLS_SCHEDULER = "no scheduler answers at this address, or it and this command do not accept each other's certificates"
WORKER_FAILED = "a worker cannot be used; its log says why. Does it have the same Python packages?"
INVALID_ANSWER = "a worker's answer is not from this version of sframegen"
NO_CERTIFICATES = "TLS needs certificates (distributed.comm.tls): https://distributed.dask.org/en/stable/tls.html"
NO_WORKERS = "this scheduler has no workers yet; the run waits for some"
CONNECT_SECONDS = 30
CLOSE_SECONDS = 10


class DaskCluster:
    """A context manager within whose block this process is a client of the scheduler."""

    def __init__(self, job: Job, address: str) -> None:
        self._job = job
        self._address = address
        self._in_flight: dict[str, NumberedItem] = {}  # by the key of the task
        self._exit_stack = ExitStack()
        self._client: Any = None  # Dask's Client, within the block
        self._completed: Any = None  # Dask's as_completed, from `submit` on

    def __enter__(self) -> Self:
        """Connect to the scheduler. Raises EngineError if there is none."""
        from distributed import Client  # noqa: PLC0415 - of the extra `fleet`

        for name in ("distributed", *(name for name in logging.root.manager.loggerDict if name.startswith("distributed."))):
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)  # the run itself reports workers that died
        with ExitStack() as stack:
            stack.enter_context(only_plain_pickles())
            asyncio.run(_check_scheduler(self._address))
            with _engine_errors():
                self._client = Client(self._address, timeout=CONNECT_SECONDS, set_as_default=False)
            stack.callback(self._client.close, timeout=CLOSE_SECONDS)
            if not self._count_threads():
                self._job.note(f"{self._address}: {NO_WORKERS}: `dask worker {self._address}`")
            self._exit_stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._exit_stack.close()

    def submit(self, pending: Iterable[NumberedItem]) -> Iterator[NumberedResult]:
        """Yield the packages and their results. The scheduler gets only a few packages at a time. Raises EngineError.

        If a worker dies again and again, Dask fails all packages that it had. They are tried once more at the end, one at a time.
        """
        from distributed import as_completed  # noqa: PLC0415

        self._completed = as_completed(loop=self._client.loop)
        killed: list[NumberedItem] = []
        for number, item in pending:
            self._submit_package(number, item)
            if len(self._in_flight) >= max(MIN_IN_FLIGHT, IN_FLIGHT_PER_THREAD * self._count_threads()):
                yield from self._take_completed(killed)
        while self._in_flight:
            yield from self._take_completed(killed)
        for number, item in killed:
            self._submit_package(number, item, "alone-")
            killed_again: list[NumberedItem] = []
            while self._in_flight:
                yield from self._take_completed(killed_again)
            if killed_again:
                why = "the workers that worked on it died"
                key = self._job.options.make_key_without_content(item)
                yield number, item, self._job.output.write_no_content(key, item, RowOutcome.FAILED, why)

    def _count_threads(self) -> int:
        """Return the number of threads of all workers that have joined the scheduler."""
        with _engine_errors():
            return sum(self._client.nthreads().values())

    def _submit_package(self, number: int, item: Item, prefix: str = "") -> None:
        """Submit a package. `prefix`: makes the key of a second attempt differ, because Dask would repeat the first result."""
        key = f"sframegen-{self._job.token}-{prefix}{number}"
        arguments = (list(item), self._job.options.to_json(), self._job.output.path, self._job.token, __version__)
        self._in_flight[key] = number, item
        with _engine_errors():
            self._completed.add(self._client.submit(package_task, *arguments, key=key, pure=False))

    def _take_completed(self, killed: list[NumberedItem]) -> Iterator[NumberedResult]:
        """Wait for the next package that ends, and yield its result; if its workers died, add it to `killed` instead."""
        future = next(self._completed)
        if future.status in RECOMPUTED_STATES:  # its worker has died since, and another one will find the written result
            self._completed.add(future)
            return
        number, item = self._in_flight.pop(future.key)
        if future.status == "finished":
            with _engine_errors():
                answer = future.result()
            yield number, item, _parse_answer(answer)
        elif future.status != "error":
            raise EngineError(CONNECTION_LOST)
        elif "KilledWorker" in f"{type(future.exception()).__name__}: {future.exception()}":
            killed.append((number, item))
        else:
            raise EngineError(WORKER_FAILED)


def _parse_answer(text: object) -> Finished:
    """Parse the return value of `package_task`. Raises EngineError for anything else."""
    with suppress(ValueError, RecursionError):
        match json.loads(text) if isinstance(text, str) else None:
            case [AnswerKind.CANNOT_WORK, str(why)]:
                raise EngineError(to_one_line(why))
            case [AnswerKind.FINISHED, values]:
                return parse_finished(values)
    raise EngineError(INVALID_ANSWER)


@contextmanager
def _engine_errors() -> Iterator[None]:
    """Turn exceptions in the block into an EngineError if they mean that the scheduler is lost."""
    from distributed import CancelledError  # noqa: PLC0415
    from distributed.client import ClosedClientError  # noqa: PLC0415

    try:
        yield
    except (OSError, CancelledError, ClosedClientError) as error:
        raise EngineError(CONNECTION_LOST) from error
    except PickleError as error:
        raise EngineError(INVALID_ANSWER) from error


async def _check_scheduler(address: str) -> None:
    """Raise EngineError if no scheduler answers, because Dask's client would wait for a silent port forever."""
    from distributed.comm import connect  # noqa: PLC0415 - of the extra `fleet`
    from distributed.security import Security  # noqa: PLC0415

    arguments = Security().get_connection_args("client")
    if is_encrypted(address) and arguments["ssl_context"] is None:
        raise EngineError(NO_CERTIFICATES, file=address)
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            comm = await connect(address, timeout=CONNECT_SECONDS, **arguments)
    except OSError as error:
        raise EngineError(NO_TLS_SCHEDULER if is_encrypted(address) else NO_SCHEDULER, file=address) from error
    except Exception as error:  # for bytes of another protocol, Dask raises many kinds of exceptions
        raise EngineError(OTHER_SERVICE, file=address) from error
    comm.abort()


def is_encrypted(address: str) -> bool:
    return urlsplit(address).scheme in ENCRYPTED


def is_this_machine(address: str) -> bool:
    """Return True if all addresses of the host are loopback addresses, so that no other machine can take the connection."""
    try:
        addresses = socket.getaddrinfo(urlsplit(address).hostname, 0, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return all(ipaddress.ip_address(str(socket_address[0]).partition("%")[0]).is_loopback for *_, socket_address in addresses)


_only_plain = threading.Event()  # set within `only_plain_pickles`


class RefusedPickleError(PickleError, TypeError):
    """Raised for a pickle that names a class. It is a TypeError because Dask loses the message of any other error."""


@contextmanager
def only_plain_pickles() -> Iterator[None]:
    """Refuse pickles in this process that name anything but a plain type, until the end of the block."""
    sys.addaudithook(_refuse_classes)  # it stays, because audit hooks cannot be removed
    _only_plain.set()
    try:
        yield
    finally:
        _only_plain.clear()


def _refuse_classes(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "pickle.find_class" and _only_plain.is_set():
        module, name, *_ = arguments
        if module != "builtins" or name not in ALLOWED_TYPES:
            raise RefusedPickleError(f"a pickle of the cluster names {module}.{name}")


# -- in a worker

_local = threading.local()  # `process`: the thread's package process; `token`: the run that it works for


def package_task(item: list[Any], options: dict[str, Any], output: str, token: str, version: str) -> str:
    """Work on one package in this thread's package process. Return JSON, because a pickle would name classes."""
    return json.dumps(_work_on(item, options, output, token, version))


def _work_on(item: list[Any], options: dict[str, Any], output: str, token: str, version: str) -> tuple[AnswerKind, object]:
    """Work on one package in this thread's package process, which is restarted for each new run. Return the answer."""
    from distributed import get_worker  # noqa: PLC0415

    worker = get_worker()
    if version != __version__:  # compared first, because other versions have other options
        return AnswerKind.CANNOT_WORK, f"the worker {worker.address} has sframegen {__version__}, and the run is of {version}"
    if getattr(_local, "token", None) != token:
        _end_process()
        if fault := _start_process(output, token, RunOptions.from_json(options), worker.local_directory):
            return AnswerKind.CANNOT_WORK, f"the worker {worker.address} {fault}: give a directory that all workers share"
    return AnswerKind.FINISHED, _local.process.work_on(Item(*item))


def _end_process() -> None:
    """End this thread's package process, which worked for another run."""
    if getattr(_local, "token", None) is not None:
        _local.token = None
        _local.process.end()
        _local.process.output.close()


def _start_process(path: str, token: str, options: RunOptions, temporary: str) -> str | None:
    """Start this thread's package process for a run. Return None, or why the worker cannot write to the output directory."""
    try:
        output = OutputDirectory.opened(path)
    except OSError as error:
        return f"cannot write to {path} ({error.strerror})"
    try:
        with output.open_file("run.json") as file:
            is_same_directory = token.encode() in file.read()
    except (OSError, FormatError):
        is_same_directory = False
    if not is_same_directory or not os.access(".", os.W_OK, dir_fd=output.descriptor):
        output.close()
        return f"cannot write to {path} as the run does"
    _local.process = PackageProcess(temporary, output, options)
    _local.token = token
    return None
