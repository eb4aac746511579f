from __future__ import annotations

import errno
import gc
import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from sframegen import __version__, api
from sframegen.cli.fleet import command
from sframegen.fleet import dask_engine
from sframegen.fleet.batches import BATCH_BYTES, batches
from sframegen.fleet.collecting import ParquetTable
from sframegen.fleet.dask_engine import Cluster, EngineError, OutputError, Tasks, connected, package_task
from sframegen.fleet.fleet_run import FleetRun
from sframegen.fleet.known_results import seen
from sframegen.fleet.output_directory import OutputDirectory
from sframegen.fleet.package_work import work_on
from sframegen.fleet.result_rows import Finished, Outcome, PackageRow
from sframegen.fleet.run_directory import run_directory
from sframegen.fleet.run_options import Mode, RunOptions
from sframegen.fleet.sources.items import Item, ItemKind
from tests import ROOT
from tests.fleet.made_packages import programs, served, write_tar

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.peers import Compiler

pytestmark = [pytest.mark.once, pytest.mark.full]

PACKAGES = 12
TIMES = ("seconds", "seconds_fetching", "seconds_reading", "seconds_converting", "seconds_writing")
OF_THE_PROCESS = ("peak_memory_bytes", "worker")
ONE_WORKER = Cluster(None, 1)


@pytest.fixture(autouse=True)
def _extra() -> None:
    pytest.importorskip("distributed")
    pytest.importorskip("pyarrow")


@pytest.fixture(scope="session")
def some_programs(compile_c: Compiler) -> list[bytes]:
    return programs(compile_c, 3)


@pytest.fixture
def pool(tmp_path: Path, some_programs: list[bytes]) -> Path:
    for number in range(PACKAGES):
        files = {f"usr/bin/{number}-{n}": content for n, content in enumerate(some_programs[: number % 3 + 1])}
        write_tar(tmp_path / f"pool/{number:02}.tar", {**files, "README": b"x"})
    return tmp_path / "pool"


class Watched:
    def __init__(self) -> None:
        self.findings: list[str] = []
        self.steps: list[tuple[int, int]] = []

    def finding(self, message: str) -> None:
        self.findings.append(message)

    def progress(self, done: int, total: int) -> None:
        self.steps.append((done, total))


def run(source: object, out: Path, options: RunOptions | None = None, cluster: Cluster = ONE_WORKER) -> tuple[FleetRun, Watched]:
    watched = Watched()
    fleet = FleetRun([str(source)], str(out), options or RunOptions(), watched.finding, watched.progress)
    fleet.run(cluster)
    return fleet, watched


def rows(out: Path, name: str) -> list[dict[str, Any]]:
    """A table without times."""
    from pyarrow import parquet  # noqa: PLC0415

    table = parquet.read_table(out / f"{name}.parquet").to_pylist()
    return [{key: value for key, value in row.items() if key not in (*TIMES, *OF_THE_PROCESS)} for row in table]


def written(out: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in out.glob("results/*/*.json")}


def test_tables_are_the_results_in_the_order_of_the_packages(pool: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    fleet, watched = run(pool, out, cluster=Cluster(None, 2))
    assert [row["package"] for row in rows(out, "packages")] == [f"{number:02}.tar" for number in range(PACKAGES)]
    assert [row["path"] for row in rows(out, "files")][:3] == ["usr/bin/0-0", "usr/bin/1-0", "usr/bin/1-1"]
    with OutputDirectory.opened(str(out)) as output:
        results = [output.read_result(key) for key in output.keys()]  # noqa: SIM118
    from pyarrow import parquet  # noqa: PLC0415

    files = parquet.read_table(out / "files.parquet").to_pylist()
    assert [row | {"left_out": dict(row["left_out"]), "no_cfi": dict(row["no_cfi"])} for row in files] == [
        asdict(row) for result in results for row in result.files
    ]
    assert json.loads((out / "packages.json").read_text()) == [asdict(result.package) for result in results]
    summary = json.loads((out / "summary.json").read_text())
    section = (ROOT / "docs/json.md").read_text().partition("## fleet run\n")[2].partition("\n## ")[0]
    assert list(summary) == re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    assert summary["packages"] == {"added": PACKAGES}
    assert summary["file_sums"]["code_bytes"] == sum(row.code_bytes for result in results for row in result.files)
    assert (fleet.done, watched.findings, watched.steps[-1]) == (PACKAGES, [], (PACKAGES, PACKAGES))
    assert json.loads((out / "run.json").read_text())["ended"]


def test_a_survey_predicts_what_rewriting_writes(pool: Path, tmp_path: Path, some_programs: list[bytes]) -> None:
    run(pool, tmp_path / "survey")
    run(pool, tmp_path / "rewrite", RunOptions(Mode.REWRITE))
    assert rows(tmp_path / "survey", "files") == rows(tmp_path / "rewrite", "files")
    assert not (tmp_path / "survey/packages").exists()
    new = tmp_path / "rewrite/packages/02.tar"
    assert new.stat().st_size == rows(tmp_path / "rewrite", "packages")[2]["new_package_bytes"]
    shutil.unpack_archive(new, tmp_path / "unpacked", filter="data")
    program = tmp_path / "unpacked/usr/bin/2-1"
    assert subprocess.run([program], check=False).returncode == 1
    (tmp_path / "given").write_bytes(some_programs[1])
    api.add_section(tmp_path / "given", replace=True)
    assert program.read_bytes() == (tmp_path / "given").read_bytes()


def test_detached_sections_are_a_store(pool: Path, tmp_path: Path) -> None:
    run(pool, tmp_path / "out", RunOptions(Mode.DETACHED))
    build_ids = {row["build_id"] for row in rows(tmp_path / "out", "files")}
    stored = {path.parent.name + path.stem for path in (tmp_path / "out/sections/.build-id").rglob("*.sframe")}
    assert stored == build_ids
    assert {row["outcome"] for row in rows(tmp_path / "out", "files")} == {"added"}


def test_loose_files_of_a_directory_are_one_package(tmp_path: Path, some_programs: list[bytes]) -> None:
    (tmp_path / "bin").mkdir()
    for name, content in (("a", some_programs[0]), ("b", some_programs[1]), ("script", b"#!/bin/sh\n")):
        (tmp_path / "bin" / name).write_bytes(content)
        (tmp_path / "bin" / name).chmod(0o755)
    run(tmp_path / "bin", tmp_path / "out", RunOptions(Mode.REWRITE))
    (package,) = rows(tmp_path / "out", "packages")
    assert (package["kind"], package["elf_files"], package["outcome"]) == ("directory", 2, "added")
    new = tmp_path / "out/packages/bin"
    assert {path.name for path in new.iterdir()} == {"a", "b"}
    assert subprocess.run([new / "a"], check=False).returncode == 1
    assert (tmp_path / "bin/a").read_bytes() == some_programs[0]


def test_nothing_that_is_done_is_done_again(pool: Path, tmp_path: Path, some_programs: list[bytes]) -> None:
    out = tmp_path / "out"
    run(pool, out)
    first, table = written(out), rows(out, "files")
    fleet, _ = run(pool, out)
    assert (written(out), rows(out, "files"), fleet.earlier) == (first, table, PACKAGES)

    os.utime(pool / "00.tar")  # the same content
    write_tar(pool / "01.tar", {"usr/bin/new": some_programs[2]})
    (pool / "02.tar").unlink()
    fleet, _ = run(pool, out)
    again = written(out)
    assert {name: again[name] for name in first} == first
    assert len(again) == len(first) + 1
    assert fleet.earlier == PACKAGES - 2
    assert [row["package"] for row in rows(out, "packages")] == ["00.tar", "01.tar", *(f"{n:02}.tar" for n in range(3, PACKAGES))]

    fleet, _ = run(pool, out, RunOptions(Mode.REWRITE))
    assert fleet.earlier == 0
    (out / "packages/05.tar").unlink()
    fleet, _ = run(pool, out, RunOptions(Mode.REWRITE))
    assert fleet.earlier == PACKAGES - 2
    assert (out / "packages/05.tar").exists()


@pytest.mark.parametrize("damage", [b"", b"{", b'{"package": {}, "files": []}', b"[" * 100_000])
def test_a_damaged_result_is_made_again(pool: Path, tmp_path: Path, damage: bytes) -> None:
    out = tmp_path / "out"
    run(pool, out)
    table = rows(out, "files")
    damaged = sorted(out.glob("results/*/*.json"))[3]
    damaged.write_bytes(damage)
    for path in out.glob("seen/*/*.json"):
        path.write_bytes(damage)
        break
    fleet, _ = run(pool, out)
    assert rows(out, "files") == table
    assert PACKAGES - 2 <= fleet.earlier <= PACKAGES - 1


def test_a_failed_package_is_tried_again(pool: Path, tmp_path: Path) -> None:
    out, listing = tmp_path / "out", tmp_path / "list"
    with served(pool) as (url, requests):
        listing.write_text("".join(f"{url}/{number:02}.tar\n" for number in range(PACKAGES)))
        (pool / "03.tar").rename(tmp_path / "away")
        _, watched = run(listing, out)
        (line,) = watched.findings
        assert "/03.tar: failed: cannot be fetched: " in line
        assert len(rows(out, "packages")) == PACKAGES
        (tmp_path / "away").rename(pool / "03.tar")
        requests.clear()
        fleet, watched = run(listing, out)
    assert (watched.findings, requests, fleet.earlier) == ([], ["/03.tar"], PACKAGES - 1)
    assert {row["outcome"] for row in rows(out, "packages")} == {"added"}
    assert len(written(out)) == PACKAGES  # that of the failure is gone


def test_hostile_packages_cost_a_line_each(pool: Path, tmp_path: Path) -> None:
    (pool / "03.tar").write_bytes((pool / "03.tar").read_bytes()[:2000])
    write_tar(pool / "04.tar", {"../../outside": b"x"})
    (pool / "05.tar").write_bytes(b"no archive" * 1000)
    listing = tmp_path / "list"
    names = [f"{pool}/{number:02}.tar" for number in range(PACKAGES)]
    listing.write_text("\n".join([*names, str(pool), f"{pool}/nothing.tar", "none://host/x.tar", "http://[", "/dev/zero"]))
    _, watched = run(listing, tmp_path / "out", RunOptions(Mode.REWRITE))
    table = {row["package"].rpartition("/")[2]: row for row in rows(tmp_path / "out", "packages")}
    refused = {name for name, row in table.items() if row["outcome"] == "refused"}
    failed = {name for name, row in table.items() if row["outcome"] == "failed"}
    assert refused | failed == {"03.tar", "04.tar", "05.tar", "pool", "nothing.tar", "x.tar", "[", "zero"} & set(table)
    assert refused >= {"03.tar", "04.tar", "05.tar", "zero"}
    assert len(watched.findings) == len(refused | failed)
    assert all("\n" not in line and "Traceback" not in line for line in watched.findings)
    assert sum(row["outcome"] == "added" for row in table.values()) == PACKAGES - 3
    assert not (tmp_path / "outside").exists()


def test_a_package_that_kills_its_workers_is_a_line(pool: Path, tmp_path: Path) -> None:
    import psutil  # noqa: PLC0415 - of Dask

    def kill(path: str, port: int) -> bool:
        if path == "/03.tar":
            # A client that has died already has no number, and another worker is then its package's next.
            clients = {one.pid for one in psutil.net_connections("tcp") if one.laddr and one.laddr.port == port and one.raddr}
            for client in clients - {None, os.getpid()}:
                worker = psutil.Process(client).parent()
                # Dask calls its processes so where there is a library for that.
                if worker is not None and re.search("spawn_main|^dask worker", " ".join(worker.cmdline())):
                    worker.kill()
        return path != "/03.tar"

    with served(pool, kill) as (url, requests):
        (tmp_path / "list").write_text("".join(f"{url}/{number:02}.tar\n" for number in range(PACKAGES)))
        _, watched = run(tmp_path / "list", tmp_path / "out", cluster=Cluster(None, 2))
    (line,) = watched.findings
    assert line.endswith("/03.tar: failed: the workers that worked on it died")
    assert requests.count("/03.tar") > 1
    assert sum(row["outcome"] == "added" for row in rows(tmp_path / "out", "packages")) == PACKAGES - 1


def test_a_worker_that_dask_has_given_up_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that a package killed while its nanny still waited for word of its start."""
    import dask  # noqa: PLC0415

    monkeypatch.setattr(dask_engine, "COMPLETE_SECONDS", 0.1)
    with dask.config.set({"distributed.deploy.lost-worker-timeout": "100ms"}), connected(ONE_WORKER) as client:
        client.wait_for_workers(1)
        [nanny] = client.cluster.workers.values()
        client.sync(nanny.close)
        assert client.submit(abs, -1).result(timeout=120) == 1


@pytest.mark.sampled
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_continues(pool: Path, tmp_path: Path, number: signal.Signals) -> None:
    import psutil  # noqa: PLC0415 - of Dask

    running: list[subprocess.Popen[str]] = []
    others: list[psutil.Process] = []

    def interrupt(path: str, _: int) -> None:
        if path == "/07.tar" and running[0].poll() is None:
            others.extend(psutil.Process(running[0].pid).children(recursive=True))
            running[0].send_signal(number)
            running[0].wait()

    with served(pool, interrupt) as (url, requests):
        (tmp_path / "list").write_text("".join(f"{url}/{number:02}.tar\n" for number in range(PACKAGES)))
        program = [sys.executable, "-m", "sframegen", "fleet", "run"]
        command = [*program, str(tmp_path / "list"), "--output", str(tmp_path / "out"), "--jobs", "1"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            running.append(process)
            _, errors = process.communicate()
        if number == signal.SIGKILL:
            assert process.returncode == -signal.SIGKILL
        else:
            assert process.returncode == 128 + number
            (line,) = errors.splitlines()
            assert line.endswith(f"packages of {PACKAGES} done; the same command does the others")
        psutil.wait_procs(others)  # the last package's process ends when it sees that its worker has
        done = {path.name for path in (tmp_path / "out/results").rglob("*.json")}
        requests.clear()
        fleet, watched = run(tmp_path / "list", tmp_path / "out")
        assert (fleet.earlier, watched.findings) == (len(done), [])
        assert len(requests) == PACKAGES - len(done)
        run(tmp_path / "list", tmp_path / "whole")
    for name in ("files", "packages"):
        assert rows(tmp_path / "out", name) == rows(tmp_path / "whole", name)


@contextmanager
def dask_program(*arguments: str, says: str) -> Iterator[str]:
    """A scheduler or worker of its own; the last word of the line that says it is ready."""
    command = [sys.executable, "-m", "dask", *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            yield next(line.split()[-1] for line in process.stderr if says in line)
        finally:
            process.kill()
            process.stderr.read()


def test_a_scheduler_and_workers_of_their_own(pool: Path, tmp_path: Path) -> None:
    local = str(tmp_path / "scratch")
    with (
        dask_program("scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", says="Scheduler at") as address,
        dask_program("worker", address, "--nthreads", "2", "--no-dashboard", "--local-directory", local, says="Registered to"),
    ):
        fleet, watched = run(pool, tmp_path / "out", cluster=Cluster(address))
        assert (fleet.done, watched.findings) == (PACKAGES, [])
    run(pool, tmp_path / "local")
    assert rows(tmp_path / "out", "files") == rows(tmp_path / "local", "files")


def test_a_scheduler_without_workers_is_told_and_waited_for(pool: Path, tmp_path: Path) -> None:
    started: list[str] = []
    with (
        dask_program("scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", says="Scheduler at") as address,
        ExitStack() as workers,
    ):

        def start_worker(line: str) -> None:
            started.append(line)
            options = "--nthreads", "1", "--no-dashboard", "--local-directory", str(tmp_path / "scratch")
            workers.enter_context(dask_program("worker", address, *options, says="Registered to"))

        fleet = FleetRun([str(pool)], str(tmp_path / "out"), RunOptions(), pytest.fail, None)
        fleet.note = start_worker
        fleet.run(Cluster(address))
        assert fleet.done == PACKAGES
    assert started == [f"{address}: this scheduler has no workers yet; the run waits for some: `dask worker {address}`"]


def test_one_run_at_a_time(pool: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with (
        OutputDirectory.opened(str(out), make=True) as output,
        output.locked(),
        pytest.raises(BlockingIOError, match="another run writes there"),
    ):
        run(pool, out)
    assert not (out / "run.json").exists()


def test_a_worker_without_the_output_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import distributed  # noqa: PLC0415

    class Worker:
        address = "tcp://there:1"
        local_directory = str(tmp_path)

    monkeypatch.setattr(distributed, "get_worker", Worker)
    options = RunOptions().to_json()
    with pytest.raises(
        OutputError,
        match=r"tcp://there:1 cannot write to .*none \(No such file or directory\): give a directory that all workers share",
    ):
        package_task([["x", "/x"]], options, str(tmp_path / "none"), "token", __version__)
    with pytest.raises(OutputError, match=r"and the run is of 0\.0"):
        package_task([["x", "/x"]], options, str(tmp_path), "token", "0.0")


def test_results_depend_on_all_keywords_of_add_section() -> None:
    forced = RunOptions(adding={"force": True})
    assert RunOptions.from_json(json.loads(json.dumps(forced.to_json()))) == forced
    assert forced.key_of("x") != RunOptions(adding={"force": False}).key_of("x") == RunOptions().key_of("x")
    given = {"version": 3, "optimize": "fast", "min_kernel": None, "synthesize": False}  # as the command line gives them
    assert RunOptions(adding=given).key_of("x") == RunOptions().key_of("x") != RunOptions(adding={"version": 2}).key_of("x")


def test_a_result_that_is_lost_with_its_worker_is_waited_for() -> None:
    """The worker held it, and died before the client had it: Dask makes it again."""

    class Future:
        key = "sframegen-token-0"
        states = iter(["lost", "pending", "finished", "finished"])

        @property
        def status(self) -> str:
            return next(self.states)

        def result(self) -> list[tuple[str, str, str, bool]]:
            return [("ab", "added", "", False)]

    class Completed(list[Future]):
        def __next__(self) -> Future:
            return self.pop(0)

        def add(self, future: Future) -> None:
            self.append(future)

    tasks = Tasks.__new__(Tasks)
    tasks.completed, tasks.in_flight = Completed([Future()]), {Future.key: [(0, Item("p.tar", "/p.tar"))]}
    assert [*tasks.next([]), *tasks.next([])] == []
    assert list(tasks.next([])) == [(0, Item("p.tar", "/p.tar"), Finished("ab", Outcome.ADDED, "", is_new=False))]
    assert tasks.in_flight == {}


def test_a_mistyped_source_leaves_the_tables(pool: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(pool, out)
    before = {path: path.read_bytes() for path in out.iterdir() if path.is_file()}
    watched = Watched()
    for sources in (["poool"], [str(pool), "poool"]):
        assert FleetRun(sources, str(out), RunOptions(), watched.finding, None).run(ONE_WORKER) is None
    assert watched.findings == ["poool: No such file or directory"] * 2
    assert {path: path.read_bytes() for path in out.iterdir() if path.is_file()} == before


@pytest.mark.parametrize("kind", [ItemKind.FILE, ItemKind.LOOSE])
def test_another_content_than_the_client_saw_is_not_converted(
    pool: Path, tmp_path: Path, some_programs: list[bytes], kind: ItemKind
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/p").write_bytes(some_programs[0])
    place = {ItemKind.FILE: pool / "01.tar", ItemKind.LOOSE: tmp_path / "bin"}[kind]
    item, options = Item("x", str(place), kind), RunOptions(Mode.REWRITE)
    here = seen(item, options)
    changed = place if kind is ItemKind.FILE else place / "p"
    with OutputDirectory.opened(str(tmp_path / "out"), make=True) as output:
        assert work_on(item._replace(state=here.state), options, output).outcome is Outcome.ADDED
        os.utime(changed, ns=(0, 0))
        with pytest.raises(OSError, match="another size or time than where the run was started"):
            work_on(item._replace(state=here.state), options, output)
        changed.unlink()
        with pytest.raises(OSError, match="all workers need the same sources" if kind is ItemKind.FILE else "another size"):
            work_on(item._replace(state=here.state), options, output)


def test_a_relative_source_is_the_same_for_each_worker(pool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker's working directory has another file of that name."""
    write_tar(tmp_path / "there/pool/00.tar", {"README": b"x"})
    with (
        dask_program("scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", says="Scheduler at") as address,
        monkeypatch.context() as patch,
    ):
        patch.chdir(tmp_path / "there")
        arguments = ("worker", address, "--nthreads", "1", "--no-dashboard", "--local-directory", str(tmp_path / "scratch"))
        with dask_program(*arguments, says="Registered to"):
            patch.chdir(pool.parent)
            _, watched = run("pool/00.tar", tmp_path / "out", cluster=Cluster(address))
    assert watched.findings == []
    (row,) = rows(tmp_path / "out", "packages")
    assert (row["outcome"], row["source"]) == ("added", str(pool / "00.tar"))


def test_a_scheduler_that_is_gone_is_one_line(pool: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    here = ["--host", "127.0.0.1", "--no-dashboard"]
    with (
        served(pool, lambda path, _: scheduler.kill() if path == "/07.tar" else None) as (url, _),
        subprocess.Popen(
            [sys.executable, "-m", "dask", "scheduler", "--port", "0", *here], stderr=subprocess.PIPE, text=True
        ) as scheduler,
    ):
        (tmp_path / "list").write_text("".join(f"{url}/{number:02}.tar\n" for number in range(PACKAGES)))
        assert scheduler.stderr is not None
        address = next(line.split()[-1] for line in scheduler.stderr if "Scheduler at" in line)
        local = ["--nthreads", "1", "--local-directory", str(tmp_path / "scratch")]
        with (
            dask_program("worker", address, *local, *here, says="Registered to"),
            pytest.raises(EngineError, match=f"^{re.escape(dask_engine.GONE)}$"),
        ):
            run(tmp_path / "list", out, cluster=Cluster(address))
    assert list(out.glob("results/*/*.json"))
    _, watched = run(pool, out)
    assert watched.findings == []


@pytest.mark.parametrize("listens", [False, True])
def test_an_address_without_a_scheduler_is_one_line(
    pool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, listens: bool
) -> None:
    """Nobody listens there, or what listens says nothing."""
    monkeypatch.setattr(dask_engine, "CONNECT_SECONDS", 0.2)
    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        if listens:
            port.listen()
        address = f"tcp://127.0.0.1:{port.getsockname()[1]}"
        done = CliRunner().invoke(command, ["run", str(pool), "-o", str(tmp_path / "out"), "--scheduler", address])
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == f"sframegen: {address}: {dask_engine.NO_ANSWER}\n"


@pytest.mark.parametrize("answer", [b"HTTP/1.0 400 Bad Request\r\n\r\n", b"SSH-2.0-OpenSSH_9.2p1\r\n"])
def test_another_server_is_not_a_scheduler(answer: bytes) -> None:
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
        with pytest.raises(EngineError) as caught, connected(Cluster(address)):
            pass
        server.join()
    assert str(caught.value) == f"{address}: {dask_engine.NOT_ONE}"


def test_tls_without_certificates_is_one_line() -> None:
    with pytest.raises(EngineError, match="needs certificates"), connected(Cluster("tls://127.0.0.1:1")):
        pass


def test_a_client_that_dask_has_closed_is_one_line() -> None:
    """As it does when the scheduler has been away for some time."""
    from distributed.client import ClosedClientError  # noqa: PLC0415

    class Client:
        def nthreads(self) -> dict[str, int]:
            raise ClosedClientError("Client is closed. Can't send update-graph message.")

    tasks = Tasks.__new__(Tasks)
    tasks.client = Client()
    with pytest.raises(EngineError, match=f"^{re.escape(dask_engine.GONE)}$"):
        tasks.are_enough()


def test_workers_that_die_while_the_cluster_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    import distributed  # noqa: PLC0415

    def dead(**_: object) -> None:
        raise RuntimeError("Nanny failed to start.")

    monkeypatch.setattr(distributed, "LocalCluster", dead)
    with pytest.raises(EngineError, match="workers died while they started"), connected(ONE_WORKER):
        pass


def test_directories_of_killed_runs_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    program = (
        "import os; from sframegen.fleet.run_directory import run_directory as r\nwith r() as d: open(d + '/x', 'x'); os._exit(1)"
    )
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    assert subprocess.run([sys.executable, "-P", "-c", program], env=environment, check=False).returncode == 1
    (left,) = tmp_path.iterdir()
    (left / "deep").mkdir()
    (left / "deep/file").touch()
    (tmp_path / "kept").mkdir()
    (tmp_path / "sframegen-fleet-link").symlink_to(tmp_path / "kept")
    with run_directory() as first, run_directory() as second:
        assert {path.name for path in tmp_path.iterdir()} == {
            "kept",
            "sframegen-fleet-link",
            *(os.path.basename(path) for path in (first, second)),  # noqa: PTH119
        }
    assert {path.name for path in tmp_path.iterdir()} == {"kept", "sframegen-fleet-link"}


def test_small_packages_share_a_task() -> None:
    small, large, unknown = Item("s", "/s", size=1000), Item("l", "/l", size=BATCH_BYTES + 1), Item("u", "http://u")
    given = list(enumerate([small] * 100 + [large, small, small, unknown, small, large]))
    assert [len(batch) for batch in batches(given, lambda _: 1000)] == [64, 36, 1, 2, 1, 1, 1]
    assert [one for batch in batches(given, lambda _: 1000) for one in batch] == given
    assert {len(batch) for batch in batches(given, lambda _: 0)} == {1}


def test_the_outcomes_of_a_package(tmp_path: Path, some_programs: list[bytes]) -> None:
    write_tar(tmp_path / "pool/none.tar", {"README": b"x"})
    (tmp_path / "given").write_bytes(some_programs[0])
    api.add_section(tmp_path / "given")
    write_tar(tmp_path / "pool/same.tar", {"p": (tmp_path / "given").read_bytes()})
    damaged = some_programs[0][:-100]  # the section header table is at the end
    write_tar(tmp_path / "pool/small.tar", {"p": damaged})
    run(tmp_path / "pool", tmp_path / "out", RunOptions(Mode.REWRITE))
    table = {row["package"]: row for row in rows(tmp_path / "out", "packages")}
    assert {name: row["outcome"] for name, row in table.items()} == {
        "none.tar": Outcome.NOTHING,
        "same.tar": Outcome.UNCHANGED,
        "small.tar": Outcome.NOTHING,
    }
    files = {row["package"]: row for row in rows(tmp_path / "out", "files")}
    assert files["small.tar"]["outcome"] == Outcome.REFUSED
    assert files["small.tar"]["reason"]
    assert list((tmp_path / "out/packages").iterdir()) == []


def test_a_full_disk_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """pyarrow's writer would try again, and print what it cannot raise."""

    class Full(io.BytesIO):
        def write(self, data: Any, /) -> int:
            if self.tell() > 100:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().write(data)

    said: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", said.append)
    with pytest.raises(OSError, match="No space left"), ParquetTable(PackageRow, Full()) as table:
        table.add(PackageRow("x", "x"))
    del table
    gc.collect()
    assert said == []
