"""Frames of interpreters and of code made at run time: function names in /tmp/perf-PID.map, and objects of interpreters."""

from __future__ import annotations

import re
from array import array
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, NamedTuple

from sframegen.profile.report.named import FrameKind, Named
from sframegen.profile.report.tree_passes import mark_nodes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


PYTHON = re.compile(r"py::(?P<function>.*?):(?P<path>[^:]*)")
# `JS:*name file:///x.js:1:2`, `LazyCompile:~name /x.js:1`: the sign is how it was compiled.
V8_SCRIPT = re.compile(
    r"(?:JS|LazyCompile|Function|Script|Eval|Callback):[~^*+']*(?P<function>.*?)(?:\s(?P<path>(?:/|\w+:).*?))?(?::\d+){0,2}"
)


class Runtime(NamedTuple):
    """An interpreter. `objects`: its own files. `unnamed`: its code that has names only in a perf map; `remedy`: how to get one."""

    objects: str
    unnamed: str
    remedy: str


RUNTIMES = (
    Runtime(
        r"(?:lib)?python[23][\w.]*",
        "functions of Python",
        "start Python 3.12 or newer with -X perf, or with PYTHONPERFSUPPORT=1 in its environment",
    ),
    Runtime(r"node(?:js)?|libnode\.so[\d.]*", "functions of JavaScript", "start node with --perf-basic-prof"),
    Runtime(
        r"libjvm\.so|java",
        "methods of Java",
        "start the JVM with -XX:+PreserveFramePointer and an agent that writes /tmp/perf-PID.map",
    ),
)
FEW = 10  # no note on less than a tenth of the profile
RUNTIME_CODE = "[run-time code]"


class RuntimeFunction(NamedTuple):
    """A function that was made at run time: its name, and the file of its source if known."""

    function: str
    object: str
    path: str


def read_name(name: str) -> RuntimeFunction:
    """Parse a name of a perf map: return its function, and its source file if it has one."""
    if match := PYTHON.fullmatch(name):
        return RuntimeFunction(match["function"], _base(match["path"]), match["path"])
    if match := V8_SCRIPT.fullmatch(name):
        path = (match["path"] or "").removeprefix("file://")
        return RuntimeFunction(match["function"] or "(anonymous)", _base(path) if path else RUNTIME_CODE, path)
    return RuntimeFunction(name, RUNTIME_CODE, "")


def _base(path: str) -> str:
    return path.rpartition("/")[2] if path.startswith("/") else path  # node:internal/timers, <frozen runpy>


def notes_on_unnamed(named: Named, has_map: Callable[[int], bool]) -> Iterator[str]:
    """Yield a note for each runtime with much of the profile in processes without a perf map. `has_map`: asked by pid."""
    made = 1 << len(RUNTIMES)
    flag_of = bytearray()  # a bit for each runtime that a frame belongs to
    for site in named.places.sites:
        own = site.object if site.kind is FrameKind.USER else ""
        flags = sum(bool(re.fullmatch(runtime.objects, own)) << number for number, runtime in enumerate(RUNTIMES))
        flag_of.append(flags or made * (site.function == RUNTIME_CODE))
    if not any(flag_of):
        return
    tree, marks = named.tree, bytearray(named.tree.nodes.count)
    for part in named.room.parts(tree.nodes.count, 1):
        mark_nodes(tree.nodes, named.places.numbered, flag_of, marks, part)
    pids = array("I", (task.pid for task in named.tasks))
    samples: defaultdict[int, Counter[int]] = defaultdict(Counter)  # by process, and by mark
    for row in named.rows():
        samples[pids[tree.rows.second[row]]][marks[tree.node_of(row)]] += tree.samples[row]
    for number, runtime in enumerate(RUNTIMES):
        bit = 1 << number
        unnamed = {
            pid: sum(count for mark, count in counts.items() if mark & (bit | made))
            for pid, counts in samples.items()
            if any(mark & bit for mark in counts)
        }
        if FEW * sum(unnamed.values()) > named.samples:  # maps are files of other processes
            share = sum(count for pid, count in unnamed.items() if not has_map(pid)) / named.samples
            if FEW * share > 1:
                where = f"in {100 * share:.1f} % of the profile"
                yield f"{runtime.unnamed} have no names {where}, because no perf map was found: {runtime.remedy}"
