"""Keeps the executable mappings of each process over time, from perf records and /proc, so that late samples find theirs.

A version is the list of all spans of a process from a time on. Records of mappings and execs add versions, and so does a scan,
which reads all mappings from /proc. A late record, from before the last scan, inserts a version that holds until that scan.
"""

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

MAX_DELAY = 5_000_000_000  # nanoseconds by which samples may come later than records of newer events
VERSION_LIFETIME = 60_000_000_000  # nanoseconds for which old mappings of a running process are kept
MAX_COST = 1 << 16  # spans (8 bytes each) in all versions of an ordinary process, plus VERSION_COST for each version
MAX_COST_OF_LARGE, MAX_COST_OF_ALL = 1 << 23, 1 << 24  # of one process with very many mappings, and of all such processes
LARGE_VERSIONS = 400  # versions that such a process may keep
VERSION_COST = 16  # spans that take as much memory as a version
NO_PID = (0, (1 << 32) - 1)  # pids in records of processes outside of our PID namespace
MAX_SPANS = 1 << 16  # of a process; the kernel's own limit of mappings is lower

# Reasons why the mappings at some time are unknown
NOT_FOLLOWED = "the process ended before its mappings were known"
NOT_WRITTEN = "records of mappings were lost"
NOT_KEPT = "the mappings of that time were not known: the process changes them too often"

ProcessSpans = tuple[CodeSpan, ...]
PROGRAM_NUMBERS = count(1)


class Resolver(Protocol):
    """Opens the mapped files, and returns the spans of mappings."""

    def find_spans(self, record: MmapRecord, time: int) -> list[CodeSpan]:
        """Return the spans of a new executable mapping, ascending, all inside it."""


class Version(NamedTuple):
    """The spans of a process from a time on (CLOCK_MONOTONIC, nanoseconds); None: unknown."""

    since: int
    spans: ProcessSpans | None


class Scan(NamedTuple):
    """The newest version after the mappings were read from /proc, which was at the time `read_at`."""

    version: Version
    read_at: int


class ProcessState:
    """A process and its mappings over time. Children share the tuples of spans with their parent."""

    def __init__(self, name: str, version: Version) -> None:
        self.name = name
        self.program = next(PROGRAM_NUMBERS)  # another number after each exec
        self.threads: dict[int, str] = {}  # names of threads that differ from the name of the process, by tid
        self.versions = deque([version])
        self.cost = _cost_of(version)
        self.changed_at = version.since  # time of the last record that changed mappings
        self.applied_at_scan = 0  # time up to which all records had been applied before the last scan; older ones come late
        self.last_scan = Scan(version, version.since)
        self.ended_at = 0  # 0: it has not ended
        self.single_threaded = False  # True if it is known to have had only one thread

    @property
    def spans(self) -> ProcessSpans | None:
        return self.versions[-1].spans

    def set_spans(self, since: int, spans: ProcessSpans | None, max_cost: int = MAX_COST) -> None:
        """Add a version that holds from `since` on, and drop old versions. `max_cost`: of all versions."""
        self.versions.append(Version(since, spans))
        self.cost += _cost_of(self.versions[-1])
        while len(self.versions) > 1 and (self.cost > max_cost or self.versions[1].since < since - VERSION_LIFETIME):
            self.cost -= _cost_of(self.versions.popleft())

    def insert_version(self, time: int, spans: ProcessSpans) -> None:
        """Insert a version that holds until the last scan, even if that scan found the spans from before this version."""
        scanned, read_at = self.last_scan
        index = next((number for number, version in enumerate(self.versions) if version is scanned), None)
        if index is None:
            return
        added = [Version(time, spans)]
        if scanned.since < read_at:  # the scan found no change: its version holds before and after the inserted one
            index += 1
            # Copied, so that `apply_unmapping` does not take them for the older ones.
            copies = tuple(map(CodeSpan._make, scanned.spans or ()))
            added.append(Version(read_at, copies))
            self.last_scan = Scan(added[-1], read_at)
        for version in reversed(added):
            self.versions.insert(index, version)
            self.cost += _cost_of(version)

    def spans_at(self, time: int) -> ProcessSpans | None:
        """Return the spans at a time; None if they are unknown."""
        for version in reversed(self.versions):
            if version.since <= time:
                return version.spans
        return None


class Processes:
    """The mappings of all followed processes. `targets`: follow only these and their descendants; None: all."""

    def __init__(self, resolver: Resolver, targets: Iterable[int] | None = None) -> None:
        self.changed: set[int] = set()  # processes with new mappings; the caller removes those that it has handled
        self.ended: set[int] = set()  # processes that were dropped; the caller removes them, too
        self.complete_since = 0  # nanoseconds; no later record is missing
        self.moved: defaultdict[int, MovedCode] = defaultdict(MovedCode)  # comparisons of moved code, by pid
        self._resolver = resolver
        self._all = targets is None
        self._states: dict[int, ProcessState] = {pid: ProcessState("", Version(0, None)) for pid in targets or ()}
        self._ended_queue: deque[tuple[int, int]] = deque()  # time, pid

    def __contains__(self, pid: int) -> bool:
        return pid in self._states

    def __len__(self) -> int:
        return len(self._states)

    def spans(self, pid: int, time: int | None = None) -> ProcessSpans | None:
        """Return the spans of a process now, or at an earlier time; None if they are unknown, so that it has to be scanned."""
        state = self._states.get(pid)
        if state is None:
            return None
        return state.spans if time is None else state.spans_at(time)

    def has_ended(self, pid: int) -> bool:
        """Return True if the process is known to have ended, or was never seen."""
        state = self._states.get(pid)
        return state is None or state.ended_at > 0

    def explain_unknown(self, pid: int, time: int) -> str:
        """Return the reason why `spans` returned None for that time."""
        if time <= self.complete_since:
            return NOT_WRITTEN
        return NOT_FOLLOWED if self.has_ended(pid) and not self.spans(pid) else NOT_KEPT

    def program(self, pid: int) -> int:
        """Return a number that is unique to the program that this process executes; 0 if the process is unknown."""
        state = self._states.get(pid)
        return state.program if state else 0

    def name_of(self, pid: int) -> str:
        """Return the name of a process; empty if unknown."""
        state = self._states.get(pid)
        return state.name if state else ""

    def thread_name(self, pid: int, tid: int) -> str:
        """Return the name of a thread, or, if it is unknown, that of the process."""
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

    def set_scanned(self, pid: int, spans: Sequence[CodeSpan], name: str, time: int, read_at: int = 0) -> None:
        """Store spans that were read from /proc at the time `read_at`, after all records up to `time` had been applied."""
        state = self._states.get(pid)
        scanned = tuple(spans[:MAX_SPANS])
        if state is None:
            state = self._states[pid] = ProcessState(name, Version(0, scanned))
        elif state.spans != scanned:
            self._set_spans(state, max(time, read_at), scanned)  # until then, the spans from the records hold
        state.last_scan = Scan(state.versions[-1], max(time, read_at))
        state.name, state.applied_at_scan, state.ended_at = name, time, 0
        self.changed.add(pid)

    def confirm_scan(self, pid: int) -> None:
        """Date the last scan's spans back to the last known change, if the records that came since show no other change."""
        state = self._states.get(pid)
        if state is None or state.last_scan.version is not state.versions[-1]:
            return
        since = max(state.changed_at, self.complete_since)
        if since <= state.applied_at_scan and state.spans_at(since) is None:
            state.versions[-1] = state.versions[-1]._replace(since=since)
            state.last_scan = state.last_scan._replace(version=state.versions[-1])

    def forget_mappings(self, time: int, end: int) -> None:
        """Forget all mappings from `time` on, until they are scanned again, because records until `end` may be missing."""
        self.complete_since = max(self.complete_since, end)
        for moved in self.moved.values():
            moved.answers.clear()
        for pid, state in self._states.items():
            self._set_spans(state, time, None)
            state.program = next(PROGRAM_NUMBERS)  # the record of an exec may be among the missing ones
            state.single_threaded = False
            self.changed.add(pid)
            if not Path(f"/proc/{pid}").exists():  # the record of its end may be among the missing ones
                state.ended_at = time
                self._ended_queue.append((time, pid))

    def forget_files(self, numbers: set[int], time: int) -> None:
        """Treat code mapped from these files, which were rewritten, as code without a file from `time` on."""
        for pid in self._list_users(numbers):
            state = self._states[pid]
            spans = (span._replace(file=0, bias=0) if span.file in numbers else span for span in state.spans or ())
            self._set_spans(state, time, tuple(spans))
            self.changed.add(pid)

    def mark_users_changed(self, numbers: set[int]) -> None:
        """Mark all processes that have mapped these files as changed."""
        self.changed.update(self._list_users(numbers))

    def _list_users(self, numbers: set[int]) -> list[int]:
        """Return the pids of processes that have mapped these files."""
        return [pid for pid, state in self._states.items() if any(span.file in numbers for span in state.spans or ())]

    def apply_unmapping(self, pid: int, start: int, end: int, time: int) -> None:
        """Drop the mappings at [start, end) that existed at that time. Mappings that were made there later stay."""
        state = self._states.get(pid)
        spans = state.versions[-1].spans if state else None
        if state is None or not spans or not _select_spans(spans, start, end):  # most unmapped memory has no code
            return
        unmapped = _select_spans(state.spans_at(time) or (), start, end)
        if not unmapped:
            return
        unmapped_ids = {id(span) for span in unmapped}  # by identity, because an equal mapping may have been made since
        low, high = unmapped[0].start, unmapped[-1].end
        current = _select_spans(spans, low, high)
        left = tuple(span for span in current if id(span) not in unmapped_ids)
        if len(left) < len(current):
            first = _find_first(spans, low)
            remaining = (*spans[:first], *left, *spans[first + len(current) :])
            self._set_spans(state, max(time, state.versions[-1].since), remaining)
            self.changed.add(pid)

    def _set_spans(self, state: ProcessState, since: int, spans: ProcessSpans | None) -> None:
        """Set the spans of a process. It may cost more than MAX_COST while all such processes cost at most MAX_COST_OF_ALL."""
        max_cost = MAX_COST
        if state.cost + _cost_of(Version(since, spans)) > MAX_COST:
            others = sum(other.cost for other in self._states.values() if other is not state and other.cost > MAX_COST)
            max_cost = max(MAX_COST, min(MAX_COST_OF_LARGE, MAX_COST_OF_ALL - others, LARGE_VERSIONS * len(spans or ())))
        state.set_spans(since, spans, max_cost)

    def files_in_use(self) -> set[int]:
        """Return the numbers of all files in any version of any process."""
        distinct = {id(spans): spans for state in self._states.values() for _, spans in state.versions if spans}  # many are shared
        return {span.file for spans in distinct.values() for span in spans}

    def drop_ended(self, time: int) -> None:
        """Drop the processes that ended more than MAX_DELAY before that time, so that late samples still find them."""
        while self._ended_queue and self._ended_queue[0][0] < time - MAX_DELAY:
            ended_at, pid = self._ended_queue.popleft()
            state = self._states.get(pid)
            if state is None or state.ended_at != ended_at:
                continue
            if not state.single_threaded and _has_threads(pid):
                self._ended_queue.append((time, pid))  # look again later
                state.ended_at = time
                continue
            del self._states[pid]
            self.moved.pop(pid, None)
            self.changed.discard(pid)
            self.ended.add(pid)

    def _apply_mapping(self, record: MmapRecord, time: int) -> None:
        """Add an executable mapping, unless the process is not followed or the last scan has found it already."""
        state = self._states.get(record.pid)
        if not record.executable:
            return
        if state is None and self._all:
            state = self._states[record.pid] = ProcessState("", Version(time, None))
        if state is None:
            return
        if time <= state.applied_at_scan:  # the kernel wrote this record only after the records for the scan had been read
            before = state.spans_at(time)
            if before is not None:
                new = self._resolver.find_spans(record, time)
                state.insert_version(time, replace_spans(before, record.start, record.end, new))
            return
        state.changed_at = time
        if state.spans is not None:
            new = self._resolver.find_spans(record, time)
            self._set_spans(state, time, replace_spans(state.spans, record.start, record.end, new))
            self.changed.add(record.pid)

    def _apply_name(self, record: CommRecord, time: int) -> None:
        """Set the name of a process or thread. An exec also ends all mappings of the process."""
        state = self._states.get(record.pid)
        if state is None:
            if not (self._all and record.by_exec):
                return
            state = self._states[record.pid] = ProcessState("", Version(time, None))
        if record.by_exec:
            self.moved.pop(record.pid, None)
        if record.by_exec and time <= state.applied_at_scan:
            if time > self.complete_since:
                state.insert_version(time, ())
        elif record.by_exec:
            state.threads, state.program = {}, next(PROGRAM_NUMBERS)
            state.ended_at = 0
            state.changed_at = time
            self._set_spans(state, time, () if time > self.complete_since else None)
            self.changed.add(record.pid)
        if record.tid == record.pid:
            state.name = record.name
        else:
            state.threads[record.tid] = record.name

    def _begin_task(self, record: TaskRecord, time: int) -> None:
        """Add a child process, with its parent's name and mappings, or the name of a new thread."""
        parent = self._states.get(record.parent_pid)
        if record.pid != record.parent_pid:
            self.moved.pop(record.pid, None)
            if parent is None and not self._all:
                self._states.pop(record.pid, None)  # a target's pid was reused by a process that is not followed
                return
            name = parent.threads.get(record.parent_tid, parent.name) if parent else ""
            child = self._states[record.pid] = ProcessState(name, Version(time, parent.spans_at(time) if parent else None))
            child.single_threaded = True
        elif parent is not None:
            parent.single_threaded = False
            if record.parent_tid in parent.threads:
                parent.threads[record.tid] = parent.threads[record.parent_tid]

    def _end_task(self, record: TaskRecord, time: int) -> None:
        """Note that a process has ended, or forget the name of a thread that has."""
        state = self._states.get(record.pid)
        if state is None:
            return
        if record.tid == record.pid:
            state.ended_at = time
            self._ended_queue.append((time, record.pid))
        else:
            state.threads.pop(record.tid, None)


def replace_spans(spans: ProcessSpans, start: int, end: int, new: Sequence[CodeSpan]) -> ProcessSpans:
    """Return the spans with `new` in place of everything at [start, end). Spans that reach beyond are cut."""
    first = _find_first(spans, start)
    stop = bisect_left(spans, (end,), first)
    overlapping = spans[first:stop]
    left = [overlapping[0]._replace(end=start)] if overlapping and overlapping[0].start < start else []
    right = [overlapping[-1]._replace(start=end)] if overlapping and overlapping[-1].end > end else []
    return (*spans[:first], *left, *new, *right, *spans[stop:])[:MAX_SPANS]


def _select_spans(spans: ProcessSpans, start: int, end: int) -> ProcessSpans:
    """Return the spans with an address in [start, end)."""
    first = _find_first(spans, start)
    return spans[first : bisect_left(spans, (end,), first)]


def _find_first(spans: ProcessSpans, address: int) -> int:
    """Return the index of the first span that ends after an address."""
    first = bisect_left(spans, (address + 1,))  # tuples compare by their first element, a span's start
    return first - 1 if first and spans[first - 1].end > address else first


def _cost_of(version: Version) -> int:
    return VERSION_COST + len(version.spans or ())


def _has_threads(pid: int) -> bool:
    """Return True if a process whose first thread has ended still has other threads."""
    try:
        return os.listdir(f"/proc/{pid}/task") != [str(pid)]  # noqa: PTH208 - hundreds in a second: without pathlib
    except OSError:
        return False
