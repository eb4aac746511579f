"""The command that installs something is one for the environment that sframegen runs in."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import sysconfig
from typing import TYPE_CHECKING

import pytest

from sframegen.cli.shared import install_commands as installing
from sframegen.cli.shared.install_commands import describe_import_error, install_command, recompile_command, reinstall_command
from sframegen.program import libraries
from sframegen.program.libraries import DEPENDENCIES, FLEET, find_library
from tests.support.loops import for_each

if TYPE_CHECKING:
    from pathlib import Path

CLICK, CAPSTONE, LIEF, *_ = DEPENDENCIES
NEEDED = {"click": "click>=8", "lief": "lief>=1", "fsspec": "fsspec[http]>=2025.1"}


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A virtual environment with pip, in the directory `name`; no tool is on PATH, and sframegen came from no directory."""
    prefix = tmp_path / "name"
    (prefix / "stdlib").mkdir(parents=True)
    monkeypatch.setattr(sys, "prefix", str(prefix))
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(prefix / "bin" / "python"))
    monkeypatch.setattr(installing, "find_spec", lambda _: object())
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(prefix / "stdlib"))
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(libraries, "requirements", lambda: NEEDED)
    monkeypatch.setattr(installing, "installed_from", lambda: "")
    return prefix


def on_path(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}" if name in names else None)


def test_pip_in_a_virtual_environment(environment: Path) -> None:
    python = f"{environment}/bin/python"
    fsspec = next(one for one in FLEET if one.project == "fsspec")
    assert install_command([CLICK, fsspec]) == f"{python} -m pip install 'click>=8' 'fsspec[http]>=2025.1'"
    assert install_command([CLICK], again=True) == f"{python} -m pip install --force-reinstall 'click>=8'"


def test_uv_where_there_is_no_pip(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installing, "find_spec", lambda _: None)
    python = f"{environment}/bin/python"
    assert install_command([LIEF]) == f"{python} -m ensurepip && {python} -m pip install 'lief>=1'"
    on_path(monkeypatch, "uv")
    assert install_command([LIEF]) == f"uv pip install --python {python} 'lief>=1'"
    assert install_command([LIEF], again=True) == f"uv pip install --python {python} --reinstall 'lief>=1'"
    on_path(monkeypatch)
    (environment / "uv-receipt.toml").touch()  # uv's own environment of a tool
    assert install_command([CLICK]) == f"uv pip install --python {python} 'click>=8'"


def test_pipx(environment: Path) -> None:
    (environment / "pipx_metadata.json").touch()
    assert install_command([LIEF]) == "pipx inject name 'lief>=1'"
    assert install_command([LIEF], again=True) == "pipx inject --force name 'lief>=1'"
    assert reinstall_command(from_sources=True).startswith("pipx runpip name install --force-reinstall --no-deps . ")


def test_the_package_of_a_distribution(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip may not change its Python. What Debian has comes from there; all else goes into an environment that sees it."""
    monkeypatch.setattr(sys, "base_prefix", str(environment))
    (environment / "stdlib" / "EXTERNALLY-MANAGED").touch()
    on_path(monkeypatch, "apt-get")
    assert install_command([CLICK, CAPSTONE]) == "sudo apt-get install python3-click python3-capstone"
    assert install_command([CLICK], again=True) == "sudo apt-get install --reinstall python3-click"
    command = install_command([LIEF])
    assert f"{environment}/bin/python -m venv --system-site-packages ~/.local/share/sframegen && " in command
    assert " && ~/.local/share/sframegen/bin/python -m pip install 'lief>=1'  # then run " in command


def test_it_is_installed_again_from_where_it_came(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wheel is installed again, but nothing is compiled from it."""
    no_sources = " --no-deps .  # in a checkout of sframegen"
    assert reinstall_command(from_sources=True).endswith(no_sources)
    checkout, wheel = environment / "a checkout", environment / "sframegen.whl"
    checkout.mkdir()
    wheel.touch()
    install = f"{environment}/bin/python -m pip install --force-reinstall"
    monkeypatch.setattr(installing, "installed_from", lambda: str(checkout))
    assert reinstall_command(from_sources=True) == f"{install} --no-deps '{checkout}'"
    monkeypatch.setattr(installing, "installed_from", lambda: str(wheel))
    assert reinstall_command() == f"{install} {wheel}"
    assert reinstall_command(from_sources=True).endswith(no_sources)


@pytest.mark.parametrize(
    ("compiler", "header", "packages"),
    [(False, False, "gcc python3-dev"), (True, False, "python3-dev"), (False, True, "gcc"), (True, True, "")],
)
def test_what_lacks_to_compile_is_installed_first(
    compiler: bool, header: bool, packages: str, environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_path(monkeypatch, "apt-get", *["cc"] * compiler)
    if header:
        (environment / "stdlib" / "Python.h").touch()
    first, _, rest = recompile_command().rpartition(" && ")
    assert first == (f"sudo apt-get install {packages}" if packages else "")
    assert " -m pip install --force-reinstall --no-deps " in rest


def test_no_index_is_asked_for_sframegen(environment: Path) -> None:
    """None has it."""
    assert environment.exists()
    for command in (install_command(DEPENDENCIES), install_command(FLEET), reinstall_command(), recompile_command()):
        assert "sframegen" not in shlex.split(command.partition("#")[0])
        assert "sframegen[" not in command


@for_each(
    ("module", "project"),
    [("elftools.elf.elffile", "pyelftools"), ("debian", "python-debian"), ("click", "click"), ("clicks", None), (None, None)],
)
def test_the_library_of_a_module(module: str | None, project: str | None) -> None:
    library = find_library(module)
    assert (library and library.project) == project
    assert describe_import_error(ImportError("no\nway", name="other")) == "no way"
