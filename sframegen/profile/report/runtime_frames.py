"""Frames of interpreters and of run-time code: parses names of /tmp/perf-PID.map, and notes which processes lack that file."""

from __future__ import annotations

import re
from array import array
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, NamedTuple

from sframegen.profile.report.named import FrameKind, NamedProfile
from sframegen.profile.report.tree_passes import flag_subtrees

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sframegen.stack.names.perf_map import PerfMap

PYTHON_FUNCTION = re.compile(r"py::(?P<function>.*?):(?P<path>[^:]*)")  # `py::name:/x.py`
# `JS:*name file:///x.js:1:2`, `LazyCompile:~name /x.js:1`: the sign before the name tells how the function was compiled.
V8_FUNCTION = re.compile(
    r"(?:JS|LazyCompile|Function|Script|Eval|Callback):[~^*+']*(?P<function>.*?)(?:\s(?P<path>(?:/|\w+:).*?))?(?::\d+){0,2}"
)


class Runtime(NamedTuple):
    """An interpreter. `objects`: pattern of its files. `unnamed`: code with names only in perf maps. `remedy`: how to get one."""

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
MIN_SHARE_INVERSE = 10  # a runtime with less than a tenth of the profile gets no note
IGNORED_MAP = "the perf map was ignored: only the process's user or root may write it, and it may not be older than the process"
RUNTIME_CODE = "[run-time code]"


class RuntimeFunction(NamedTuple):
    """A function that was generated at run time: its name, and its source file if known."""

    function: str
    object: str
    path: str


def parse_perf_map_name(name: str) -> RuntimeFunction:
    """Parse a name in a perf map, as Python, V8 and others write it."""
    if match := PYTHON_FUNCTION.fullmatch(name):
        return RuntimeFunction(match["function"], _base_name(match["path"]), match["path"])
    if match := V8_FUNCTION.fullmatch(name):
        path = (match["path"] or "").removeprefix("file://")
        return RuntimeFunction(match["function"] or "(anonymous)", _base_name(path) if path else RUNTIME_CODE, path)
    return RuntimeFunction(name, RUNTIME_CODE, "")


def _base_name(path: str) -> str:
    return path.rpartition("/")[2] if path.startswith("/") else path  # node:internal/timers, <frozen runpy>


def notes_on_unnamed(named: NamedProfile, read_map: Callable[[int], PerfMap]) -> Iterator[str]:
    """Yield notes on each runtime with much of the profile in processes without a usable perf map. `read_map`: by pid."""
    # Flags: a bit for each runtime whose files a stack runs through, and one for run-time code without a name.
    unnamed_bit = 1 << len(RUNTIMES)
    flag_of = bytearray()  # by site
    for site in named.locations.sites:
        file = site.object if site.kind is FrameKind.USER else ""
        flags = sum(bool(re.fullmatch(runtime.objects, file)) << number for number, runtime in enumerate(RUNTIMES))
        flag_of.append(flags or unnamed_bit * (site.function == RUNTIME_CODE))
    if not any(flag_of):
        return
    tree, node_flags = named.tree, bytearray(named.tree.nodes.count)
    for part in named.room.parts(tree.nodes.count, 1):
        flag_subtrees(tree.nodes, named.locations.numbered, flag_of, node_flags, part)
    pids = array("I", (task.pid for task in named.tasks))
    samples: defaultdict[int, Counter[int]] = defaultdict(Counter)  # by process, and by flags of the stack
    for row in named.rows():
        samples[pids[tree.rows.second[row]]][node_flags[tree.node_of(row)]] += tree.samples[row]
    for number, runtime in enumerate(RUNTIMES):
        bit = 1 << number
        samples_of = {  # by pid of a process with the runtime: samples in it or in unnamed code
            pid: sum(count for flags, count in counts.items() if flags & (bit | unnamed_bit))
            for pid, counts in samples.items()
            if any(flags & bit for flags in counts)
        }
        if MIN_SHARE_INVERSE * sum(samples_of.values()) > named.samples:  # otherwise no map need be read
            unnamed: Counter[str] = Counter()  # samples by the reason why they have no names
            for pid, count in samples_of.items():
                if not (perf_map := read_map(pid)).has_entries:
                    unnamed[IGNORED_MAP if perf_map.is_ignored else f"no perf map was found: {runtime.remedy}"] += count
            for reason, count in unnamed.items() if MIN_SHARE_INVERSE * unnamed.total() > named.samples else ():
                extent = f"in {100 * count / named.samples:.1f} % of the profile"
                yield f"{runtime.unnamed} have no names {extent}, because {reason}"
