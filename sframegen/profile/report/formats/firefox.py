"""The Firefox Profiler's "processed profile": tables of columns for each thread. It upgrades older versions itself."""

from __future__ import annotations

import json
import re
from array import array
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from sframegen.profile.report.formats.frame_numbers import TableNumbers
from sframegen.profile.report.label_trees import rows_by_group
from sframegen.profile.report.named import FrameKind
from sframegen.profile.report.table import totals

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sframegen.profile.report.named import Named

VERSION = 47  # of the format, as its changelog numbers them
GECKO_VERSION = 27  # of the Gecko format that version 47 was made for
LIBRARY = 1  # type of a resource
DEFAULT_INTERVAL = 1.0  # milliseconds
UUID_BYTES = 16
HEXADECIMAL = re.compile(r"(?:[0-9a-fA-F]{2})*")  # what other profilers write may be any text
# One category must be grey.
CATEGORIES = {
    FrameKind.MISSING: ("Unknown", "grey"),
    FrameKind.USER: ("User", "yellow"),
    FrameKind.KERNEL: ("Kernel", "orange"),
    FrameKind.RUNTIME: ("Run time", "blue"),
}
CATEGORY = {kind: number for number, kind in enumerate(CATEGORIES)}
BY_THREAD = {"comm", "pid", "tid"}  # groups that threads of the format show anyway


class _Func(NamedTuple):
    label: str
    path: str
    kind: FrameKind
    source: str


class _Symbol(NamedTuple):
    """A function that is not inlined."""

    path: str
    start: int
    name: str


class _Frame(NamedTuple):
    """`func`: its number. `depth`: of the functions that it is inlined into. `symbol`: the outermost one, if known."""

    func: int
    address: int
    kind: FrameKind
    line: int
    depth: int
    symbol: int | None


class _Samples(NamedTuple):
    """One thread has these rows of the tree, with times in milliseconds and numbers of samples."""

    rows: array[int]
    times: array[float]
    counts: array[int]


def firefox(named: Named) -> Iterator[str]:
    """Return the parts of the file. Without moments, samples come one after the other in an order that means nothing."""
    interval = 1000 / named.frequency if named.frequency else DEFAULT_INTERVAL
    libraries: TableNumbers[str] = TableNumbers()
    yield "{" + f'"meta": {json.dumps(_meta(named, interval))}, "pages": [], "counters": [], "profilerOverhead": [], "threads": ['
    separator = ""
    for name, samples in _threads(named, interval):
        yield separator + json.dumps(_Thread(named, libraries, samples).encoded(name))
        separator = ", "
    libs = [_library(path, named.build_ids.get(path, "")) for path in libraries.items]
    yield f'], "libs": {json.dumps(libs)}}}'


def _threads(named: Named, interval: float) -> Iterator[tuple[str, _Samples]]:
    """Return the samples of each thread, or of each group in it, with the name of the group, or an empty one."""
    tree = named.tree
    numbers: TableNumbers[tuple[int, int, str]] = TableNumbers()
    names = [""] * len(named.groups) if named.by in BY_THREAD else named.groups
    tasks = [task[:2] for task in named.tasks]
    of_row = array("I", [numbers.of((*tasks[tree.rows.second[row]], names[named.group_of[row]])) for row in range(tree.rows.count)])
    threads = numbers.items
    if named.moments is None:
        before = 0
        with rows_by_group(named, of_row, len(threads)) as found:
            for (_, _, name), rows in zip(threads, found.of_each(), strict=True):
                samples = _Samples(array("I", rows), array("d"), array("Q"))
                for row in rows:
                    samples.times.append(round(before * interval, 6))
                    samples.counts.append(tree.samples[row])
                    before += tree.samples[row]
                if rows:
                    yield name, samples
        return
    by_thread = [_Samples(array("I"), array("d"), array("Q")) for _ in threads]
    first = None
    for nanoseconds, _, row in named.moments.in_order():
        first = nanoseconds if first is None else first
        samples = by_thread[of_row[row]]
        samples.rows.append(row)
        samples.times.append(round((nanoseconds - first) / 1e6, 6))
        samples.counts.append(1)
    for (_, _, name), samples in zip(threads, by_thread, strict=True):
        if samples.rows:
            yield name, samples


def _meta(named: Named, interval: float) -> dict[str, Any]:
    facts = {"label": "Samples", "format": "string", "value": "\n".join(totals(named)).strip()}
    return {
        "preprocessedProfileVersion": VERSION,
        "version": GECKO_VERSION,
        "product": "sframegen",
        "interval": interval,
        "startTime": named.started * 1000,
        "processType": 0,
        "stackwalk": 1,
        "debug": False,
        "symbolicated": True,
        "usesOnlyOneStackType": True,
        "doesNotUseFrameImplementation": True,
        "sourceCodeIsNotOnSearchfox": True,
        "importedFrom": "sframegen",
        "sampleUnits": {"time": "ms", "eventDelay": "ms", "threadCPUDelta": "ns"},
        "categories": [{"name": name, "color": color, "subcategories": ["Other"]} for name, color in CATEGORIES.values()],
        "markerSchema": [],
        "extra": [{"label": "sframegen", "entries": [facts]}],
    }


def _library(path: str, build_id: str) -> dict[str, Any]:
    name = path.rpartition("/")[2]
    code_id = build_id if HEXADECIMAL.fullmatch(build_id) else ""
    identity = bytes.fromhex(code_id)[:UUID_BYTES].ljust(UUID_BYTES, b"\0")
    debug_id = UUID(bytes_le=identity).hex.upper() + "0" if code_id else ""
    names = {"name": name, "path": path, "debugName": name, "debugPath": path}
    return names | {"breakpadId": debug_id, "codeId": code_id or None, "arch": None}


class _Thread:
    def __init__(self, named: Named, libraries: TableNumbers[str], samples: _Samples) -> None:
        self._named, self._libraries, self._samples = named, libraries, samples
        self._strings: TableNumbers[str] = TableNumbers()
        self._resources: TableNumbers[str] = TableNumbers()
        self._funcs: TableNumbers[_Func] = TableNumbers()
        self._frames: TableNumbers[_Frame] = TableNumbers()
        self._symbols: TableNumbers[_Symbol] = TableNumbers()
        self._stacks: dict[int, int] = {0: -1}  # by node of the tree
        self._prefixes: list[int | None] = []
        self._frame_of: list[int] = []

    def encoded(self, name: str) -> dict[str, Any]:
        """`name`: of the group, or empty."""
        tree, samples = self._named.tree, self._samples
        pid, tid, process, thread = self._named.tasks[tree.rows.second[samples.rows[0]]]
        stacks = [self._stack(tree.node_of(row)) for row in samples.rows]
        encoded = {
            "name": name or thread or process or str(tid or pid),
            "isMainThread": tid in (0, pid),
            "processType": "default",
            "processName": process or str(pid),
            "processStartupTime": 0,
            "processShutdownTime": None,
            "registerTime": 0,
            "unregisterTime": None,
            "pausedRanges": [],
            "pid": str(pid),
            "tid": tid or pid,
            "samples": _columns(stack=stacks, time=samples.times.tolist(), weight=samples.counts.tolist())
            | {"weightType": "samples"},
            "markers": _columns(data=[], name=[], startTime=[], endTime=[], phase=[], category=[]),
        }
        return encoded | self._tables()

    def _tables(self) -> dict[str, Any]:
        frames, funcs, symbols = self._frames.items, self._funcs.items, self._symbols.items
        kinds = [CATEGORY[frame.kind] for frame in frames]
        resources = [self._resources.of(func.path) if _is_library(func) else -1 for func in funcs]
        scripts = [func.path if func.kind is FrameKind.RUNTIME else func.source for func in funcs]
        none, zero = [None] * len(frames), [0] * len(frames)
        tables = {
            "stackTable": _columns(
                prefix=self._prefixes,
                frame=self._frame_of,
                category=[kinds[frame] for frame in self._frame_of],
                subcategory=[0] * len(self._frame_of),
            ),
            "frameTable": _columns(
                address=[frame.address for frame in frames],
                inlineDepth=[frame.depth for frame in frames],
                category=kinds,
                subcategory=zero,
                func=[frame.func for frame in frames],
                nativeSymbol=[frame.symbol for frame in frames],
                innerWindowID=zero,
                implementation=none,
                line=[frame.line or None for frame in frames],
                column=none,
            ),
            "funcTable": _columns(
                name=[self._strings.of(func.label) for func in funcs],
                isJS=[False] * len(funcs),
                relevantForJS=[False] * len(funcs),
                resource=resources,
                fileName=[self._strings.of(script) if script else None for script in scripts],
                lineNumber=[None] * len(funcs),
                columnNumber=[None] * len(funcs),
            ),
            "nativeSymbols": _columns(
                libIndex=[self._libraries.of(symbol.path) for symbol in symbols],
                address=[symbol.start for symbol in symbols],
                name=[self._strings.of(symbol.name) for symbol in symbols],
                functionSize=[None] * len(symbols),
            ),
            "resourceTable": _columns(
                lib=[self._libraries.of(path) for path in self._resources.items],
                name=[self._strings.of(path.rpartition("/")[2]) for path in self._resources.items],
                host=[None] * len(self._resources.items),
                type=[LIBRARY] * len(self._resources.items),
            ),
        }
        return tables | {"stringArray": self._strings.items}

    def _stack(self, node: int) -> int | None:
        """The number of a node's stack, which may be new, as may those of its callers."""
        nodes, known = self._named.tree.nodes, self._stacks
        new = []
        while node not in known:
            new.append(node)
            node = nodes.second[node]
        number = known[node]
        for one in reversed(new):
            self._prefixes.append(None if number < 0 else number)
            self._frame_of.append(self._frame(nodes.first[one]))
            number = known[one] = len(self._prefixes) - 1
        return None if number < 0 else number

    def _frame(self, place: int) -> int:
        frame, outer, depth = self._named.places[place], self._named.places.outer, 0
        while place in outer:
            place, depth = outer[place], depth + 1
        function = self._named.places[place]
        func = self._funcs.of(_Func(frame.name, frame.path, frame.kind, frame.source))
        address = -1 if frame.address is None or frame.kind is not FrameKind.USER else frame.address
        symbol = None if function.start is None else self._symbols.of(_Symbol(function.path, function.start, function.function))
        return self._frames.of(_Frame(func, address, frame.kind, frame.line, depth, symbol))


def _is_library(func: _Func) -> bool:
    return bool(func.path) and func.kind is not FrameKind.RUNTIME


def _columns(**columns: list[Any]) -> dict[str, Any]:
    return columns | {"length": len(next(iter(columns.values())))}
