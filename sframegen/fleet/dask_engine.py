"""Tasks on Dask: a few at a time are known to the scheduler, each returns a few bytes, and what ends a worker ends one package."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from warnings import catch_warnings

from cfi.errors import FormatError, SframegenError
from sframegen import __version__
from sframegen.fleet.batches import batches
from sframegen.fleet.known_results import refuse_or_fail
from sframegen.fleet.output_directory import OutputDirectory
from sframegen.fleet.package_process import LimitError, PackageProcess
from sframegen.fleet.result_rows import Finished, Outcome, one_line
from sframegen.fleet.run_directory import run_directory
from sframegen.fleet.run_options import RunOptions
from sframegen.fleet.sources import items

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sframegen.fleet.batches import NumberedItem
    from sframegen.fleet.sources.items import Item

IN_FLIGHT_PER_THREAD = 4
MIN_IN_FLIGHT = 32  # clusters that grow with their work need to see some
SHARES_PER_THREAD = 4
LOST = ("lost", "pending")  # states of a future whose result is being made again
GONE = "the scheduler is gone; the same command continues the run"
NO_ANSWER = "no scheduler answers at this address: start one there with `dask scheduler`, or give another address"
NOT_ONE = "what answers at this address is not a scheduler: give the address that `dask scheduler` prints"
NO_CERTIFICATES = "tls:// needs certificates (distributed.comm.tls): https://distributed.dask.org/en/stable/tls.html"
STARTS = 3
CONNECT_SECONDS = 30
CLOSE_SECONDS = 10
COMPLETE_SECONDS = 5.0
DASHBOARD = "127.0.0.1:8787"  # for this machine only, if bokeh is installed; another port where this one is taken


class EngineError(SframegenError):
    """The run cannot go on. What is done is kept."""


class OutputError(Exception):
    """A worker does not have the output directory of the run, or is another version."""


class Job(NamedTuple):
    """The parameters that all tasks of a run share."""

    options: RunOptions
    output: str
    token: str  #: in the output directory's run.json, to see that it is the same directory
    packages: int = 0  #: of the run
    version: str = __version__


class Cluster(NamedTuple):
    scheduler: str | None = None  #: address; None: a cluster of this machine, for this run only
    workers: int = 0


@contextmanager
def connected(cluster: Cluster) -> Iterator[Any]:
    """A client of the scheduler. Raises EngineError if there is none."""
    from distributed import Client  # noqa: PLC0415 - of the extra `fleet`

    for name in ("distributed", *(name for name in logging.root.manager.loggerDict if name.startswith("distributed."))):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # deaths of workers are lines of the run's own
    with ExitStack() as stack:
        address: Any = cluster.scheduler
        if address is None:
            directory = stack.enter_context(run_directory())  # private, unlike Dask's own
            address = _own_cluster(cluster.workers, directory)
            stack.callback(address.close, timeout=CLOSE_SECONDS)
            _keep_complete(address, cluster.workers)
        else:
            asyncio.run(_expect_scheduler(address))
        with _reached():
            client = Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
        stack.callback(client.close, timeout=CLOSE_SECONDS)
        yield client


def has_workers(client: Any) -> bool:  # noqa: ANN401 - Dask's
    """Return True if any have joined the scheduler. Raises EngineError if it is gone."""
    with _reached():
        return any(client.nthreads().values())


async def _expect_scheduler(address: str) -> None:
    """Raises EngineError if no scheduler answers. Dask's client would wait for a silent port for ever."""
    from distributed.comm import connect  # noqa: PLC0415 - of the extra `fleet`
    from distributed.security import Security  # noqa: PLC0415

    arguments = Security().get_connection_args("client")
    if address.startswith("tls:") and arguments["ssl_context"] is None:
        raise EngineError(NO_CERTIFICATES, file=address)
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            comm = await connect(address, timeout=CONNECT_SECONDS, **arguments)
    except OSError as error:
        raise EngineError(NO_ANSWER, file=address) from error
    except Exception as error:  # whatever Dask makes of bytes that are none of its own
        raise EngineError(NOT_ONE, file=address) from error
    comm.abort()


def _own_cluster(workers: int, directory: str) -> Any:  # noqa: ANN401 - Dask's
    """A cluster of this machine. Dask gives up if a worker dies while it starts, as when memory is short: then it starts again."""
    from distributed import LocalCluster  # noqa: PLC0415 - of the extra `fleet`

    for _ in range(STARTS):
        with catch_warnings(action="ignore"), suppress(RuntimeError):  # that another port is taken; that a worker died
            return LocalCluster(
                n_workers=workers,
                threads_per_worker=1,
                processes=True,
                host="127.0.0.1",
                dashboard_address=DASHBOARD,
                memory_limit=0,  # the packages' own processes have one
                local_directory=directory,
                silence_logs=logging.CRITICAL,
            )
    raise EngineError(f"workers died while they started, {STARTS} times; the same command tries again")


def _keep_complete(cluster: Any, workers: int) -> None:  # noqa: ANN401 - Dask's
    """Dask does not start a worker again that dies as soon as it has started: without any, a run would wait for ever."""

    def complete() -> None:
        if cluster.status.name == "running":
            cluster.scale(workers)
            cluster.loop.call_later(COMPLETE_SECONDS, complete)

    cluster.loop.add_callback(complete)


def results_of(
    client: Any,  # noqa: ANN401 - Dask's
    job: Job,
    output: OutputDirectory,
    waiting: Iterable[NumberedItem],
) -> Iterator[tuple[int, Item, Finished]]:
    """The number of each item and its result, in the order in which they end. Raises EngineError where the run cannot go on.

    Dask suspects all tasks that a worker had when it died: suspects are tried once more at the end, each alone.
    """
    tasks = Tasks(client, job)
    suspects: list[NumberedItem] = []
    for batch in batches(waiting, tasks.fair_share):
        tasks.submit(batch)
        if tasks.are_enough():
            yield from tasks.next(suspects)
    while tasks.in_flight:
        yield from tasks.next(suspects)
    for number, item in suspects:
        tasks.submit([(number, item)], "alone-")
        unfinished: list[NumberedItem] = []
        while tasks.in_flight:
            yield from tasks.next(unfinished)
        if unfinished:
            yield number, item, refuse_or_fail(item, job.options, output, Outcome.FAILED, "the workers that worked on it died")


class Tasks:
    """Those that the scheduler knows."""

    def __init__(self, client: Any, job: Job) -> None:  # noqa: ANN401 - Dask's
        from distributed import as_completed  # noqa: PLC0415

        self.client = client
        self.job = job
        self.completed = as_completed(loop=client.loop)
        self.in_flight: dict[str, list[NumberedItem]] = {}
        self.threads = 0  # of the workers, at the last count

    def submit(self, batch: list[NumberedItem], which: str = "") -> None:
        job, key = self.job, f"sframegen-{self.job.token}-{which}{batch[0][0]}"
        self.in_flight[key] = batch
        arguments = ([list(item) for _, item in batch], job.options.to_json(), job.output, job.token, job.version)
        with _reached():
            self.completed.add(self.client.submit(package_task, *arguments, key=key, pure=False))

    def fair_share(self, number: int) -> int:
        """The number of packages for one task from that one on: near the end of a run, all workers have some."""
        return (self.job.packages - number) // (SHARES_PER_THREAD * max(self.threads, 1))

    def are_enough(self) -> bool:
        with _reached():
            self.threads = sum(self.client.nthreads().values())
        return len(self.in_flight) >= max(MIN_IN_FLIGHT, IN_FLIGHT_PER_THREAD * self.threads)

    def next(self, suspects: list[NumberedItem]) -> Iterator[tuple[int, Item, Finished]]:
        """The next task that ends: its results, or suspects more."""
        from distributed import KilledWorker  # noqa: PLC0415

        future = next(self.completed)
        if future.status in LOST:  # its worker has died since, and another one does it again: it finds the result
            self.completed.add(future)
            return
        batch = self.in_flight.pop(future.key)
        if future.status == "finished":
            with _reached():
                answers = future.result()
            for (number, item), (key, outcome, reason, is_new) in zip(batch, answers, strict=True):
                yield number, item, Finished(key, Outcome(outcome), reason, is_new)
            return
        if future.status != "error":
            raise EngineError(GONE)
        error = future.exception()
        if not isinstance(error, KilledWorker):
            reason = str(error) if isinstance(error, OutputError) else f"a worker cannot work: {type(error).__name__}: {error}"
            raise EngineError(one_line(reason))
        suspects += batch


@contextmanager
def _reached() -> Iterator[None]:
    """Whatever Dask raises where its scheduler does not answer any more becomes an EngineError."""
    from distributed import CancelledError  # noqa: PLC0415
    from distributed.client import ClosedClientError  # noqa: PLC0415

    try:
        yield
    except (OSError, CancelledError, ClosedClientError) as error:
        raise EngineError(GONE) from error


# -- in a worker

_local = threading.local()  # a process for each thread, and the output directory of the run whose packages it works on


def package_task(
    batch: list[list[Any]], options: dict[str, Any], output: str, token: str, version: str
) -> list[tuple[str, str, str, bool]]:
    """Packages one after the other, in the process of this thread. Raises OutputError."""
    from distributed import get_worker  # noqa: PLC0415

    worker = get_worker()
    if version != __version__:
        raise OutputError(f"the worker {worker.address} has sframegen {__version__}, and the run is of {version}")
    if getattr(_local, "token", None) != token:
        _begin(output, token, worker)
    how = RunOptions.from_json(options)
    return [(*_one(items.item_from_json(item), how),) for item in batch]


def _one(item: Item, options: RunOptions) -> Finished:
    try:
        return cast("Finished", _local.process.work_on(item, options))
    except (LimitError, OSError) as error:
        reason = error.strerror or str(error) if isinstance(error, OSError) else str(error)
        return refuse_or_fail(item, options, _local.process.output, Outcome.FAILED, reason)


def _begin(path: str, token: str, worker: Any) -> None:  # noqa: ANN401 - Dask's
    """Open the output directory of a run, and end the process of the one before it."""
    if getattr(_local, "token", None) is not None:
        _local.token = None
        _local.process.end()
        _local.process.output.close()
    failure = f"the worker {worker.address} cannot write to {path}"
    advice = "give a directory that all workers share"
    try:
        output = OutputDirectory.opened(path)
    except OSError as error:
        raise OutputError(f"{failure} ({error.strerror}): {advice}") from error
    try:
        with output.file("run.json") as file:
            is_there = token.encode() in file.read()
    except (OSError, FormatError):
        is_there = False
    if not is_there or not os.access(".", os.W_OK, dir_fd=output.descriptor):
        output.close()
        raise OutputError(f"{failure}: {advice}")
    _local.process = PackageProcess(worker.local_directory, output)
    _local.token = token
