"""A store that a web server gives out, on the loopback."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from sframegen import add_section
from sframegen.cli.commands import cli
from sframegen.detached import store_server
from sframegen.detached.stores import Stores, directories_of, urls_of
from sframegen.elf.file import open_elf
from tests.detached.test_detached_file import BUILD_ID, SOURCE
from tests.detached.test_stores import place, rules
from tests.fleet.made_packages import served

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.peers import Compiler

pytestmark = pytest.mark.once


@pytest.fixture
def program(compile_c: Compiler, tmp_path: Path) -> Path:
    return tmp_path / shutil.copy(compile_c(SOURCE, "-O1", BUILD_ID), tmp_path / "program")


@pytest.fixture
def store(program: Path, tmp_path: Path) -> Path:
    add_section(program, detached=tmp_path / "store")
    return tmp_path / "store"


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def test_commands_read_from_a_server(program: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = CliRunner()
    expected = runner.invoke(cli, ["lookup", "--sections", str(store), str(program), "main"]).output
    with served(store) as (url, requests):
        monkeypatch.setenv("SFRAMEGEN_URLS", f"{url}/")
        for command in (["lookup", str(program), "main"], ["check", str(program)]):
            done = runner.invoke(cli, command)
            assert done.exit_code == 0, done.output
        assert runner.invoke(cli, ["lookup", str(program), "main"]).output == expected
    assert set(requests) == {f"/{place(store, program).relative_to(store)}"}


def test_a_server_is_asked_once_and_after_the_directories(program: Path, store: Path, tmp_path: Path) -> None:
    elf = open_elf(program)
    with served(store) as (url, requests):
        stores = Stores([url])
        assert stores.state_for(elf)
        assert [rules(stores, program) for _ in range(3)] == [3] * 3
        assert len(requests) == 1
        assert rules(Stores([store, url]), program) == 3
        assert len(requests) == 1
    (tmp_path / "empty").mkdir()
    with served(tmp_path / "empty") as (url, requests):
        stores = Stores([url])
        assert [rules(stores, program) for _ in range(3)] == [None] * 3
        assert stores.state_for(elf) == ""
        assert (len(requests), stores.take_notes()) == (1, [])


def test_what_is_for_another_file_or_damaged_is_not_used(program: Path, store: Path) -> None:
    file = place(store, program)
    for content, why in ((b"damaged", "not an ELF file"), (program.read_bytes(), "no detached SFrame section")):
        file.write_bytes(content)
        with served(store) as (url, _):
            stores = Stores([url])
            assert rules(stores, program) is None
            assert stores.take_notes() == [f"{url}/{file.relative_to(store)}: {why}; not used"]


def test_a_server_that_fails_is_one_note(program: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = place(store, program).relative_to(store)
    stores = Stores(["http://127.0.0.1:1"])
    assert [rules(stores, program) for _ in range(2)] == [None] * 2
    assert stores.take_notes() == [f"http://127.0.0.1:1/{name}: Connection refused; this server is not asked again; not used"]
    with served(store, lambda *_: False) as (url, _):
        stores = Stores([url])
        assert rules(stores, program) is None
        assert "the server closed the connection" in stores.take_notes()[0]
    monkeypatch.setattr(store_server, "MAX_BYTES", 10)
    with served(store) as (url, _):
        stores = Stores([url])
        assert rules(stores, program) is None
        assert stores.take_notes() == [f"{url}/{name}: more than 10 bytes; this server is not asked again; not used"]


@pytest.mark.parametrize(("scheme", "why"), [("file://", "HTTP status 302"), ("ftp://127.0.0.1", "cannot be fetched")])
def test_a_server_cannot_lead_to_a_file(scheme: str, why: str, program: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.fleet.made_packages import Handler  # noqa: PLC0415 - changed here

    def redirect(handler: Handler) -> None:
        handler.send_response(302)
        handler.send_header("Location", f"{scheme}{place(store, program)}")
        handler.end_headers()

    monkeypatch.setattr(Handler, "do_GET", redirect)
    with served(store) as (url, _):
        stores = Stores([url])
        assert rules(stores, program) is None
        (note,) = stores.take_notes()
        assert why in note


def test_servers_come_last_and_never_in_set_id_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SFRAMEGEN_PATH", "/a")
    monkeypatch.setenv("SFRAMEGEN_URLS", "https://one.example/x  file:///etc http://two.example")
    assert directories_of(["/o"]) == ["/o", "/a", "https://one.example/x", "http://two.example"]
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert urls_of(os.environ) == []
