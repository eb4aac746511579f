"""The executable mappings of each process over time, from perf records and /proc."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections import defaultdict, deque
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from sframegen.profile.events.event_records import CommRecord, EventRecord, MmapRecord, SampleRecord, TaskRecord
from sframegen.profile.following.files import CodeSpan
from sframegen.stack.snapshot import MovedCode

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


HISTORY = 5_000_000_000  # nanoseconds, by which samples may come later than records of newer events
VERSIONS_KEPT = 60_000_000_000  # nanoseconds for which old mappings of a living process are kept
MAX_KEPT = 1 << 16  # spans in all versions of a process: some processes map and unmap hundreds of times a second
MAX_OF_ONE, MAX_OF_ALL = 1 << 23, 1 << 24  # spans in versions of one very large process, and of all: 8 bytes each
LARGE_VERSIONS = 400  # of such a process
VERSION_COSTS = 16  # spans that take as much memory as a version
NO_PID = (0, (1 << 32) - 1)  # of processes outside of our PID namespace
MAX_SPANS = 1 << 16  # of a process; the kernel's own limit of mappings is below

# Why the mappings of a time are not known.
NOT_FOLLOWED = "the process ended before its mappings were known"
NOT_WRITTEN = "records of mappings were lost"
NOT_KEPT = "the mappings of that time were not known: the process changes them too often"

ProcessSpans = tuple[CodeSpan, ...]
PROGRAMS = count(1)


class Resolver(Protocol):
    """Opens the files of mappings, and returns their spans."""

    def spans_of(self, record: MmapRecord, time: int) -> list[CodeSpan]:
        """Return the spans of a new executable mapping, ascending, all inside it."""


class Version(NamedTuple):
    """The spans of a process from a time on (CLOCK_MONOTONIC, nanoseconds); None: unknown."""

    since: int
    spans: ProcessSpans | None


class ProcessState:
    """A process and its mappings over time. The tuples of spans are shared with its children."""

    def __init__(self, name: str, version: Version) -> None:
        self.name = name
        self.program = next(PROGRAMS)  # another number after each exec
        self.threads: dict[int, str] = {}  # names of threads that are not the name of the process
        self.versions = deque([version])
        self.kept = _cost(version)
        self.changed_at = version.since  # time of the last record that changed mappings
        self.scanned_at = 0  # time of the last scan: earlier records are outdated
        self.scanned = (version, version.since)  # newest version at the last scan, and since when it is what /proc said
        self.ended_at = 0
        self.alone = False  # it is known to have had one thread only

    @property
    def spans(self) -> ProcessSpans | None:
        return self.versions[-1].spans

    def set_spans(self, since: int, spans: ProcessSpans | None, most: int = MAX_KEPT) -> None:
        """Add a version that holds from `since` on. `most`: limit of the spans in all versions."""
        self.versions.append(Version(since, spans))
        self.kept += _cost(self.versions[-1])
        while len(self.versions) > 1 and (self.kept > most or self.versions[1].since < since - VERSIONS_KEPT):
            self.kept -= _cost(self.versions.popleft())

    def insert(self, time: int, spans: ProcessSpans) -> None:
        """Add a version that holds until the last scan, even if that scan found the spans from before this version."""
        last, since = self.scanned
        place = next((number for number, version in enumerate(self.versions) if version is last), None)
        if place is None:
            return
        added = [Version(time, spans)]
        if last.since < since:
            place += 1
            found = tuple(map(CodeSpan._make, last.spans or ()))  # others: `unmapped` must not end them with those from before
            added.append(Version(since, found))
            self.scanned = added[-1], since
        for version in reversed(added):
            self.versions.insert(place, version)
            self.kept += _cost(version)

    def at(self, time: int) -> ProcessSpans | None:
        for version in reversed(self.versions):
            if version.since <= time:
                return version.spans
        return None


class Processes:
    """All followed processes. `targets`: only these and their descendants; None: all."""

    def __init__(self, resolver: Resolver, targets: Iterable[int] | None = None) -> None:
        self.changed: set[int] = set()  # the caller takes out what it has used
        self.ended: set[int] = set()  # the same
        self.whole_since = 0  # nanoseconds, after which no record is missing
        self.moved: defaultdict[int, MovedCode] = defaultdict(MovedCode)  # comparisons of moved code, by process
        self._resolver = resolver
        self._all = targets is None
        self._states: dict[int, ProcessState] = {pid: ProcessState("", Version(0, None)) for pid in targets or ()}
        self._leaving: deque[tuple[int, int]] = deque()  # time, pid

    def __contains__(self, pid: int) -> bool:
        return pid in self._states

    def __len__(self) -> int:
        return len(self._states)

    def spans(self, pid: int, time: int | None = None) -> ProcessSpans | None:
        """Return the spans of a process now, or at an earlier time; None if they are unknown."""
        state = self._states.get(pid)
        if state is None:
            return None
        return state.spans if time is None else state.at(time)

    def has_ended(self, pid: int) -> bool:
        """Return True if the process has ended, as far as is known, or was never seen."""
        state = self._states.get(pid)
        return state is None or state.ended_at > 0

    def why_unknown(self, pid: int, time: int) -> str:
        """Return why `spans` returned None for that time."""
        if time <= self.whole_since:
            return NOT_WRITTEN
        return NOT_FOLLOWED if self.has_ended(pid) and not self.spans(pid) else NOT_KEPT

    def program(self, pid: int) -> int:
        """Return a number that is unique for this program in this process; 0 if the process is unknown."""
        state = self._states.get(pid)
        return state.program if state else 0

    def name_of(self, pid: int) -> str:
        """Return the name of a process; empty if unknown."""
        state = self._states.get(pid)
        return state.name if state else ""

    def thread_name(self, pid: int, tid: int) -> str:
        """Return the name of a thread; that of the process if it is unknown."""
        state = self._states.get(pid)
        name = state.threads.get(tid, "") if state else ""
        if not name and tid != pid:
            with suppress(OSError):
                name = Path(f"/proc/{pid}/task/{tid}/comm").read_text(errors="surrogateescape").removesuffix("\n")
        return name or self.name_of(pid)

    def apply(self, record: EventRecord, time: int) -> None:
        """Apply a record. Records should come in the order of their times."""
        if isinstance(record, SampleRecord) or record.pid in NO_PID:
            pass
        elif isinstance(record, TaskRecord):
            (self._begin_task if record.begins else self._end_task)(record, time)
        elif isinstance(record, CommRecord):
            self._apply_name(record, time)
        else:
            self._apply_mapping(record, time)

    def set_scanned(self, pid: int, spans: Sequence[CodeSpan], name: str, time: int, read: int = 0) -> None:
        """Take over spans that were read from /proc at time `read`, not before `time`; records up to `time` had been applied."""
        state = self._states.get(pid)
        found = tuple(spans[:MAX_SPANS])
        if state is None:
            state = self._states[pid] = ProcessState(name, Version(0, found))
        elif state.spans != found:
            self._set_spans(state, max(time, read), found)  # records have what was before
        state.scanned = state.versions[-1], max(time, read)
        state.name, state.scanned_at, state.ended_at = name, time, 0
        self.changed.add(pid)

    def confirm_scan(self, pid: int) -> None:
        """Confirm the last scan after applying later records: if none is of the process, its spans held since the scan before."""
        state = self._states.get(pid)
        if state is None or state.scanned[0] is not state.versions[-1]:
            return
        found, read = state.scanned
        since = max(state.changed_at, self.whole_since)
        if since <= state.scanned_at and state.at(since) is None:
            state.versions[-1] = found._replace(since=since)
            state.scanned = state.versions[-1], read

    def forget_mappings(self, time: int, end: int) -> None:
        """Forget mappings because records between these times may be missing: they are unknown until a scan after `end`."""
        self.whole_since = max(self.whole_since, end)
        for moved in self.moved.values():
            moved.answers.clear()
        for pid, state in self._states.items():
            self._set_spans(state, time, None)
            state.program = next(PROGRAMS)  # an exec may be among what was lost
            state.alone = False
            self.changed.add(pid)
            if not Path(f"/proc/{pid}").exists():  # its end may be among what was lost
                state.ended_at = time
                self._leaving.append((time, pid))

    def forget_files(self, numbers: set[int], time: int) -> None:
        """Forget rewritten files: code mapped from them counts as code without a file."""
        for pid in self._having(numbers):
            state = self._states[pid]
            spans = (span._replace(file=0, bias=0) if span.file in numbers else span for span in state.spans or ())
            self._set_spans(state, time, tuple(spans))
            self.changed.add(pid)

    def has_news(self, numbers: set[int]) -> None:
        """Mark all processes that have mapped these files as changed."""
        self.changed.update(self._having(numbers))

    def _having(self, numbers: set[int]) -> list[int]:
        """Return the processes that have mapped these files."""
        return [pid for pid, state in self._states.items() if any(span.file in numbers for span in state.spans or ())]

    def unmapped(self, pid: int, start: int, end: int, time: int) -> None:
        """Forget the mappings at [start, end) from before that time. Later mappings there stay."""
        state = self._states.get(pid)
        spans = state.versions[-1].spans if state else None
        if state is None or not spans or not _within(spans, start, end):  # most memory is where no code is
            return
        found = _within(state.at(time) or (), start, end)
        if not found:
            return
        gone = {id(span) for span in found}  # an equal one may be there since
        low, high = found[0].start, found[-1].end
        here = _within(spans, low, high)
        left = tuple(span for span in here if id(span) not in gone)
        if len(left) < len(here):
            first = _first_after(spans, low)
            left = (*spans[:first], *left, *spans[first + len(here) :])
            self._set_spans(state, max(time, state.versions[-1].since), left)
            self.changed.add(pid)

    def _set_spans(self, state: ProcessState, since: int, spans: ProcessSpans | None) -> None:
        """Set the spans of a process, which may keep more than MAX_KEPT while such processes together keep at most MAX_OF_ALL."""
        most = MAX_KEPT
        if state.kept + _cost(Version(since, spans)) > MAX_KEPT:
            others = sum(one.kept for one in self._states.values() if one is not state and one.kept > MAX_KEPT)
            most = max(MAX_KEPT, min(MAX_OF_ONE, MAX_OF_ALL - others, LARGE_VERSIONS * len(spans or ())))
        state.set_spans(since, spans, most)

    def files_in_use(self) -> set[int]:
        """Return the numbers of all files in kept versions of mappings."""
        tuples = {id(spans): spans for state in self._states.values() for _, spans in state.versions if spans}
        return {span.file for spans in tuples.values() for span in spans}

    def sweep(self, time: int) -> None:
        """Drop processes that ended a while before that time."""
        while self._leaving and self._leaving[0][0] < time - HISTORY:
            ended_at, pid = self._leaving.popleft()
            state = self._states.get(pid)
            if state is None or state.ended_at != ended_at:
                continue
            if not state.alone and _has_threads(pid):
                self._leaving.append((time, pid))
                state.ended_at = time
                continue
            del self._states[pid]
            self.moved.pop(pid, None)
            self.changed.discard(pid)
            self.ended.add(pid)

    def _apply_mapping(self, record: MmapRecord, time: int) -> None:
        state = self._states.get(record.pid)
        if not record.executable:
            return
        if state is None and self._all:
            state = self._states[record.pid] = ProcessState("", Version(time, None))
        if state is None:
            return
        if time <= state.scanned_at:  # the kernel had not written it when records were read before the scan
            before = state.at(time)
            if before is not None:
                new = self._resolver.spans_of(record, time)
                state.insert(time, with_spans(before, record.start, record.end, new))
            return
        state.changed_at = time
        if state.spans is not None:
            new = self._resolver.spans_of(record, time)
            self._set_spans(state, time, with_spans(state.spans, record.start, record.end, new))
            self.changed.add(record.pid)

    def _apply_name(self, record: CommRecord, time: int) -> None:
        state = self._states.get(record.pid)
        if state is None:
            if not (self._all and record.by_exec):
                return
            state = self._states[record.pid] = ProcessState("", Version(time, None))
        if record.by_exec:
            self.moved.pop(record.pid, None)
        if record.by_exec and time <= state.scanned_at:
            if time > self.whole_since:
                state.insert(time, ())
        elif record.by_exec:
            state.threads, state.program = {}, next(PROGRAMS)
            state.ended_at = 0
            state.changed_at = time
            self._set_spans(state, time, () if time > self.whole_since else None)
            self.changed.add(record.pid)
        if record.tid == record.pid:
            state.name = record.name
        else:
            state.threads[record.tid] = record.name

    def _begin_task(self, record: TaskRecord, time: int) -> None:
        parent = self._states.get(record.parent_pid)
        if record.pid != record.parent_pid:
            self.moved.pop(record.pid, None)
            if parent is None and not self._all:
                self._states.pop(record.pid, None)  # the number is used again
                return
            name = parent.threads.get(record.parent_tid, parent.name) if parent else ""
            child = self._states[record.pid] = ProcessState(name, Version(time, parent.at(time) if parent else None))
            child.alone = True
        elif parent is not None:
            parent.alone = False
            if record.parent_tid in parent.threads:
                parent.threads[record.tid] = parent.threads[record.parent_tid]

    def _end_task(self, record: TaskRecord, time: int) -> None:
        state = self._states.get(record.pid)
        if state is None:
            return
        if record.tid == record.pid:
            state.ended_at = time
            self._leaving.append((time, record.pid))
        else:
            state.threads.pop(record.tid, None)


def with_spans(spans: ProcessSpans, start: int, end: int, new: Sequence[CodeSpan]) -> ProcessSpans:
    """Return the spans with `new` in place of all spans at [start, end)."""
    first = _first_after(spans, start)
    last = bisect_left(spans, (end,), first)
    left = [spans[first]._replace(end=start)] if first < last and spans[first].start < start else []
    right = [spans[last - 1]._replace(start=end)] if first < last and spans[last - 1].end > end else []
    return (*spans[:first], *left, *new, *right, *spans[last:])[:MAX_SPANS]


def _within(spans: ProcessSpans, start: int, end: int) -> ProcessSpans:
    """Return the spans with an address in [start, end)."""
    first = _first_after(spans, start)
    return spans[first : bisect_left(spans, (end,), first)]


def _first_after(spans: ProcessSpans, address: int) -> int:
    """Return the index of the first span that ends after that address."""
    first = bisect_left(spans, (address + 1,))  # a span is compared by its start
    return first - 1 if first and spans[first - 1].end > address else first


def _cost(version: Version) -> int:
    return VERSION_COSTS + len(version.spans or ())


def _has_threads(pid: int) -> bool:
    """Return True if a process whose first thread has ended has other threads."""
    try:
        return os.listdir(f"/proc/{pid}/task") != [str(pid)]  # noqa: PTH208 - hundreds in a second: without pathlib
    except OSError:
        return False
