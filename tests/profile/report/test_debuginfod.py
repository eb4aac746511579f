"""Debug files from servers on this machine that the test runs: asked only when they are named, once, and within limits."""

from __future__ import annotations

import http.server
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from sframegen.elf.file import open_elf
from sframegen.elf.notes import build_id_of
from sframegen.profile.report import debuginfod
from sframegen.profile.report.debuginfod import VARIABLE, Debuginfod
from sframegen.program import patience
from sframegen.program.patience import Patience

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.sampled

PROGRAM = "/bin/true"


class Server:
    """Answers with these bytes and this status; counts requests."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answer = (200, b"")
        self.delay = 0.0
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(self.path)
                status, body = outer.answer
                time.sleep(outer.delay)
                with suppress(BrokenPipeError, ConnectionResetError):  # it was too late
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"


@pytest.fixture
def server() -> Iterator[Server]:
    served = Server()
    thread = threading.Thread(target=served.server.serve_forever)
    thread.start()
    yield served
    served.server.shutdown()
    thread.join()
    served.server.server_close()


@pytest.fixture
def build_id() -> bytes:
    found = build_id_of(open_elf(PROGRAM))
    assert found
    return found


def test_what_is_fetched_is_kept(server: Server, build_id: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, f"ftp://nobody {server.url}/")
    data = bytes(open_elf(PROGRAM).data)
    server.answer = (200, data)
    for _ in range(2):
        fetch = Debuginfod(directory=tmp_path / "kept")
        found = fetch(build_id)
        assert found is not None
        assert bytes(found.data) == data
        assert fetch.notes == []
        fetch.close()
    assert server.asked == [f"/buildid/{build_id.hex()}/debuginfo"]


def test_without_the_variable_nobody_is_asked(build_id: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    fetch = Debuginfod(directory=tmp_path / "kept")
    assert fetch.notes == ["debuginfod: no server in DEBUGINFOD_URLS"]
    assert fetch(build_id) is None


def test_a_server_without_the_file_is_asked_for_others(server: Server, build_id: bytes, tmp_path: Path) -> None:
    server.answer = (404, b"")
    fetch = Debuginfod([server.url], tmp_path / "kept")
    assert fetch(build_id) is None
    assert fetch(b"\1" * 20) is None
    assert len(server.asked) == 2
    assert fetch.notes == []


@pytest.mark.parametrize("fault", ["refused", "late", "failing", "large"])
def test_a_server_with_a_fault_is_not_asked_again(
    fault: str, server: Server, build_id: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answer = (500, b"") if fault == "failing" else (200, bytes(5000))
    server.delay = 1.0 if fault == "late" else 0.0
    if fault == "large":
        monkeypatch.setattr(debuginfod, "MAX_BYTES", 1000)
    url = "http://127.0.0.1:1" if fault == "refused" else server.url
    if fault == "late":
        monkeypatch.setattr(patience, "current", Patience(server=0.3))
    fetch = Debuginfod([url], tmp_path / "kept")
    assert fetch(build_id) is None
    assert fetch(build_id) is None
    assert len(server.asked) == (fault != "refused")
    [note] = fetch.notes
    assert note.startswith(f"debuginfod: {url} is no longer used: ")
    assert not [*(tmp_path / "kept").iterdir()]


def test_an_answer_that_is_no_elf_file(server: Server, build_id: bytes, tmp_path: Path) -> None:
    server.answer = (200, b"<html>")
    assert Debuginfod([server.url], tmp_path / "kept")(build_id) is None
