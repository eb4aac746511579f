"""Packages of a few small programs, a server that gives them out, runs, and what these leave in their output directory."""

from __future__ import annotations

import io
import os
import select
import tarfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from sframegen.fleet.fleet_run import FleetRun
from sframegen.fleet.one_machine import OneMachine
from sframegen.fleet.run_options import RunOptions
from tests.support.peers import Compiler

PACKAGES = 12  # of the fixture `pool`
TIMES = ("seconds", "seconds_fetching", "seconds_reading", "seconds_converting", "seconds_writing")
OF_THE_PROCESS = ("peak_memory_bytes", "worker")
ONE_PROCESS = partial(OneMachine, processes=1)


class Watched:
    def __init__(self) -> None:
        self.findings: list[str] = []
        self.steps: list[tuple[int, int]] = []

    def finding(self, message: str) -> None:
        self.findings.append(message)

    def progress(self, done: int, total: int) -> None:
        self.steps.append((done, total))


def run(
    source: object, out: Path, options: RunOptions | None = None, engine: Callable[..., Any] = ONE_PROCESS
) -> tuple[FleetRun, Watched]:
    watched = Watched()
    fleet = FleetRun([str(source)], str(out), options or RunOptions(), watched.finding, watched.progress)
    fleet.run(engine)
    return fleet, watched


def list_of(url: str, directory: Path) -> Path:
    (directory / "list").write_text("".join(f"{url}/{number:02}.tar\n" for number in range(PACKAGES)))
    return directory / "list"


def rows(out: Path, name: str) -> list[dict[str, Any]]:
    from pyarrow import parquet  # noqa: PLC0415

    table = parquet.read_table(out / f"{name}.parquet").to_pylist()
    return [{key: value for key, value in row.items() if key not in (*TIMES, *OF_THE_PROCESS)} for row in table]


def processes_below(pid: int) -> list[int]:
    children = [int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()]
    return children + [one for child in children for one in processes_below(child)]


def wait_for_the_end(descriptors: Iterable[int]) -> None:
    """Of processes, by descriptors from `os.pidfd_open`, which are closed."""
    for descriptor in descriptors:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        poll.poll()
        os.close(descriptor)


def sockets_of(pids: Iterable[int]) -> set[str]:
    """The numbers (inodes) of their sockets, as root and their user see them."""
    found = set()
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):
            links = [str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()]
            found |= {link[8:-1] for link in links if link.startswith("socket:[")}
    return found


SOURCE = """
int f{0}(int n) {{ volatile char a[n + {0}]; a[0] = 1; return a[0]; }}
int main(int n, char **v) {{ return f{0}(n + !v); }}
"""


def programs(compile_c: Compiler, count: int) -> list[bytes]:
    return [compile_c(SOURCE.format(number), "-O1", "-Wl,--build-id").read_bytes() for number in range(1, count + 1)]


def write_tar(path: Path, files: Mapping[str, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz" if path.name.endswith(".gz") else "w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o755
            archive.addfile(member, io.BytesIO(content))
    return path


class Handler(SimpleHTTPRequestHandler):
    """Files of a directory. `before` is called with each path and the client's port; what it gives False for gets no answer."""

    def __init__(self, before: Callable[[str, int], object], requests: list[str], *args: object, directory: str) -> None:
        self.before = before
        self.requests = requests
        super().__init__(*args, directory=directory)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        self.requests.append(self.path)
        if self.before(self.path, self.client_address[1]) is not False:
            super().do_GET()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def served(directory: Path, before: Callable[[str, int], object] = lambda *_: None) -> Iterator[tuple[str, list[str]]]:
    """The URL of a server of this directory, and the paths that were asked for."""
    requests: list[str] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, before, requests, directory=str(directory)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", requests
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
