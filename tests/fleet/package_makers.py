"""Packages of a few small programs, made from C, and a server that gives them out."""

from __future__ import annotations

import io
import tarfile
import threading
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from tests.support.peers import Compiler

SOURCE = """
int f{0}(int n) {{ volatile char a[n + {0}]; a[0] = 1; return a[0]; }}
int main(int n, char **v) {{ return f{0}(n + !v); }}
"""


def programs(compile_c: Compiler, count: int) -> list[bytes]:
    """Programs that differ."""
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
