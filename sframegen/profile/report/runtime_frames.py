"""Frames of interpreters and of the code that they make: what /tmp/perf-PID.map calls functions, and which objects interpret."""

from __future__ import annotations

import re
from array import array
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, NamedTuple

from sframegen.profile.report.label_counts import mark_nodes
from sframegen.profile.report.named import FrameKind, NamedFrame

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sframegen.profile.report.named import Named

PYTHON = re.compile(r"py::(?P<function>.*?):(?P<path>[^:]*)")
# `JS:*name file:///x.js:1:2`, `LazyCompile:~name /x.js:1`: the sign is how it was compiled.
V8_SCRIPT = re.compile(
    r"(?:JS|LazyCompile|Function|Script|Eval|Callback):[~^*+']*(?P<function>.*?)(?:\s(?P<path>(?:/|\w+:).*?))?(?::\d+){0,2}"
)
V8_OWN = re.compile(r"(?:Builtin|BytecodeHandler|Stub|RegExp|Handler|Wasm|Bytecode\w*):(?P<function>.*)")
JVM_OWN = re.compile(r"(?:Interpreter|StubRoutines.*|.*(?:[Ss]tub|[Bb]lob|adapters?|trampolines))(?: .*)?")


class Runtime(NamedTuple):
    """`objects`: files of its own frames. `unnamed`: what has no name without a perf map; `remedy`: what makes it write one."""

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
INTERPRETERS = re.compile("|".join((*(runtime.objects for runtime in RUNTIMES), r"(?:lib)?ruby[\w.-]*|(?:lib)?perl[\w.-]*")))
FEW = 10  # less than the tenth of a profile need not have names
MADE = "[run-time code]"


class MadeFunction(NamedTuple):
    """A function that was made at run time: its name, the file of its source if known, and whether it is the interpreter's own."""

    function: str
    object: str
    path: str
    own: bool = False


def read_name(name: str) -> MadeFunction:
    """Read a name of a perf map."""
    if match := PYTHON.fullmatch(name):
        return MadeFunction(match["function"], _base(match["path"]), match["path"])
    if match := V8_OWN.fullmatch(name):
        return MadeFunction(name, MADE, "", own=True)
    if match := V8_SCRIPT.fullmatch(name):
        path = (match["path"] or "").removeprefix("file://")
        return MadeFunction(match["function"] or "(anonymous)", _base(path) if path else MADE, path)
    return MadeFunction(name, MADE, "", own=bool(JVM_OWN.fullmatch(name)))


def _base(path: str) -> str:
    return path.rpartition("/")[2] if path.startswith("/") else path  # node:internal/timers, <frozen runpy>


def is_interpreter(frame: NamedFrame) -> bool:
    """True for C frames of an interpreter, and for the helper code that it makes for itself."""
    if frame.kind is FrameKind.RUNTIME:
        return frame.object == MADE and read_name(frame.function).own
    return frame.kind is FrameKind.USER and INTERPRETERS.fullmatch(frame.object) is not None


def notes_on_unnamed(named: Named, has_map: Callable[[int], bool]) -> Iterator[str]:
    """Yield a line for each runtime in which much of the profile is, in processes without a perf map (`has_map`)."""
    made = 1 << len(RUNTIMES)
    flag_of = bytes(_runtimes(site) or made * (site.function == MADE) for site in named.places.sites)
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
        own = 1 << number
        unnamed = {
            pid: sum(count for mark, count in counts.items() if mark & (own | made))
            for pid, counts in samples.items()
            if any(mark & own for mark in counts)
        }
        if FEW * sum(unnamed.values()) > named.samples:  # maps are files of other processes
            share = sum(count for pid, count in unnamed.items() if not has_map(pid)) / named.samples
            if FEW * share > 1:
                where = f"in {100 * share:.1f} % of the profile"
                yield f"{runtime.unnamed} have no names {where}, because no perf map was found: {runtime.remedy}"


def _runtimes(site: NamedFrame) -> int:
    """A bit for each runtime whose own frame it is."""
    own = site.object if site.kind is FrameKind.USER else ""
    return sum(bool(re.fullmatch(runtime.objects, own)) << number for number, runtime in enumerate(RUNTIMES))


class Folding:
    """Makes each run of an interpreter's own frames one frame, which has the name of its object, while a tree is filled."""

    def __init__(self, named: Named) -> None:
        self._nodes = named.tree.nodes
        self._places = named.places
        self._folded: set[int] = set()  # places

    def __call__(self, caller: int, place: int) -> int:
        """Return the node of a place that the node calls."""
        frame = self._places[place]
        if not is_interpreter(frame):
            return self._nodes.of(place, caller)
        above = self._nodes.first[caller]
        if not (caller and above in self._folded):
            return self._nodes.of(self._fold(frame, guessed=frame.guessed), caller)
        last = self._places[above]
        if last.object == MADE or (frame.guessed and not last.guessed):
            one = self._fold(frame if frame.object != MADE else last, guessed=last.guessed or frame.guessed)
            return self._nodes.of(one, self._nodes.second[caller])
        return caller

    def _fold(self, frame: NamedFrame, *, guessed: bool) -> int:
        name = f"[{frame.object.strip('[]')}]"
        place = self._places.number(frame._replace(function=name, address=None, guessed=guessed))
        self._folded.add(place)
        return place
