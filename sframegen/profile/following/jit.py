"""Code that a running process makes and describes in tables (docs/jit.md) -> functions, and numbers of files in its spans."""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from cfi.errors import FormatError
from sframegen.profile.following.files import CodeSpan
from sframegen.registry.jit_budget import Budget
from sframegen.registry.jit_list import MAX_NODES, SERIAL_AT, list_address, read_nodes
from sframegen.registry.jit_tables import JitTables, refresh_chains
from sframegen.registry.structures import CodeJitInfo
from sframegen.stack.live.process import Process
from sframegen.stack.snapshot.snapshot import StackError
from sframegen.stack.walking.frames import ADDRESS_MASK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from sframegen.format.model import FunctionTable
    from sframegen.profile.following.files import TracedFile, TracedFiles
    from sframegen.profile.following.processes import Processes, ProcessSpans
    from sframegen.registry.structures import JitNode

NAME = "[jit]"
REST = 4  # times what reading the tables of a process took, it is not done again
SECONDS = 0.5  # for one reading; the next one goes on from there


class MadeFunctions(NamedTuple):
    """The functions of a range of code at their run-time addresses, in place of those that its number had; None: damaged tables.

    They hold while the word at `check` in the process is `serial`.
    """

    file: TracedFile
    functions: FunctionTable | None
    check: int
    serial: int


class _Memory:
    """The memory of a process, which is opened for each reading: after an exec it is another one."""

    process: Process

    def read(self, address: int, size: int) -> bytes:
        return self.process.read(address, size)


class _Range:
    """A registered range of code. It had this serial from `since` to `until` at least: its tables are those of that time."""

    def __init__(self, file: TracedFile, node: JitNode, tables: JitTables, since: int) -> None:
        self.file, self.node, self.tables = file, node, tables
        self.since, self.until = since, 0
        self.described = (-1, -1)  # entries, and removed ones, that were last returned


class _Maker:
    """A process that has a list of ranges."""

    def __init__(self, program: int) -> None:
        self.program = program
        self.lists: tuple[int, ...] = ()  # their addresses
        self.memory = _Memory()
        self.files: dict[int, TracedFile] = {}  # by the address of the node
        self.ranges: dict[int, _Range] = {}  # the same
        self.nodes: dict[int, JitNode] = {}
        self.nodes_since = 0  # they have not changed since
        self.checked = 0  # what is known of the time up to then, is known
        self.ended = False
        self.rests_until = 0

    def proven(self, time: int) -> list[_Range]:
        """Return the ranges with the tables of that time."""
        return [one for one in self.ranges.values() if one.since <= time <= one.until]

    def read(self, pid: int, new_file: Callable[[], TracedFile | None]) -> list[MadeFunctions]:
        """Read the list, then all tables, then the list again. Raises StackError if the memory cannot be read."""
        began = time.monotonic_ns()
        budget = Budget(SECONDS)
        with Process(pid) as process:
            self.memory.process = process
            nodes = self._read_nodes(process, budget)
            noted = time.monotonic_ns()
            self.ranges = {at: one for at, one in self.ranges.items() if nodes.get(at) == one.node}
            for at, node in _registered(nodes).items():
                if at not in self.ranges and (file := self._file(at, new_file)) is not None:
                    info = CodeJitInfo(*node[2:])
                    self.ranges[at] = _Range(file, node, JitTables(self.memory, info, process.abi), noted)
            refresh_chains([one.tables for one in self.ranges.values()], budget)
            for one in self.ranges.values():
                one.until = max(one.until, began)
                one.tables.refresh_removed(budget)
            again = self._read_nodes(process, Budget(SECONDS))  # what was read counts only if the list is still the same
            if again != self.nodes:
                self.nodes, self.nodes_since = again, time.monotonic_ns()
            self.ranges = {at: one for at, one in self.ranges.items() if again.get(at) == one.node}
        self.checked = began
        return [described for at, one in self.ranges.items() for described in _described(at, one)]

    def _read_nodes(self, process: Process, budget: Budget) -> dict[int, JitNode]:
        nodes: dict[int, JitNode] = {}
        for address in self.lists:
            try:
                nodes |= read_nodes(self.memory, address, process.abi, budget)
            except FormatError:  # none of it counts
                continue
        return nodes if len(nodes) <= MAX_NODES else {}

    def _file(self, node: int, new_file: Callable[[], TracedFile | None]) -> TracedFile | None:
        if node not in self.files and (file := new_file()) is not None:
            self.files[node] = file
        return self.files.get(node)


class MadeCode:
    """Follows the tables of processes. Their code gets numbers of files in place of 0, in spans to publish or to walk with."""

    def __init__(self, files: TracedFiles, processes: Processes) -> None:
        self.dropped: list[int] = []  # numbers whose processes have ended, to be used again; the caller takes them out
        self._files = files
        self._free: list[TracedFile] = []  # of processes that have ended: their numbers are used again
        self._processes = processes
        self._makers: dict[int, _Maker] = {}
        self._list_addresses: dict[int, tuple[TracedFile, int | None]] = {}  # link-time, by number of the file
        self._searched: dict[int, ProcessSpans] = {}  # by process: where lists were looked for last
        self._unknown: TracedFile | None = None

    @property
    def unknown(self) -> int:
        """The number of their code that no table describes, or whose tables are not those of the time: it never has a table."""
        if self._unknown is None:
            self._unknown = self._new_file()
        return self._unknown.number if self._unknown else 0

    def follows(self, pid: int) -> bool:
        """Return True if the process, as it was at the last `refresh`, has a list of tables."""
        return pid in self._makers

    def refresh(self, pid: int, *, rests: bool = True) -> list[MadeFunctions]:
        """Read the tables of a process that has code without a file; return those that are new or have changed.

        If its spans have other numbers then, it is in `Processes.changed`. This costs little if there is no list. `rests`: not
        soon after the last reading.
        """
        maker = self._makers.get(pid)
        if maker is not None and maker.program != self._processes.program(pid):
            self.forget(pid)
            maker = None
        lists = self._lists(pid)
        if maker is None and not lists:
            return []
        if maker is None:
            maker = self._makers[pid] = _Maker(self._processes.program(pid))
        maker.lists = lists
        began = time.monotonic_ns()
        if rests and began < maker.rests_until:
            return []
        before = _spans(maker.ranges.values())
        try:
            described = maker.read(pid, self._new_file)
            maker.ended = False
        except StackError:
            maker.ended, described = True, []
        if _spans(maker.ranges.values()) != before or not maker.rests_until:
            self._processes.changed.add(pid)
        now = time.monotonic_ns()
        maker.rests_until = now + REST * (now - began)
        return described

    def refresh_all(self) -> list[MadeFunctions]:
        """Refresh those that have lists."""
        return [described for pid in list(self._makers) for described in self.refresh(pid)]

    def observe(self, pid: int, number: int, serial: int, time: int) -> None:
        """At that time, the word to check for the number was `serial`."""
        maker = self._makers.get(pid)
        for one in maker.ranges.values() if maker else ():
            if (one.file.number, one.node.serial) == (number, serial):
                one.since, one.until = min(one.since, time), max(one.until, time)

    def published(self, pid: int, spans: ProcessSpans) -> ProcessSpans:
        """Return the spans as the kernel program needs them, which checks whether tables are those of the time."""
        maker = self._makers.get(pid)
        if maker is None or maker.program != self._processes.program(pid):
            return spans
        return _over([span if span.file else span._replace(file=self.unknown) for span in spans], _spans(maker.ranges.values()))

    def at(self, pid: int, spans: ProcessSpans, time: int) -> ProcessSpans | None:
        """Return the spans of that time with the numbers of tables of that time; None: to be asked again after a `refresh`.

        Tables are those of the time if the serial was the same before and after it. Other code that they may have described is
        unknown; what they did not describe stays code without a file.
        """
        maker = self._makers.get(pid)
        if maker is None:
            return spans
        if maker.program != self._processes.program(pid) or (time > maker.checked and not maker.ended):
            return None
        proven = maker.proven(time)
        if not maker.nodes_since <= time <= maker.checked:
            spans = tuple([span if span.file else span._replace(file=self.unknown) for span in spans])
        others = [one for one in maker.ranges.values() if one not in proven]
        made = [*_spans(proven), *(span._replace(file=self.unknown) for span in _spans(others))]
        return _over(spans, sorted(made))

    def forget(self, pid: int) -> None:
        """Forget a process that ended."""
        self._searched.pop(pid, None)
        maker = self._makers.pop(pid, None)
        if maker is not None:
            self.dropped += [file.number for file in maker.files.values()]
            self._free += maker.files.values()

    def _new_file(self) -> TracedFile | None:
        return self._free.pop() if self._free else self._files.without_file(NAME)

    def _lists(self, pid: int) -> tuple[int, ...]:
        """Return the addresses of lists in a process that has code without a file."""
        spans = self._processes.spans(pid) or ()
        maker = self._makers.get(pid)
        if self._searched.get(pid) is spans:
            return maker.lists if maker else ()
        self._searched[pid] = spans
        if maker is None and all(span.file for span in spans):
            return ()
        found = ((self._list_address(span.file), span.bias) for span in spans if span.file)
        return tuple(sorted({address + bias & ADDRESS_MASK for address, bias in found if address is not None}))

    def _list_address(self, number: int) -> int | None:
        file = self._files.by_number[number]
        known = self._list_addresses.get(number)
        if known is None or known[0] is not file:  # numbers are used again
            try:
                known = file, None if file.elf is None else list_address(file.elf)
            except FormatError:
                known = file, None
            self._list_addresses[number] = known
        return known[1]


def _registered(nodes: dict[int, JitNode]) -> dict[int, JitNode]:
    """Return those of registered ranges; none if any overlap."""
    found = {at: node for at, node in nodes.items() if node.serial % 2 and node.text_start < node.text_end}
    ranges = sorted((node.text_start, node.text_end) for node in found.values())
    return {} if any(one[1] > other[0] for one, other in pairwise(ranges)) else found


def _described(at: int, one: _Range) -> list[MadeFunctions]:
    try:
        size = one.tables.size
        if size == one.described:
            return []
        functions = one.tables.functions()
    except FormatError as error:
        one.file.why, one.described = error.message, (-1, -1)
        return [MadeFunctions(one.file, None, at + SERIAL_AT, one.node.serial)]
    one.file.why, one.described = "", size
    return [MadeFunctions(one.file, functions, at + SERIAL_AT, one.node.serial)]


def _spans(ranges: Iterable[_Range]) -> list[CodeSpan]:
    return sorted(CodeSpan(one.node.text_start, one.node.text_end, 0, one.file.number) for one in ranges)


def _over(spans: Sequence[CodeSpan], made: list[CodeSpan]) -> ProcessSpans:
    """Return both, and of the first only what the others leave. Both ascend, without overlaps."""
    starts, ends = [span.start for span in made], [span.end for span in made]
    result = list(made)
    for span in spans:
        at = span.start
        for one in made[bisect_right(ends, span.start) : bisect_left(starts, span.end)]:
            if at < one.start:
                result.append(span._replace(start=at, end=one.start))
            at = one.end
        if at < span.end:
            result.append(span._replace(start=at))
    return tuple(sorted(result))
