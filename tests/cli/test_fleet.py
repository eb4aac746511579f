from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from sframegen.cli.fleet import command

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.once


def test_without_the_extra_there_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec

    def found(name: str, *more: Any) -> Any:
        return None if name == "distributed" else find(name, *more)

    monkeypatch.setattr(importlib.util, "find_spec", found)
    for arguments in (["run", str(tmp_path), "--output", str(tmp_path / "out")], ["report", str(tmp_path)]):
        result = CliRunner().invoke(command, arguments)
        assert (result.exit_code, result.output) == (
            1,
            'sframegen: sframegen fleet needs more packages: pip install "sframegen[fleet]"\n',
        )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--memory", "much"], "'much' is not a size such as 512M or 4G"),
        (["--memory", "100"], "100 is too little for any package: at least 256M"),
        (["--timeout", "0"], "0.0 is not in the range x>0"),
        (["--scheduler", "tcp://127.0.0.1:1", "--workers", "2"], "--workers is for this machine"),
        (["--mode", "other"], "'other' is not one of"),
    ],
)
def test_wrong_usage(tmp_path: Path, options: list[str], why: str) -> None:
    result = CliRunner().invoke(command, ["run", str(tmp_path), "--output", str(tmp_path / "out"), *options])
    assert result.exit_code == 2
    assert why in result.output
    assert not (tmp_path / "out").exists()


@pytest.mark.full
def test_a_report_of_what_is_not_a_run_is_one_line(tmp_path: Path) -> None:
    pytest.importorskip("altair")
    file = tmp_path / "file"
    file.write_bytes(b"text")
    for place in (tmp_path, file, tmp_path / "missing"):
        result = CliRunner().invoke(command, ["report", str(place)])
        line = f"sframegen: {place}: no tables of a run here: sframegen fleet run SOURCE --output DIR writes them\n"
        assert (result.exit_code, result.output) == (1, line)


@pytest.mark.full
def test_a_scheduler_that_is_not_there_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    from sframegen.fleet import dask_engine  # noqa: PLC0415

    monkeypatch.setattr(dask_engine, "CONNECT_SECONDS", 1)
    (tmp_path / "pool").mkdir()
    (tmp_path / "list").write_text("https://127.0.0.1:1/x.deb\n")
    arguments = ["run", str(tmp_path / "list"), "--output", str(tmp_path / "out"), "--scheduler", "tcp://127.0.0.1:1"]
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 1
    (line,) = result.output.splitlines()
    assert line.startswith("sframegen: tcp://127.0.0.1:1: no scheduler of Dask answers")
