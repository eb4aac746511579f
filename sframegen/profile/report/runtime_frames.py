"""Frames of interpreters and of the code that they make: what /tmp/perf-PID.map calls functions, and which objects interpret."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from sframegen.profile.report.named import FrameKind, NamedFrame

if TYPE_CHECKING:
    from sframegen.profile.report.named import Named

PYTHON = re.compile(r"py::(?P<function>.*?):(?P<path>[^:]*)")
# `JS:*name file:///x.js:1:2`, `LazyCompile:~name /x.js:1`: the sign is how it was compiled.
V8_SCRIPT = re.compile(
    r"(?:JS|LazyCompile|Function|Script|Eval|Callback):[~^*+']*(?P<function>.*?)(?:\s(?P<path>(?:/|\w+:).*?))?(?::\d+){0,2}"
)
V8_OWN = re.compile(r"(?:Builtin|BytecodeHandler|Stub|RegExp|Handler|Wasm|Bytecode\w*):(?P<function>.*)")
JVM_OWN = re.compile(r"(?:Interpreter|StubRoutines.*|.*(?:[Ss]tub|[Bb]lob|adapters?|trampolines))(?: .*)?")
INTERPRETERS = re.compile(
    r"(?:lib)?python[23][\w.]*|node(?:js)?|libnode\.so[\d.]*|libjvm\.so|java|(?:lib)?ruby[\w.-]*|(?:lib)?perl[\w.-]*"
)
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
