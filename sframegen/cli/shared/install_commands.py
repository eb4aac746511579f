"""Commands that install what is missing: Python packages in the environment of sframegen, packages of the system."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import sysconfig
from importlib.util import find_spec
from typing import TYPE_CHECKING
from urllib.parse import unquote

from sframegen.program.libraries import Library, library_of, pip_requirements

if TYPE_CHECKING:
    from collections.abc import Iterable


OWN_ENVIRONMENT = "~/.local/share/sframegen"  # the environment to make if pip may not change the system's Python
CHECKOUT = "  # in a checkout of sframegen"
# System libraries that Python packages need: the package in Debian, and the capability elsewhere.
OF_THE_SYSTEM = {"libstdc++.so.6": ("libstdc++6", "libstdc++.so.6()(64bit)")}
EXISTS, JOIN = os.path.exists, os.path.join  # not pathlib: works in damaged installations


def getting(libraries: Iterable[Library], *, again: bool = False) -> str:
    """Return the command that installs libraries for this Python. `again`: also replaces damaged ones."""
    libraries = list(libraries)
    wanted = pip_requirements(one.project for one in libraries)
    if _is_the_system() and all(one.debian for one in libraries) and shutil.which("apt-get"):
        return as_root(f"apt-get install {'--reinstall ' * again}{' '.join(one.debian for one in libraries)}")
    if _has("pipx_metadata.json"):
        return shlex.join(["pipx", "inject", *["--force"] * again, os.path.basename(sys.prefix), *wanted])  # noqa: PTH119
    return _install_command(*["--force-reinstall"] * again, *wanted)


def getting_again(*, is_built: bool = False) -> str:
    """Return the command that reinstalls sframegen from its origin; `is_built`: from its sources, without dependencies."""
    place = source()
    if is_built and not os.path.isdir(place):  # noqa: PTH112 - a wheel has what it has
        place = ""
    what = ["--force-reinstall", *["--no-deps"] * is_built, place or "."]
    if _has("pipx_metadata.json"):
        command = shlex.join(["pipx", "runpip", os.path.basename(sys.prefix), "install", *what])  # noqa: PTH119
    else:
        command = _install_command(*what)
    return command + CHECKOUT * (not place)


def _install_command(*what: str) -> str:
    """Return the command that installs packages, with pip, or with uv in an environment without pip."""
    python = shlex.quote(sys.executable)
    arguments = shlex.join(what)
    if _is_the_system():
        own = f"{OWN_ENVIRONMENT}/bin/python"
        make = f"{python} -m venv --system-site-packages {OWN_ENVIRONMENT}"
        return f"{make} && {own} -m pip install {arguments}  # then run {own} -m sframegen"
    if find_spec("pip") is not None:
        return f"{python} -m pip install {arguments}"
    if shutil.which("uv") or _has("uv-receipt.toml"):
        return f"uv pip install --python {python} {arguments}".replace("--force-reinstall", "--reinstall")
    return f"{python} -m ensurepip && {python} -m pip install {arguments}"


def _has(name: str) -> bool:
    """Return True if the environment has this file, with which a tool marks environments that it made."""
    return EXISTS(JOIN(sys.prefix, name))


def _is_the_system() -> bool:
    """Return True if the system's package manager owns this Python, so that pip may not change it (PEP 668)."""
    return sys.prefix == sys.base_prefix and EXISTS(JOIN(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED"))


def source() -> str:
    """Return the directory or wheel that sframegen was installed from; empty if it is gone: no package index has sframegen."""
    from importlib import metadata  # noqa: PLC0415 - takes longer than most commands to start

    try:
        origin = json.loads(metadata.distribution("sframegen").read_text("direct_url.json") or "{}").get("url", "")
    except (metadata.PackageNotFoundError, ValueError):
        return ""
    place = unquote(origin.removeprefix("file://")) if origin.startswith("file://") else ""
    return place if EXISTS(place) else ""


def lacks_to_compile() -> list[tuple[str, str]]:
    """Return what this machine lacks to compile our modules: (name, Debian package) of each."""
    compiler = shlex.split(sysconfig.get_config_var("CC") or "cc")[0]
    lacking = []
    if not (shutil.which(compiler) or shutil.which("cc") or shutil.which("gcc")):
        lacking.append(("a C compiler", "gcc"))
    if not EXISTS(JOIN(sysconfig.get_path("include"), "Python.h")):
        lacking.append(("Python.h", "python3-dev"))
    return lacking


def compiling() -> str:
    """Return the command that reinstalls sframegen with compiled modules."""
    packages = [debian for _, debian in lacks_to_compile()]
    with_tools = as_root(f"apt-get install {' '.join(packages)}") if packages and shutil.which("apt-get") else ""
    return " && ".join(filter(None, [with_tools, getting_again(is_built=True)]))


def package(debian: str, provided: str) -> str:
    """Return the command that installs a system package, by its name in Debian, elsewhere by what it provides."""
    manager = next((name for name in ("apt-get", "dnf", "zypper") if shutil.which(name)), "")
    name = debian if manager == "apt-get" else shlex.quote(provided)
    return as_root(f"{manager} install {name}") if manager and name else ""


def as_root(command: str) -> str:
    return command if os.geteuid() == 0 else f"sudo {command}"


def with_remedy(error: ImportError) -> str:
    """Return one line: the failed import, and the command that installs the library if sframegen needs it."""
    library = library_of(error.name)
    reason = " ".join(str(error).split())
    if library is None:
        return reason
    lacking = reason.partition(": cannot open shared object file")[0].rpartition(" ")[2]
    if lacking in OF_THE_SYSTEM:
        command = package(*OF_THE_SYSTEM[lacking])
    else:
        command = getting([library], again=not (isinstance(error, ModuleNotFoundError) and error.name == library.module))
    return reason + f"; to install it: {command}" * bool(command)
