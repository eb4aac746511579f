"""A few calls into each wheel that brings no tests of its own: for pytest."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

SCRIPTS = Path(sys.executable).parent


def test_orjson() -> None:
    orjson = import_module("orjson")

    given = {"numbers": list(range(1000)), "floats": [n / 7 for n in range(1000)], "text": "\u00fc\U0001f600" * 100}
    assert orjson.loads(orjson.dumps(given)) == given == json.loads(orjson.dumps(given))


def test_duckdb() -> None:
    duckdb = import_module("duckdb")

    [(total, groups)] = duckdb.sql(
        "select sum(s), count(*) from (select n % 97 as g, sum(n) as s from range(1000000) t(n) group by g)"
    ).fetchall()
    assert (total, groups) == (499999500000, 97)


def test_an_exception_of_duckdb() -> None:
    duckdb = import_module("duckdb")

    with pytest.raises(duckdb.ParserException):
        duckdb.sql("selec 1")


def test_uvloop() -> None:
    uvloop = import_module("uvloop")

    async def echo() -> bytes:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(await reader.readline())
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"line\n")
        said = await reader.read()
        writer.close()
        server.close()
        return said

    assert uvloop.run(echo()) == b"line\n"


def test_black() -> None:
    said = subprocess.run([SCRIPTS / "black", "-q", "-"], input="x = [1,\n2]", text=True, check=True, capture_output=True).stdout
    assert said == "x = [1, 2]\n"


def test_ruff() -> None:
    done = subprocess.run(
        [SCRIPTS / "ruff", "check", "--isolated", "-"], input="import os\n", text=True, check=False, capture_output=True
    )
    assert (done.returncode, "F401" in done.stdout) == (1, True)


def test_ninja(tmp_path: Path) -> None:
    (tmp_path / "build.ninja").write_text("rule copy\n  command = cp $in $out\nbuild b: copy a\nbuild c: copy b\n")
    (tmp_path / "a").write_text("a")
    subprocess.run([SCRIPTS / "ninja", "-C", tmp_path], check=True)
    assert (tmp_path / "c").read_text() == "a"


def test_pyzmq() -> None:
    zmq = import_module("zmq")

    with zmq.Context() as context, context.socket(zmq.PAIR) as one, context.socket(zmq.PAIR) as other:
        port = one.bind_to_random_port("tcp://127.0.0.1")
        other.connect(f"tcp://127.0.0.1:{port}")
        other.send_multipart([b"a", bytes(100000)])
        assert one.recv_multipart() == [b"a", bytes(100000)]
