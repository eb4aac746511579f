from __future__ import annotations

import shlex
import sys
import tomllib
from typing import TYPE_CHECKING

from click.testing import CliRunner

from sframegen.cli.fleet import command
from tests import ROOT
from tests.support.loops import for_each

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_without_the_extra_there_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a command that installs what is missing: releases that pyproject.toml allows, of projects that an index has."""
    monkeypatch.setattr("sframegen.cli.fleet.find_spec", lambda _: None)
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["fleet"]
    named = set()
    run = ["run", str(tmp_path), "--output", str(tmp_path / "out")]
    for arguments in (run, [*run, "--scheduler", "tls://host:1"]):
        result = CliRunner().invoke(command, arguments)
        [line] = result.output.splitlines()
        what, _, remedy = line.partition("; to install them: ")
        assert (result.exit_code, what.startswith(f"sframegen: sframegen fleet {arguments[0]} needs ")) == (1, True)
        assert remedy.startswith(f"{shlex.quote(sys.executable)} -m pip install ")
        assert ("distributed" in what) is ("--scheduler" in arguments)
        named |= set(shlex.split(remedy)[4:])
    assert named == set(extra)
    assert not (tmp_path / "out").exists()


@for_each(
    ("options", "why"),
    [
        (["--memory", "much"], "'much' is not a size such as 512M or 4G"),
        (["--memory", "100"], "100 is out of range for a package (minimum 256M)"),
        (["--scheduler", "tcp://127.0.0.1:1", "-j", "2"], "--scheduler and --jobs exclude each other"),
        (["--scheduler", "tcp://host:0"], "'tcp://host:0' is not an address such as tcp://HOST:PORT"),
        # Dask takes what is before the port as the host; parts of a URL would make it look like this machine
        (["--scheduler", "tcp://192.0.2.1@localhost:1"], "'tcp://192.0.2.1@localhost:1' is not an address"),
        (["--scheduler", "tcp://localhost#.example:1"], "'tcp://localhost#.example:1' is not an address"),
        (["--scheduler", "tcp://?example:1"], "'tcp://?example:1' is not an address"),
        (["--scheduler", "http://host:8786"], "'http://host:8786' is not an address such as tcp://HOST:PORT"),
        (["--mode", "other"], "'other' is not one of"),
        (["--scheduler", "ws://192.0.2.1:8786"], "ws://192.0.2.1:8786 is on another machine and not encrypted"),
    ],
)
def test_wrong_usage(tmp_path: Path, options: list[str], why: str) -> None:
    result = CliRunner().invoke(command, ["run", str(tmp_path), "--output", str(tmp_path / "out"), *options])
    assert result.exit_code == 2
    assert why in result.output
    assert not (tmp_path / "out").exists()
