"""Events in code, by the names that users give them: tracepoints, functions of programs and of the kernel, USDT probes."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from cfi.errors import SframegenError
from sframegen.elf.file import open_elf
from sframegen.elf.function_names import address_of
from sframegen.elf.records import PT_LOAD
from sframegen.elf.text import shortened
from sframegen.profile.events.attributes import TYPE_TRACEPOINT, EventError
from sframegen.profile.events.filters import EventValue, conditions_of, parse_filter
from sframegen.profile.events.names import Event, event_named
from sframegen.profile.events.operands import ARGUMENTS, PARSERS
from sframegen.profile.events.points import PointKind, ProbePoint
from sframegen.profile.events.stapsdt import arguments_of, user_probes
from sframegen.profile.events.tracefs import Tracefs

if TYPE_CHECKING:
    from collections.abc import Collection

    from sframegen.elf.file import ElfFile
    from sframegen.profile.events.filters import FilterTerm
    from sframegen.profile.events.stapsdt import UserProbe

SOURCES = Path("/sys/bus/event_source/devices")
LIBRARIES = ("/usr/local/lib", "/lib/{0}-linux-gnu", "/usr/lib/{0}-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib")
SEMAPHORE_SHIFT = 32  # in `config` of a probe in a file
MAX_PLACES = 256
FORMS = {
    "uprobe": "uprobe:FILE:FUNCTION",
    "usdt": "usdt:FILE:PROVIDER:NAME",
    "kprobe": "kprobe:FUNCTION",
    "tracepoint": "CATEGORY:NAME",
}


def is_point(name: str) -> bool:
    """True for the name of an event in code; those of the others have no colon."""
    return ":" in name


def find_event(name: str, condition: str | None = None, pids: Collection[int] = ()) -> Event:
    """Return an event of any kind. `pids`: processes whose libraries a FILE without a folder may be. Raises EventError."""
    if not is_point(name):
        if condition is not None:
            raise EventError(f"a filter is for tracepoints and probes; {name} has no arguments")
        return event_named(name)
    terms = parse_filter(condition) if condition is not None else []
    kind, _, rest = name.partition(":")
    match kind:
        case "uprobe":
            points = _function(name, rest, terms, pids)
        case "usdt":
            points = _user_probe(name, rest, terms, pids)
        case "kprobe":
            points = (_kernel_function(name, rest, terms),)
        case "tracepoint":
            points = (_tracepoint(rest, terms),)
        case _:
            points = (_tracepoint(name, terms),)
    return Event(name, points[0].type, points[0].config, by_frequency=False, points=points)


def why_no(kind: str) -> str:
    """Return why this machine has no events of a kind, `uprobe` or `kprobe`; empty if it has them."""
    if (SOURCES / kind / "type").exists():
        return ""
    return f"this kernel has no {kind}s: it was built without CONFIG_{kind.upper()}{'_EVENTS' if kind == 'uprobe' else 'S'}"


def _source(kind: str) -> int:
    try:
        return int((SOURCES / kind / "type").read_text())
    except (OSError, ValueError):
        raise EventError(why_no(kind) or f"{SOURCES / kind} cannot be read") from None


def _tracepoint(name: str, terms: list[FilterTerm]) -> ProbePoint:
    category, _, event = name.partition(":")
    if not event:
        raise EventError(f"{shortened(name)}: a tracepoint is {FORMS['tracepoint']}")
    with Tracefs() as tracefs:
        number = tracefs.number(category, event)
        values = {field: EventValue(*place) for field, place in tracefs.fields(category, event).items()} if terms else {}
    return ProbePoint(PointKind.TRACEPOINT, TYPE_TRACEPOINT, number, conditions=conditions_of(terms, values, name))


def _kernel_function(name: str, function: str, terms: list[FilterTerm]) -> ProbePoint:
    match = re.fullmatch(r"([\w.]+)(?:\+(0[xX][0-9a-fA-F]+|\d+))?", function)
    if not match:
        raise EventError(f"{shortened(name)}: a probe in the kernel is {FORMS['kprobe']}")
    conditions = conditions_of(terms, _registers(), name)
    return ProbePoint(PointKind.KERNEL, _source("kprobe"), 0, match[1].encode(), int(match[2] or "0", 0), conditions)


def _registers() -> dict[str, EventValue]:
    return {f"arg{number}": EventValue(offset) for number, offset in enumerate(ARGUMENTS.get(os.uname().machine, ()), 1)}


def _function(name: str, rest: str, terms: list[FilterTerm], pids: Collection[int]) -> tuple[ProbePoint, ...]:
    file, _, function = rest.rpartition(":")
    if not file or not function:
        raise EventError(f"{shortened(name)}: a probe in a file is {FORMS['uprobe']}")
    path = find_file(file, pids)
    conditions = conditions_of(terms, _registers(), name)
    elf = _opened(path)
    try:
        address = address_of(elf, function)
    except SframegenError as error:
        raise EventError(str(error)) from None
    return (
        ProbePoint(PointKind.USER, _source("uprobe"), 0, os.fsencode(path), _offset(elf, address, executable=True), conditions),
    )


def _user_probe(name: str, rest: str, terms: list[FilterTerm], pids: Collection[int]) -> tuple[ProbePoint, ...]:
    words = rest.rsplit(":", 2)
    if len(words) != 3 or not all(words):
        raise EventError(f"{shortened(name)}: a USDT probe is {FORMS['usdt']}")
    path = find_file(words[0], pids)
    elf = _opened(path)
    try:
        probes = list(user_probes(elf))
    except SframegenError as error:
        raise EventError(str(error)) from None
    found = list(dict.fromkeys(probe for probe in probes if (probe.provider, probe.name) == tuple(words[1:])))
    if not found:
        others = sorted({f"{probe.provider}:{probe.name}" for probe in probes})
        known = f"; it has {shortened(', '.join(others))}" if others else ": it has none"
        raise EventError(f"{path} has no USDT probe {':'.join(words[1:])}{known}")
    if len(found) > MAX_PLACES:
        raise EventError(f"{path} has the USDT probe {':'.join(words[1:])} at {len(found):,} places, more than {MAX_PLACES}")
    source = _source("uprobe")
    points = []
    for probe in found:
        semaphore = _offset(elf, probe.semaphore, executable=False) if probe.semaphore else 0
        conditions = conditions_of(terms, _arguments(probe), name)
        offset = _offset(elf, probe.address, executable=True)
        points.append(ProbePoint(PointKind.USER, source, semaphore << SEMAPHORE_SHIFT, os.fsencode(path), offset, conditions))
    return tuple(points)


def _arguments(probe: UserProbe) -> dict[str, EventValue]:
    parse = PARSERS.get(os.uname().machine)
    found = {}
    for number, argument in enumerate(arguments_of(probe), 1):
        operand = parse(argument.operand) if argument and parse else None
        if argument and operand:
            found[f"arg{number}"] = EventValue(operand.offset, argument.size, argument.signed, operand.number, operand.memory)
    return found


def _opened(path: str) -> ElfFile:
    try:
        return open_elf(path)
    except (OSError, SframegenError) as error:
        raise EventError(str(error) if isinstance(error, SframegenError) else f"{path}: {error.strerror}") from None


def _offset(elf: ElfFile, address: int, *, executable: bool) -> int:
    """Return where an address of a file is in it."""
    loads = elf.executable_loads() if executable else [load for load in elf.segments if load.p_type == PT_LOAD]
    for load in loads:
        if load.p_vaddr <= address < load.p_vaddr + load.p_filesz:
            return address - load.p_vaddr + load.p_offset
    raise EventError(f"{elf.name}: {address:#x} is not in {'its code' if executable else 'the file'}")


def find_file(name: str, pids: Collection[int] = ()) -> str:
    """Return the path of a file. Without a folder it is a library that a process has mapped, one of this machine, or a program."""
    if "/" in name:
        return name
    for pid in pids:
        if path := _mapped_file(pid, name):
            return path
    machine = os.uname().machine
    for folder in LIBRARIES:
        library = Path(folder.format(machine), name)
        if library.is_file():
            return str(library)
    if found := shutil.which(name):
        return found
    raise EventError(f"{shortened(name)}: neither a library nor a program of this machine; give its path")


def _mapped_file(pid: int, name: str) -> str | None:
    try:
        lines = Path(f"/proc/{pid}/maps").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return None
    for line in lines:
        path = [*line.split(None, 5), ""][5]
        inside = Path(f"/proc/{pid}/root{path}")
        if path.rpartition("/")[2] == name and inside.is_file():
            return str(inside)
    return None
