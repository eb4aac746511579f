"""The Firefox Profiler's "processed profile": tables of columns for each thread. It upgrades older versions itself."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from sframegen.profile.report.formats.frame_numbers import TableNumbers
from sframegen.profile.report.named import FrameKind
from sframegen.profile.report.table import totals

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sframegen.profile.report.named import Named, NamedFrame, NamedStack

VERSION = 47  # of the format, as its changelog numbers them
GECKO_VERSION = 27  # of the Gecko format that version 47 was made for
LIBRARY = 1  # type of a resource
DEFAULT_INTERVAL = 1.0  # milliseconds
UUID_BYTES = 16
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


class _Time(NamedTuple):
    """Samples of one stack at one time."""

    milliseconds: float
    stack: NamedStack
    samples: int


def firefox(named: Named) -> Iterator[str]:
    """Return the parts of the file. Without moments, samples come one after the other in an order that means nothing."""
    interval = 1000 / named.frequency if named.frequency else DEFAULT_INTERVAL
    libraries: TableNumbers[str] = TableNumbers()
    threads: dict[tuple[int, int, str], list[_Time]] = {}
    for time in _times(named, interval):
        stack = time.stack
        threads.setdefault((stack.pid, stack.tid, "" if named.by in BY_THREAD else stack.group), []).append(time)
    made = [_Thread(libraries, times).encoded(name) for (_, _, name), times in threads.items()]
    document = {
        "meta": _meta(named, interval),
        "libs": [_library(path, named.build_ids.get(path, "")) for path in libraries.items],
        "pages": [],
        "counters": [],
        "profilerOverhead": [],
        "threads": made,
    }
    yield from json.JSONEncoder().iterencode(document)


def _times(named: Named, interval: float) -> Iterator[_Time]:
    if named.moments is None:
        before = 0
        for stack in named.stacks:
            yield _Time(before * interval, stack, stack.count)
            before += stack.count
        return
    moments = sorted(named.moments, key=lambda moment: moment.nanoseconds)
    for moment in moments:
        yield _Time((moment.nanoseconds - moments[0].nanoseconds) / 1e6, moment.stack, 1)


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
    identity = bytes.fromhex(build_id)[:UUID_BYTES].ljust(UUID_BYTES, b"\0")
    debug_id = UUID(bytes_le=identity).hex.upper() + "0" if build_id else ""
    names = {"name": name, "path": path, "debugName": name, "debugPath": path}
    return names | {"breakpadId": debug_id, "codeId": build_id or None, "arch": None}


class _Thread:
    def __init__(self, libraries: TableNumbers[str], times: list[_Time]) -> None:
        self._libraries, self._times = libraries, times
        self._strings: TableNumbers[str] = TableNumbers()
        self._resources: TableNumbers[str] = TableNumbers()
        self._funcs: TableNumbers[_Func] = TableNumbers()
        self._frames: TableNumbers[tuple[int, int, FrameKind]] = TableNumbers()  # function, address, kind
        self._stacks: TableNumbers[tuple[int | None, int]] = TableNumbers()  # the caller's stack, frame

    def encoded(self, name: str) -> dict[str, Any]:
        """`name`: of the group, or empty."""
        first = self._times[0].stack
        samples = [self._stack(time.stack.frames) for time in self._times]
        tid = first.tid or first.pid
        thread = {
            "name": name or first.thread or first.process or str(tid),
            "isMainThread": tid == first.pid,
            "processType": "default",
            "processName": first.process or str(first.pid),
            "processStartupTime": 0,
            "processShutdownTime": None,
            "registerTime": 0,
            "unregisterTime": None,
            "pausedRanges": [],
            "pid": str(first.pid),
            "tid": tid,
            "samples": _columns(
                stack=samples,
                time=[round(time.milliseconds, 6) for time in self._times],
                weight=[time.samples for time in self._times],
            )
            | {"weightType": "samples"},
            "markers": _columns(data=[], name=[], startTime=[], endTime=[], phase=[], category=[]),
        }
        return thread | self._tables()

    def _tables(self) -> dict[str, Any]:
        stacks, frames, funcs = self._stacks.items, self._frames.items, self._funcs.items
        kinds = [CATEGORY[kind] for _, _, kind in frames]
        resources = [self._resources.of(func.path) if _is_library(func) else -1 for func in funcs]
        scripts = [func.path if func.kind is FrameKind.RUNTIME and func.path else None for func in funcs]
        none, zero = [None] * len(frames), [0] * len(frames)
        tables = {
            "stackTable": _columns(
                prefix=[caller for caller, _ in stacks],
                frame=[frame for _, frame in stacks],
                category=[kinds[frame] for _, frame in stacks],
                subcategory=[0] * len(stacks),
            ),
            "frameTable": _columns(
                address=[address for _, address, _ in frames],
                inlineDepth=zero,
                category=kinds,
                subcategory=zero,
                func=[func for func, _, _ in frames],
                nativeSymbol=none,
                innerWindowID=zero,
                implementation=none,
                line=none,
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
            "nativeSymbols": _columns(libIndex=[], address=[], name=[], functionSize=[]),
            "resourceTable": _columns(
                lib=[self._libraries.of(path) for path in self._resources.items],
                name=[self._strings.of(path.rpartition("/")[2]) for path in self._resources.items],
                host=[None] * len(self._resources.items),
                type=[LIBRARY] * len(self._resources.items),
            ),
        }
        return tables | {"stringArray": self._strings.items}

    def _stack(self, frames: Iterable[NamedFrame]) -> int | None:
        stack = None
        for frame in frames:
            func = self._funcs.of(_Func(frame.label, frame.path, frame.kind))
            address = -1 if frame.address is None or frame.kind is not FrameKind.USER else frame.address
            stack = self._stacks.of((stack, self._frames.of((func, address, frame.kind))))
        return stack


def _is_library(func: _Func) -> bool:
    return bool(func.path) and func.kind is not FrameKind.RUNTIME


def _columns(**columns: list[Any]) -> dict[str, Any]:
    return columns | {"length": len(next(iter(columns.values())))}
