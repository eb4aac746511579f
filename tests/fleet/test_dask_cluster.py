"""Runs on a cluster: a scheduler of Dask and its workers, as users start them."""

from __future__ import annotations

import json
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from sframegen import __version__
from sframegen.cli.fleet import command
from sframegen.fleet import dask_cluster
from sframegen.fleet.dask_cluster import DaskCluster, is_this_machine, only_plain_pickles, package_task
from sframegen.fleet.fleet_run import FleetRun
from sframegen.fleet.output_directory import OutputDirectory
from sframegen.fleet.result_rows import Finished, RowOutcome
from sframegen.fleet.run_options import EngineError, Job, RunOptions
from sframegen.fleet.sources.items import Item
from tests.fleet.runs import PACKAGES, Watched, list_of, processes_below, rows, run, served, sockets_of

pytest.importorskip("distributed")
pytest.importorskip("pyarrow")
pytestmark = pytest.mark.full

KEY = "0" * 64
HERE = ("--host", "127.0.0.1", "--no-dashboard")
EVIL = """
import os, pathlib
from sframegen.fleet import dask_cluster

class Evil:
    def __reduce__(self):
        return os.mkdir, ({made!r},)

def answer(*arguments):
    pathlib.Path({made!r}).with_name("asked").touch()
    {does}

dask_cluster.package_task.__code__ = (lambda *arguments: __import__("evil").answer(*arguments)).__code__
"""


@contextmanager
def dask_program(*arguments: str, ready: str, started: list[subprocess.Popen[str]] | None = None) -> Iterator[str]:
    """A scheduler or worker of its own; the last word of the line that it prints when it is ready."""
    command = [sys.executable, "-m", "dask", *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        if started is not None:
            started.append(process)
        try:
            yield next(line.split()[-1] for line in process.stderr if ready in line)
        finally:
            process.kill()
            process.stderr.read()


scheduler = partial(dask_program, "scheduler", "--port", "0", *HERE, ready="Scheduler at")


def worker(address: str, directory: Path, *more: str, **others: Any) -> AbstractContextManager[str]:
    local = ("--nthreads", "1", "--local-directory", str(directory / "scratch"), *more)
    return dask_program("worker", address, *local, *HERE, ready="Registered to", **others)


def on_cluster(source: object, out: Path, address: str) -> tuple[FleetRun, Watched]:
    return run(source, out, engine=partial(DaskCluster, address=address))


def test_a_scheduler_without_workers_is_told_and_waited_for(pool: Path, tmp_path: Path) -> None:
    started: list[str] = []
    with scheduler() as address, ExitStack() as workers:

        def start_worker(line: str) -> None:
            started.append(line)
            workers.enter_context(worker(address, tmp_path))

        fleet = FleetRun([str(pool)], str(tmp_path / "out"), RunOptions(), pytest.fail, None)
        fleet.note = start_worker
        fleet.run(partial(DaskCluster, address=address))
        assert fleet.done == PACKAGES
    run(pool, tmp_path / "local")
    assert rows(tmp_path / "out", "files") == rows(tmp_path / "local", "files")
    assert started == [f"{address}: this scheduler has no workers yet; the run waits for some: `dask worker {address}`"]


def test_a_package_that_kills_its_workers_is_a_line(pool: Path, tmp_path: Path) -> None:
    """The worker's program is that above the one that fetches the package, whichever of the workers it is."""
    nannies: list[subprocess.Popen[str]] = []

    def kill(path: str, port: int) -> bool:
        if path == "/03.tar":
            for nanny in nannies:
                for pid in processes_below(nanny.pid):
                    if any(has_port(child, port) for child in processes_below(pid)):
                        os.kill(pid, signal.SIGKILL)
        return path != "/03.tar"

    with (
        served(pool, kill) as (url, requests),
        scheduler() as address,
        worker(address, tmp_path, "--nworkers", "2", started=nannies),
    ):
        _, watched = on_cluster(list_of(url, tmp_path), tmp_path / "out", address)
    (line,) = watched.findings
    assert line.endswith("/03.tar: failed: the workers that worked on it died")
    assert requests.count("/03.tar") > 1
    assert sum(row["outcome"] == "added" for row in rows(tmp_path / "out", "packages")) == PACKAGES - 1


def has_port(pid: int, port: int) -> bool:
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return bool({line[9] for line in lines if int(line[1].rpartition(":")[2], 16) == port} & sockets_of([pid]))


def test_a_worker_without_the_output_cannot_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import distributed  # noqa: PLC0415

    class Worker:
        address = "tcp://there:1"
        local_directory = str(tmp_path)

    monkeypatch.setattr(distributed, "get_worker", Worker)
    options, item = RunOptions().to_json(), list(Item("x", "/x"))
    none = f"{tmp_path}/none (No such file or directory)"
    why = f"the worker tcp://there:1 cannot write to {none}: give a directory that all workers share"
    assert package_task(item, options, str(tmp_path / "none"), "token", __version__) == json.dumps(("cannot work", why))
    why = f"the worker tcp://there:1 has sframegen {__version__}, and the run is of 0.0"
    for their_options in (options, {"unknown": True}):  # versions are compared first, because each has its own options
        assert package_task(item, their_options, str(tmp_path), "token", "0.0") == json.dumps(("cannot work", why))


class Future:
    key = "key"

    def __init__(self, answer: object, *states: str) -> None:
        self._answer = answer
        self._states = [*states, "finished", "finished"]

    @property
    def status(self) -> str:
        return self._states.pop(0)

    def result(self) -> object:
        return self._answer


class Completed(list[Future]):
    def __next__(self) -> Future:
        return self.pop(0)

    def add(self, future: Future) -> None:
        self.append(future)


@contextmanager
def connected(tmp_path: Path, address: str) -> Iterator[None]:
    with (
        OutputDirectory.opened(str(tmp_path / "out"), make=True) as output,
        DaskCluster(Job(RunOptions(), output, "token", pytest.fail), address),
    ):
        yield


def cluster_with(tmp_path: Path, future: Future) -> DaskCluster:
    with OutputDirectory.opened(str(tmp_path), make=True) as output:
        cluster = DaskCluster(Job(RunOptions(), output, "token", pytest.fail), "tcp://127.0.0.1:1")
    cluster._completed, cluster._in_flight = Completed([future]), {future.key: (0, Item("p.tar", "/p.tar"))}
    return cluster


def test_a_result_that_is_lost_with_its_worker_is_waited_for(tmp_path: Path) -> None:
    """The worker held it, and died before the client had it: Dask makes it again."""
    cluster = cluster_with(tmp_path, Future(json.dumps(("finished", (KEY, "added", "", False))), "lost", "pending"))
    assert [*cluster._take_completed([]), *cluster._take_completed([])] == []
    assert list(cluster._take_completed([])) == [(0, Item("p.tar", "/p.tar"), Finished(KEY, RowOutcome.ADDED, "", is_new=False))]
    assert cluster._in_flight == {}


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (("cannot work", "no\ndisk"), r"no\ndisk"),
        (("finished", (KEY, "added", "")), dask_cluster.INVALID_ANSWER),
        (("finished", ("../" + KEY[3:], "added", "", True)), dask_cluster.INVALID_ANSWER),
        (("finished", (KEY, "done", "", True)), dask_cluster.INVALID_ANSWER),
        (("finished", (KEY, "added", 1, True)), dask_cluster.INVALID_ANSWER),
        (os.system, dask_cluster.INVALID_ANSWER),
    ],
)
def test_answers_of_workers_are_checked(tmp_path: Path, answer: object, why: str) -> None:
    with pytest.raises(EngineError) as caught:
        list(cluster_with(tmp_path, Future(answer if callable(answer) else json.dumps(answer)))._take_completed([]))
    assert str(caught.value) == why


@pytest.mark.parametrize(
    ("does", "why"),
    [
        ("return Evil()", f"{dask_cluster.INVALID_ANSWER}|{re.escape(dask_cluster.CONNECTION_LOST)}"),
        ("raise OSError('what Dask pickles, with its traceback')", re.escape(dask_cluster.WORKER_FAILED)),
    ],
)
def test_an_answer_that_would_run_something_here(pool: Path, tmp_path: Path, does: str, why: str) -> None:
    """Whoever reaches the scheduler can be a worker of it: this one answers with a pickle that makes a directory."""
    (tmp_path / "evil.py").write_text(EVIL.format(made=str(tmp_path / "made"), does=does))
    with (
        scheduler() as address,
        worker(address, tmp_path, "--preload", str(tmp_path / "evil.py"), "--no-nanny"),
        pytest.raises(EngineError, match=f"^({why})$"),
    ):
        on_cluster(pool, tmp_path / "out", address)
    assert (tmp_path / "asked").exists()
    assert not (tmp_path / "made").exists()


def test_plain_pickles() -> None:
    plain = [{"a": (1, 2.0, b"x", None, True)}, {1}, bytearray(b"y")]
    with only_plain_pickles():
        assert [pickle.loads(pickle.dumps(one)) for one in plain] == plain
        for loads in (pickle.loads, pickle._loads):  # type: ignore[attr-defined] # in C, and in Python
            with pytest.raises(pickle.PickleError, match="a pickle of the cluster names"):
                loads(pickle.dumps(os.getpid))
    assert pickle.loads(pickle.dumps(os.getpid)) is os.getpid


@pytest.mark.parametrize(
    ("host", "is_ours"),
    [("127.0.0.1", True), ("127.8.0.1", True), ("[::1]", True), ("localhost", True), ("192.0.2.1", False), ("no.invalid", False)],
)
def test_which_addresses_are_this_machine(host: str, *, is_ours: bool) -> None:
    assert is_this_machine(f"tcp://{host}:8786") is is_ours


def test_a_scheduler_that_is_gone_is_one_line(pool: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    schedulers: list[subprocess.Popen[str]] = []
    with (
        served(pool, lambda path, _: schedulers[0].kill() if path == "/07.tar" else None) as (url, _),
        scheduler(started=schedulers) as address,
        worker(address, tmp_path),
        pytest.raises(EngineError, match=f"^{re.escape(dask_cluster.CONNECTION_LOST)}$"),
    ):
        on_cluster(list_of(url, tmp_path), out, address)
    assert list(out.glob("results/*/*.json"))
    _, watched = run(pool, out)
    assert watched.findings == []


@pytest.mark.parametrize("listens", [False, True])
def test_an_address_without_a_scheduler_is_one_line(
    pool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, listens: bool
) -> None:
    monkeypatch.setattr(dask_cluster, "CONNECT_SECONDS", 0.2)
    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        if listens:
            port.listen()
        address = f"tcp://127.0.0.1:{port.getsockname()[1]}"
        done = CliRunner().invoke(command, ["run", str(pool), "-o", str(tmp_path / "out"), "--scheduler", address])
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == f"sframegen: {address}: {dask_cluster.NO_SCHEDULER}\n"


@pytest.mark.parametrize("answer", [b"HTTP/1.0 400 Bad Request\r\n\r\n", b"SSH-2.0-OpenSSH_9.2p1\r\n"])
def test_another_server_is_not_a_scheduler(tmp_path: Path, answer: bytes) -> None:
    """Dask takes the first bytes for a length, here of exabytes."""
    with socket.create_server(("127.0.0.1", 0)) as port:

        def serve() -> None:
            connection, _ = port.accept()
            with connection, suppress(OSError):
                connection.sendall(answer)
                while connection.recv(4096):
                    pass

        server = threading.Thread(target=serve)
        server.start()
        address = f"tcp://127.0.0.1:{port.getsockname()[1]}"
        with pytest.raises(EngineError) as caught, connected(tmp_path, address):
            pass
        server.join()
    assert str(caught.value) == f"{address}: {dask_cluster.OTHER_SERVICE}"
    with pytest.raises(EngineError, match="needs certificates"), connected(tmp_path, "tls://127.0.0.1:1"):
        pass


def test_a_client_that_dask_has_closed_is_one_line(tmp_path: Path) -> None:
    from distributed.client import ClosedClientError  # noqa: PLC0415

    class Client:
        def nthreads(self) -> dict[str, int]:
            raise ClosedClientError("Client is closed. Can't send update-graph message.")

    cluster = cluster_with(tmp_path, Future(None))
    cluster._client = Client()
    with pytest.raises(EngineError, match=f"^{re.escape(dask_cluster.CONNECTION_LOST)}$"):
        cluster._count_threads()
