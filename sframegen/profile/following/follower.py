"""Follows the processes of this machine: records of all CPUs in the order of their times, and /proc for earlier mappings."""

from __future__ import annotations

import errno
import mmap
import os
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sframegen.elf.records import PT, Phdr
from sframegen.profile.events.attributes import (
    CLOCK_MONOTONIC,
    FOLLOWING,
    SOFTWARE_DUMMY,
    TYPE_SOFTWARE,
    EventAttributes,
    EventError,
    SampleType,
    open_event,
)
from sframegen.profile.events.cpu_rings import GAP, CpuRings, online_cpus
from sframegen.profile.events.event_records import MmapRecord, RecordReader
from sframegen.profile.following.files import CodeSpan, TracedFile, TracedFiles
from sframegen.profile.following.mapped_file import FileKey, MappedPlace, key_of_row
from sframegen.profile.following.processes import Processes, ProcessSpans
from sframegen.program.helper import helpers
from sframegen.stack.live.process import parse_mappings, part_of_memory
from sframegen.stack.mappings import MAX_VDSO, VDSO, Mapping
from sframegen.stack.walking.frames import ADDRESS_MASK

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sframegen.elf.file import ElfFile
    from sframegen.stack.snapshot import MovedCode


MAX_KEPT = 64  # spans kept of a file, by mapped place: a library has one or two
MAX_SEGMENTS = 64  # executable ones of a file; linkers make one or two
PAGE_MASK = mmap.PAGESIZE - 1


class FileMapping(NamedTuple):
    """A mapping: addresses [start, end) from `offset` in a file."""

    start: int
    end: int
    offset: int


def spans_in(traced: TracedFile | None, mapped: FileMapping) -> list[CodeSpan]:
    """Return the spans of an executable mapping; for a file that is not open, one span with its number."""
    if traced is None:
        return [CodeSpan(mapped.start, mapped.end, 0, 0)]
    if traced.elf is None:
        return [CodeSpan(mapped.start, mapped.end, mapped.start - mapped.offset & ADDRESS_MASK, traced.number)]
    size = mapped.end - mapped.start
    spans = traced.spans.get((mapped.offset, size))
    if spans is None:
        if len(traced.spans) >= MAX_KEPT:
            traced.spans.clear()
        spans = traced.spans[mapped.offset, size] = code_spans_of(traced.elf, traced.number, FileMapping(0, size, mapped.offset))
    at = mapped.start
    return [CodeSpan(at + start, at + end, (at + bias & ADDRESS_MASK) * (file > 0), file) for start, end, bias, file in spans]


def code_spans_of(elf: ElfFile, number: int, mapped: FileMapping) -> list[CodeSpan]:
    """Return the spans of an executable mapping, ascending; one without a file if it is not code of the file.

    The kernel and ld.so map a segment in whole pages: then all of the mapping has its bias. If a mapping has segments with
    different biases, each has the bytes that are its own.
    """
    stop = mapped.offset + mapped.end - mapped.start
    loads = [load for load in elf.executable_loads() if _is_in(load, mapped.offset, stop)]
    if not loads:  # code in a segment that was not executable when it was loaded
        loads = [load for load in elf.segments if load.p_type == PT.LOAD and _is_in(load, mapped.offset, stop)]
    loads = loads[:MAX_SEGMENTS]
    biases = {_bias(load, mapped) for load in loads}
    exact = {_bias(load, mapped) for load in loads if _is_whole(load, mapped.offset, stop)}
    for only in (biases, exact):
        if len(only) == 1:
            return [CodeSpan(mapped.start, mapped.end, only.pop(), number)]
    spans: list[CodeSpan] = []
    at = mapped.start
    for load in sorted(loads, key=lambda load: load.p_offset):
        start = max(at, mapped.start + load.p_offset - mapped.offset)
        end = min(mapped.end, mapped.start + load.p_offset + load.p_filesz - mapped.offset)
        if start < end:
            spans.append(CodeSpan(start, end, _bias(load, mapped), number))
            at = end
    return spans or [CodeSpan(mapped.start, mapped.end, 0, 0)]


def bytes_in_file(elf: ElfFile, span: CodeSpan) -> tuple[int, memoryview]:
    """Return (address, bytes) of a span in the file; no bytes unless one executable segment has all its pages."""
    start, end = span.start - span.bias & ADDRESS_MASK, span.end - span.bias & ADDRESS_MASK
    for load in elf.executable_loads():
        limit = load.p_vaddr + load.p_filesz
        is_whole = load.p_offset + load.p_filesz <= len(elf.data)
        if is_whole and load.p_vaddr & ~PAGE_MASK <= start < end <= (limit + PAGE_MASK) & ~PAGE_MASK:
            low, at = max(start, load.p_vaddr), load.p_offset - load.p_vaddr
            return low + span.bias & ADDRESS_MASK, elf.data[at + low : at + min(end, limit)]
    return 0, memoryview(b"")


def _is_in(load: Phdr, start: int, stop: int) -> bool:
    return load.p_offset < stop and start < load.p_offset + load.p_filesz


def _is_whole(load: Phdr, start: int, stop: int) -> bool:
    """Return True if the mapping has the pages of this segment, as a loader maps them."""
    return start == load.p_offset & ~PAGE_MASK and stop <= (load.p_offset + load.p_filesz + PAGE_MASK) & ~PAGE_MASK


def _bias(load: Phdr, mapped: FileMapping) -> int:
    return mapped.start - (load.p_vaddr - load.p_offset + mapped.offset) & ADDRESS_MASK


RING_PAGES = 512  # 2 MiB for each CPU: 20,000 mappings
WAKE_UP = 1 << 16  # bytes
SIDE_BAND = EventAttributes(
    TYPE_SOFTWARE,
    config=SOFTWARE_DUMMY,
    sample_type=SampleType.TID | SampleType.TIME | SampleType.CPU,
    flags=FOLLOWING,
    wakeup=WAKE_UP,
    clock=CLOCK_MONOTONIC,
)
CPUS_INTERVAL = 1_000_000_000  # nanoseconds
VSYSCALL = "[vsyscall]"
NEAR = 1 << 10  # bytes of /proc/PID/maps on each side: some rows
ABOVE_32_BITS = 1 << 32
PAGE = 4096
KEPT = 1.0  # seconds: to read a page of another process takes some 100 µs


class MappingResolver:
    """Opens the files of mappings of running processes, and returns their spans."""

    def __init__(self, files: TracedFiles) -> None:
        self.files = files
        own = parse_mappings(Path("/proc/self/maps").read_bytes()).rows
        self._own_vdso = next(((row.start, row.end) for row in own if row.path == VDSO), (0, 0))
        self._own_image: TracedFile | None = None

    def spans_of(self, record: MmapRecord, time: int) -> list[CodeSpan]:
        """Return the spans of an executable mapping; spans without a file for code in no file."""
        start, end, offset = record.start, record.end, record.offset
        if record.inode:
            key = FileKey(record.major, record.minor, record.inode, record.generation)
            traced = self.files.traced(key, MappedPlace(record.pid, start, end, record.path, time))
        elif record.path == VDSO:
            traced, offset = self._vdso(record), 0
        else:
            traced = None
        return spans_in(traced, FileMapping(start, end, offset))

    def spans_of_anonymous(self, record: MmapRecord, near: Iterable[Mapping], moved: MovedCode, time: int) -> list[CodeSpan]:
        """Return the spans of anonymous memory, which has a file's code if the file is mapped around it and has the same bytes.

        Programs move code to huge pages in this way. `near`: other mappings of the process. A comparison is not repeated.
        """
        for row in near:
            for span in self.spans_of(_record_of(record.pid, row), time) if row.inode else ():
                found = CodeSpan(record.start, record.end, span.bias, span.file)
                if span.file and self._is_moved(record.pid, found, moved):
                    return [found]
        return self.spans_of(record, time)

    def _is_moved(self, pid: int, span: CodeSpan, moved: MovedCode) -> bool:
        elf = self.files.by_number[span.file].elf
        address, code = bytes_in_file(elf, span) if elf else (0, memoryview(b""))
        return moved.is_same(partial(read_memory, pid), address, code, span)

    def _vdso(self, record: MmapRecord) -> TracedFile | None:
        """Return the vDSO as a file. Processes of our own kind all have the same one, so ours is read, once, for them."""
        size = record.end - record.start
        if record.start >= ABOVE_32_BITS and size == self._own_vdso[1] - self._own_vdso[0]:
            self._own_image = self._own_image or self.files.image(read_memory(os.getpid(), self._own_vdso[0], size))
            return self._own_image
        return self.files.image(read_memory(record.pid, record.start, min(size, MAX_VDSO)))


def scan(pid: int, processes: Processes, resolver: MappingResolver, now: int) -> bool:
    """Read a process's mappings from /proc. `now`: all records up to then were applied. Return False if there are none."""
    folder = Path(f"/proc/{pid}")
    try:
        text = b"\n" + (folder / "maps").read_bytes()
        name = (folder / "comm").read_text(errors="surrogateescape").removesuffix("\n")
    except OSError:
        return False
    read = time.monotonic_ns()
    if text == b"\n":
        return False
    spans: list[CodeSpan] = []
    at = 0  # offset of the row in the text
    code = b"\n".join(line for line in text.split(b"\n") if line.partition(b" ")[2][2:3] == b"x")  # of 40,000 lines perhaps
    for row in parse_mappings(code).rows:
        if row.path != VSYSCALL:
            record = _record_of(pid, row)
            if row.inode or row.path == VDSO:
                spans += resolver.spans_of(record, now)
                continue
            at = max(text.find(b"\n%08x-" % row.start, at), 0)
            near = text[max(at - NEAR, 0) : at + NEAR].partition(b"\n")[2].rpartition(b"\n")[0]
            if b"/" in near:
                spans += resolver.spans_of_anonymous(record, parse_mappings(near).rows, processes.moved[pid], now)
            else:
                spans += resolver.spans_of(record, now)
    processes.set_scanned(pid, spans, name, now, read)
    return True


def _record_of(pid: int, row: Mapping) -> MmapRecord:
    return MmapRecord(pid, pid, row.start, row.end, row.offset, row.executable, row.path, *key_of_row(row.device, row.inode))


class Follower:
    """Follows `targets` and their descendants; None: all processes. Raises EventError if that is not allowed."""

    def __init__(self, targets: Iterable[int] | None = None) -> None:
        self.files = TracedFiles()
        self.records = 0  # applied so far
        self._resolver = MappingResolver(self.files)
        self.processes = Processes(self._resolver, targets)
        self._reader = RecordReader(SIDE_BAND)
        self._rings = CpuRings()
        self._cpus: set[int] = set()
        self._cpus_at = 0
        try:
            self._follow_cpus()
        except EventError:
            self.close()
            raise

    @property
    def filenos(self) -> list[int]:
        """Return descriptors that are readable when there is something to drain. They change if CPUs come or go."""
        return self._rings.filenos

    @property
    def lost(self) -> int:
        """Return how many records the kernel could not write: mappings were read again from /proc."""
        return self._rings.lost

    def collect(self) -> None:
        """Take records out of the buffers, for the next `drain`. May be called in another thread."""
        self._rings.collect_some()

    def drain(self) -> int:
        """Apply the records of all CPUs up to now, in the order of time. Return the time of now: later samples have to wait.

        Times here are nanoseconds of CLOCK_MONOTONIC.
        """
        now = time.monotonic_ns()
        if now - self._cpus_at >= CPUS_INTERVAL:
            self._follow_cpus()
        self._rings.collect()
        for at, _, kind, misc, body in self._rings.until(now):
            if kind == GAP:
                self.processes.forget_mappings(at, misc)
            elif (record := self._reader.read(kind, misc, body)) is not None:
                self.processes.apply(record, at)
            self.records += 1
        return now

    def spans(self, pid: int, time: int | None = None) -> ProcessSpans | None:
        """Return the spans of a process now, or at a time; None if they are unknown: then call `scan`."""
        return self.processes.spans(pid, time)

    def scan(self, pid: int, drained: int = 0) -> bool:
        """Read the mappings of a process from /proc. Return False if it has none: it has ended, or is a thread of the kernel.

        `drained`: what `drain` has returned, if it was called just before.
        """
        was_known = self.processes.spans(pid) is not None
        if not scan(pid, self.processes, self._resolver, drained or self.drain()):
            return False
        if not was_known:
            self.drain()
            self.processes.confirm_scan(pid)
        return True

    def check_files(self) -> None:
        """Forget rules of files rewritten in place, and mark processes whose files answer again. To be called now and then."""
        retired = self.files.retired()
        if retired:
            self.processes.forget_files(retired, time.monotonic_ns())
        answering = self.files.answering()
        if answering:
            self.processes.has_news(answering)

    def close(self) -> None:
        """Close the events; files stay open, for names."""
        self._rings.close_all()

    def _follow_cpus(self) -> None:
        """Open events on CPUs that are new, and close those of CPUs that are gone."""
        before, self._cpus_at = self._cpus_at, time.monotonic_ns()
        cpus = online_cpus()
        if cpus == self._cpus:
            return
        was_running = bool(self._rings.by_cpu)
        for cpu in self._rings.by_cpu.keys() - cpus:
            self._rings.collect()
            self._rings.close(cpu)
        for cpu in sorted(cpus - self._rings.by_cpu.keys()):
            try:
                descriptor = open_event(SIDE_BAND, -1, cpu)
            except EventError as error:
                if error.number == errno.ENODEV:  # it went offline meanwhile
                    continue
                raise
            self._rings.add(cpu, descriptor, RING_PAGES)
            if was_running:  # events there were not recorded until now
                self.processes.forget_mappings(before, time.monotonic_ns())
        self._cpus = cpus


def read_memory(pid: int, address: int, size: int) -> bytes:
    """Return bytes of a process's memory; none if it cannot be read."""
    try:
        descriptor = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)  # here: Yama may allow it to a parent only
    except OSError:
        return b""
    try:
        data: bytes = helpers().call(("memory", pid), part_of_memory, address, size, descriptors=[descriptor]).value
    except OSError:
        return b""
    finally:
        os.close(descriptor)
    return data


class GeneratedCode:
    """Code of a process that is in no file. Its pages are cached for a second only, because such code changes."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._pages: dict[int, bytes] = {}
        self._until = 0.0

    def read(self, address: int, size: int) -> bytes:
        """Return bytes of code; fewer, or none, if they cannot be read."""
        now = time.monotonic()
        if now > self._until:
            self._pages, self._until = {}, now + KEPT
        start, found = address & -PAGE, b""
        for page in range(start, address + size, PAGE):
            if page not in self._pages:
                self._pages[page] = read_memory(self._pid, page, PAGE)
            found += self._pages[page]
            if len(self._pages[page]) < PAGE:
                break
        return found[address - start :][:size]
