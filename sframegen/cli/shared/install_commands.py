"""Composes shell commands that install missing Python packages in sframegen's environment, or packages of the system."""

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

from sframegen.program.libraries import Library, find_library, pip_requirements

if TYPE_CHECKING:
    from collections.abc import Iterable

OWN_ENVIRONMENT = "~/.local/share/sframegen"  # the environment to create if pip may not change the system's Python
CHECKOUT_COMMENT = "  # in a checkout of sframegen"
# System libraries that Python packages need: the Debian package, and the capability that RPM packages provide.
SYSTEM_LIBRARIES = {"libstdc++.so.6": ("libstdc++6", "libstdc++.so.6()(64bit)")}
EXISTS, JOIN = os.path.exists, os.path.join  # not pathlib, which a damaged installation may lack: `doctor` must work there


def install_command(libraries: Iterable[Library], *, again: bool = False) -> str:
    """Return the command that installs libraries for this Python; with `again`, it also replaces damaged ones."""
    libraries = list(libraries)
    pip_arguments = pip_requirements(one.project for one in libraries)
    if _is_system_python() and all(one.debian for one in libraries) and shutil.which("apt-get"):
        return as_root(f"apt-get install {'--reinstall ' * again}{' '.join(one.debian for one in libraries)}")
    if _has_environment_marker("pipx_metadata.json"):
        return shlex.join(["pipx", "inject", *["--force"] * again, os.path.basename(sys.prefix), *pip_arguments])  # noqa: PTH119
    return _pip_install_command(*["--force-reinstall"] * again, *pip_arguments)


def reinstall_command(*, from_sources: bool = False) -> str:
    """Return the command that reinstalls sframegen from where it came.

    `from_sources`: it compiles sframegen again, without its dependencies; that needs the directory of the checkout.
    """
    origin = installed_from()
    if from_sources and not os.path.isdir(origin):  # noqa: PTH112 - a wheel cannot be compiled again
        origin = ""
    arguments = ["--force-reinstall", *["--no-deps"] * from_sources, origin or "."]
    if _has_environment_marker("pipx_metadata.json"):
        command = shlex.join(["pipx", "runpip", os.path.basename(sys.prefix), "install", *arguments])  # noqa: PTH119
    else:
        command = _pip_install_command(*arguments)
    return command + CHECKOUT_COMMENT * (not origin)  # also after a system Python's command, which ends in a comment


def _pip_install_command(*words: str) -> str:
    """Return the command that installs packages with pip, or with uv in an environment without pip."""
    python, arguments = shlex.quote(sys.executable), shlex.join(words)
    if _is_system_python():
        own_python = f"{OWN_ENVIRONMENT}/bin/python"
        create = f"{python} -m venv --system-site-packages {OWN_ENVIRONMENT}"
        return f"{create} && {own_python} -m pip install {arguments}  # then run {own_python} -m sframegen"
    if find_spec("pip") is not None:
        return f"{python} -m pip install {arguments}"
    if shutil.which("uv") or _has_environment_marker("uv-receipt.toml"):
        return f"uv pip install --python {python} {arguments}".replace("--force-reinstall", "--reinstall")
    return f"{python} -m ensurepip && {python} -m pip install {arguments}"


def _has_environment_marker(name: str) -> bool:
    """Return True if this environment has the file by which pipx or uv marks the environments that it made."""
    return EXISTS(JOIN(sys.prefix, name))


def _is_system_python() -> bool:
    """Return True if the system's package manager owns this Python, so that pip may not change it (PEP 668)."""
    return sys.prefix == sys.base_prefix and EXISTS(JOIN(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED"))


def installed_from() -> str:
    """Return the directory or wheel that sframegen was installed from; empty if it is gone, because no index has sframegen."""
    from importlib import metadata  # noqa: PLC0415 - takes longer than most commands to start

    try:
        url = json.loads(metadata.distribution("sframegen").read_text("direct_url.json") or "{}").get("url", "")
    except (metadata.PackageNotFoundError, ValueError):
        return ""
    path = unquote(url.removeprefix("file://")) if url.startswith("file://") else ""
    return path if EXISTS(path) else ""


def find_missing_build_tools() -> list[tuple[str, str]]:
    """Return (name, Debian package) of each tool or header that this machine lacks to compile sframegen's modules."""
    compiler = shlex.split(sysconfig.get_config_var("CC") or "cc")[0]
    missing = []
    if not (shutil.which(compiler) or shutil.which("cc") or shutil.which("gcc")):
        missing.append(("a C compiler", "gcc"))
    if not EXISTS(JOIN(sysconfig.get_path("include"), "Python.h")):
        missing.append(("Python.h", "python3-dev"))
    return missing


def recompile_command() -> str:
    """Return the command that reinstalls sframegen with compiled modules."""
    packages = [debian for _, debian in find_missing_build_tools()]
    install_tools = as_root(f"apt-get install {' '.join(packages)}") if packages and shutil.which("apt-get") else ""
    return " && ".join(filter(None, [install_tools, reinstall_command(from_sources=True)]))


def system_package_command(debian: str, provided: str) -> str:
    """Return the command that installs a system package: by its name in Debian, or by a capability that RPM packages provide."""
    manager = next((name for name in ("apt-get", "dnf", "zypper") if shutil.which(name)), "")
    name = debian if manager == "apt-get" else shlex.quote(provided)
    return as_root(f"{manager} install {name}") if manager and name else ""


def as_root(command: str) -> str:
    return command if os.geteuid() == 0 else f"sudo {command}"


def describe_import_error(error: ImportError) -> str:
    """Return one line with the reason of a failed import, and the command that installs the library if sframegen needs it."""
    library = find_library(error.name)
    reason = " ".join(str(error).split())
    if library is None:
        return reason
    shared_object = reason.partition(": cannot open shared object file")[0].rpartition(" ")[2]  # of the dynamic loader's message
    if shared_object in SYSTEM_LIBRARIES:
        command = system_package_command(*SYSTEM_LIBRARIES[shared_object])
    else:
        is_missing = isinstance(error, ModuleNotFoundError) and error.name == library.module
        command = install_command([library], again=not is_missing)  # otherwise a part of it is missing, or does not load: damaged
    return f"{reason}; to install it: {command}" if command else reason
