"""Describes this installation as text or JSON: its components, which of them work, and the commands that repair the others."""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import sys
from importlib import metadata
from typing import TYPE_CHECKING, NamedTuple

from sframegen import __version__
from sframegen.backtrace.preloading import find_preload_object
from sframegen.base.errors import SframegenError
from sframegen.base.text import cut_middle, printable
from sframegen.cli.shared import install_commands as commands
from sframegen.profile.events.attributes import command_for_own_events
from sframegen.profile.probe import probe
from sframegen.program.build import MODULES, build_kind, is_compiled, packages_directory
from sframegen.program.libraries import DEPENDENCIES, FLEET, SYMBOL_LIBRARIES, Library, import_library, requirements

if TYPE_CHECKING:
    from collections.abc import Iterator

VERSION_BOUND = re.compile(r"(>=|<)([\d.]+)")  # one bound of a requirement such as `<5.1,>=5.0.2`


class Component(NamedTuple):
    """A part of the installation. `found`: its version, or the reason why it does not work. `remedy`: a command, if one helps."""

    group: str
    name: str
    use: str  #: features that need the component
    works: bool
    found: str
    remedy: str = ""

    def lines(self) -> Iterator[str]:
        yield f"{'ok' if self.works else 'no'}  {self.name}: {self.found}" + ("" if self.works else f"; needed for {self.use}")
        if self.remedy:
            yield f"      {self.remedy}"


def check_components() -> Iterator[Component]:
    """Yield all components, in the order in which they are shown."""
    interpreted = [name for name in MODULES if not is_compiled(name)]
    missing_tools = " and ".join(f"{tool} ({debian} of Debian)" for tool, debian in commands.find_missing_build_tools())
    reason = f"interpreted: {'all' if len(interpreted) == len(MODULES) else ', '.join(interpreted)}"
    if missing_tools:
        reason += f"; to compile them, this machine lacks {missing_tools}"
    speed, recompile = "speed: everything takes 2 to 30 times as long", commands.recompile_command()
    found = reason if interpreted else str(len(MODULES))
    yield Component("sframegen", "compiled modules", speed, works=not interpreted, found=found, remedy=recompile)
    try:
        works, found = True, str(find_preload_object())
    except SframegenError as error:
        works, found = False, str(error)
    yield Component("sframegen", "preload", "stack traces from inside a process", works, found, recompile)
    yield from (_check_library("libraries", library) for library in DEPENDENCIES)
    privileged = "" if os.geteuid() == 0 else commands.as_root(f"{shlex.quote(sys.executable)} -m sframegen profile --probe")
    reinstall = commands.reinstall_command(from_sources=True)
    remedies = {  # by name of the fact that `profile --probe` finds
        "kernel": "",
        "kernel program": " && ".join(filter(None, [commands.system_package_command("clang", "/usr/bin/clang"), reinstall])),
        "libbpf.so.1": commands.system_package_command("libbpf1", "libbpf.so.1()(64bit)"),
        "capabilities": privileged,
        "BPF": privileged,
        "perf events of own processes": commands.as_root(command) if (command := command_for_own_events()) else "",
        "perf events of all processes": privileged,
    }
    for name, works, found in probe().facts:
        if name in remedies:
            yield Component("profile", name, "profile, or a better one", works, found, remedies[name])
    yield from (_check_library("names", library) for library in SYMBOL_LIBRARIES)
    yield from (_check_library("fleet", library) for library in FLEET)


def _check_library(group: str, library: Library) -> Component:
    """Return the component for a library, which works if it can be imported, and if sframegen can use its version."""
    try:
        version = metadata.version(library.project)
    except metadata.PackageNotFoundError:
        version = ""
    try:
        import_library(library.module)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a damaged library raises
        found = str(error) if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"
        remedy = commands.install_command([library], again=bool(version))
        return Component(group, library.project, library.use, False, found if version else "not installed", remedy)
    needed = requirements().get(library.project, "")
    if not version or is_within_bounds(version, needed):
        return Component(group, library.project, library.use, True, version or "of unknown version")
    found = f"version {version}, where sframegen needs {needed}"
    return Component(group, library.project, library.use, False, found, commands.install_command([library], again=True))


def is_within_bounds(version: str, bound: str) -> bool:
    """Return True if a version is within bounds, as `5.0.9` is within `<5.1,>=5.0.2`. Suffixes such as `rc1` are ignored."""

    def numbers(text: str) -> list[int]:
        release = (re.match(r"[\d.]*", text) or [""])[0]
        return [int(part) for part in re.findall(r"\d+", re.sub(r"(\.0)+$", "", release))]  # 5.1.0 is the same as 5.1

    return all((numbers(version) < numbers(limit)) == (sign == "<") for sign, limit in VERSION_BOUND.findall(bound))


def describe_installation(*, as_json: bool) -> str:
    """Return the description of this installation. This works without click, which may be what is damaged."""
    facts = {
        "version": __version__,
        "build": build_kind(),
        "directory": packages_directory(),
        "python": platform.python_version(),
        "executable": sys.executable,
        "machine": platform.machine(),
        "kernel": os.uname().release,
        "libc": " ".join(filter(None, platform.libc_ver())) or "unknown",
    }
    components = [
        part._replace(found=cut_middle(" ".join(printable(part.found).split())), remedy="" if part.works else part.remedy)
        for part in check_components()
    ]
    if as_json:
        return json.dumps(facts | {"parts": [part._asdict() for part in components]}, indent=2)
    lines = [f"sframegen {facts['version']} ({facts['build']}), in {facts['directory']}"]
    lines.append(f"Python {facts['python']}, {facts['executable']}")
    lines.append(f"{facts['machine']}, Linux {facts['kernel']}, {facts['libc']}")
    for group in dict.fromkeys(part.group for part in components):
        lines += ["", group, *(f"  {line}" for part in components if part.group == group for line in part.lines())]
    return "\n".join(lines)
