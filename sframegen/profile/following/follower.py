"""Follows the mappings of processes: applies the perf records of all CPUs in time order, and reads earlier mappings from /proc."""

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
from sframegen.profile.following.mapped_file import FileKey, MappedPlace, parse_file_key
from sframegen.profile.following.processes import Processes, ProcessSpans
from sframegen.program.helper import helpers
from sframegen.stack.live.process import parse_mappings, read_memory_in_helper
from sframegen.stack.mappings import MAX_VDSO, VDSO, Mapping
from sframegen.stack.walking.frames import ADDRESS_MASK

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sframegen.elf.file import ElfFile
    from sframegen.stack.snapshot import MovedCode


MAX_SPAN_LISTS = 64  # cached lists of spans for each file; a library is mapped in one or two ways
MAX_SEGMENTS = 64  # executable segments of a file that are used; linkers make one or two
PAGE_MASK = mmap.PAGESIZE - 1


class FileMapping(NamedTuple):
    """A mapping of a file, whose bytes from `offset` on are at addresses [start, end)."""

    start: int
    end: int
    offset: int


def make_spans(traced: TracedFile | None, mapped: FileMapping) -> list[CodeSpan]:
    """Return the spans of an executable mapping. `traced`: its file; None: code without a file."""
    if traced is None:
        return [CodeSpan(mapped.start, mapped.end, 0, 0)]
    if traced.elf is None:
        return [CodeSpan(mapped.start, mapped.end, mapped.start - mapped.offset & ADDRESS_MASK, traced.number)]
    size = mapped.end - mapped.start
    spans = traced.spans.get((mapped.offset, size))
    if spans is None:
        if len(traced.spans) >= MAX_SPAN_LISTS:
            traced.spans.clear()
        at_zero = FileMapping(0, size, mapped.offset)
        spans = traced.spans[mapped.offset, size] = split_into_code_spans(traced.elf, traced.number, at_zero)
    at = mapped.start
    return [CodeSpan(at + start, at + end, (at + bias & ADDRESS_MASK) * (file > 0), file) for start, end, bias, file in spans]


def split_into_code_spans(elf: ElfFile, number: int, mapped: FileMapping) -> list[CodeSpan]:
    """Return the spans of an executable mapping of an ELF file, ascending; one without a file if no segment is mapped there.

    The kernel and ld.so map a segment in whole pages, so that the whole mapping has the segment's bias. If a mapping contains
    segments with different biases, each segment gets a span of its own bytes.
    """
    stop = mapped.offset + mapped.end - mapped.start
    loads = [load for load in elf.executable_loads() if _overlaps(load, mapped.offset, stop)]
    if not loads:  # perhaps a segment that was made executable after loading
        loads = [load for load in elf.segments if load.p_type == PT.LOAD and _overlaps(load, mapped.offset, stop)]
    loads = loads[:MAX_SEGMENTS]
    biases = {_compute_bias(load, mapped) for load in loads}
    of_whole_segments = {_compute_bias(load, mapped) for load in loads if _is_mapped_whole(load, mapped.offset, stop)}
    for candidates in (biases, of_whole_segments):
        if len(candidates) == 1:
            return [CodeSpan(mapped.start, mapped.end, candidates.pop(), number)]
    spans: list[CodeSpan] = []
    at = mapped.start
    for load in sorted(loads, key=lambda load: load.p_offset):
        start = max(at, mapped.start + load.p_offset - mapped.offset)
        end = min(mapped.end, mapped.start + load.p_offset + load.p_filesz - mapped.offset)
        if start < end:
            spans.append(CodeSpan(start, end, _compute_bias(load, mapped), number))
            at = end
    return spans or [CodeSpan(mapped.start, mapped.end, 0, 0)]


def read_code_in_file(elf: ElfFile, span: CodeSpan) -> tuple[int, memoryview]:
    """Return the run-time address and the file's bytes of a span; no bytes unless one executable segment has all its pages."""
    start, end = span.start - span.bias & ADDRESS_MASK, span.end - span.bias & ADDRESS_MASK
    for load in elf.executable_loads():
        limit = load.p_vaddr + load.p_filesz
        is_whole = load.p_offset + load.p_filesz <= len(elf.data)
        if is_whole and load.p_vaddr & ~PAGE_MASK <= start < end <= (limit + PAGE_MASK) & ~PAGE_MASK:
            low, at = max(start, load.p_vaddr), load.p_offset - load.p_vaddr
            return low + span.bias & ADDRESS_MASK, elf.data[at + low : at + min(end, limit)]
    return 0, memoryview(b"")


def _overlaps(load: Phdr, start: int, stop: int) -> bool:
    return load.p_offset < stop and start < load.p_offset + load.p_filesz


def _is_mapped_whole(load: Phdr, start: int, stop: int) -> bool:
    """Return True if the mapping consists of this segment's pages, as a loader maps them."""
    return start == load.p_offset & ~PAGE_MASK and stop <= (load.p_offset + load.p_filesz + PAGE_MASK) & ~PAGE_MASK


def _compute_bias(load: Phdr, mapped: FileMapping) -> int:
    return mapped.start - (load.p_vaddr - load.p_offset + mapped.offset) & ADDRESS_MASK


RING_PAGES = 512  # 2 MiB for each CPU, enough for 20,000 mappings
WAKE_UP = 1 << 16  # bytes in a ring buffer, at which the kernel wakes us
SIDE_BAND = EventAttributes(
    TYPE_SOFTWARE,
    config=SOFTWARE_DUMMY,
    sample_type=SampleType.TID | SampleType.TIME | SampleType.CPU,
    flags=FOLLOWING,
    wakeup=WAKE_UP,
    clock=CLOCK_MONOTONIC,
)
CPUS_INTERVAL = 1_000_000_000  # nanoseconds between two checks for new CPUs
VSYSCALL = "[vsyscall]"
NEIGHBOUR_BYTES = 1 << 10  # bytes of /proc/PID/maps before and after a row that contain its neighbours
FIRST_64_BIT_ADDRESS = 1 << 32
PAGE = 4096
PAGE_LIFETIME = 1.0  # seconds; cached because it takes some 100 µs to read a page of another process


class MappingResolver:
    """Opens the files that running processes have mapped, and returns the spans of mappings."""

    def __init__(self, files: TracedFiles) -> None:
        self.files = files
        own = parse_mappings(Path("/proc/self/maps").read_bytes()).rows
        self._own_vdso = next(((row.start, row.end) for row in own if row.path == VDSO), (0, 0))
        self._own_image: TracedFile | None = None

    def find_spans(self, record: MmapRecord, time: int) -> list[CodeSpan]:
        """Return the spans of an executable mapping. Code in no file gives spans without a file."""
        start, end, offset = record.start, record.end, record.offset
        if record.inode:
            key = FileKey(record.major, record.minor, record.inode, record.generation)
            traced = self.files.find_or_open(key, MappedPlace(record.pid, start, end, record.path, time))
        elif record.path == VDSO:
            traced, offset = self._open_vdso(record), 0
        else:
            traced = None
        return make_spans(traced, FileMapping(start, end, offset))

    def find_anonymous_spans(self, record: MmapRecord, near: Iterable[Mapping], moved: MovedCode, time: int) -> list[CodeSpan]:
        """Return the spans of anonymous memory. It counts as a file's code if that file is mapped near it and has the same bytes.

        Programs move code to huge pages in this way. `near`: the mappings around it. `moved`: remembers earlier comparisons.
        """
        for row in near:
            for span in self.find_spans(_make_record(record.pid, row), time) if row.inode else ():
                candidate = CodeSpan(record.start, record.end, span.bias, span.file)
                if span.file and self._is_moved(record.pid, candidate, moved):
                    return [candidate]
        return self.find_spans(record, time)

    def _is_moved(self, pid: int, span: CodeSpan, moved: MovedCode) -> bool:
        """Return True if the process's memory at the span equals the file's code there."""
        elf = self.files.by_number[span.file].elf
        address, code = read_code_in_file(elf, span) if elf else (0, memoryview(b""))
        return moved.is_same(partial(read_memory, pid), address, code, span)

    def _open_vdso(self, record: MmapRecord) -> TracedFile | None:
        """Return the vDSO as a file. All 64-bit processes have the same one, so that our own is read once for all of them."""
        size = record.end - record.start
        if record.start >= FIRST_64_BIT_ADDRESS and size == self._own_vdso[1] - self._own_vdso[0]:
            self._own_image = self._own_image or self.files.add_image(read_memory(os.getpid(), self._own_vdso[0], size))
            return self._own_image
        return self.files.add_image(read_memory(record.pid, record.start, min(size, MAX_VDSO)))


def scan_process(pid: int, processes: Processes, resolver: MappingResolver, now: int) -> bool:
    """Read a process's mappings from /proc. `now`: the time up to which all records were applied. Return False if it has none."""
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
    # Only executable rows ("START-END r-xp ...") are parsed, because there may be 40,000 others.
    executable = b"\n".join(line for line in text.split(b"\n") if line.partition(b" ")[2][2:3] == b"x")
    for row in parse_mappings(executable).rows:
        if row.path != VSYSCALL:
            record = _make_record(pid, row)
            if row.inode or row.path == VDSO:
                spans += resolver.find_spans(record, now)
                continue
            at = max(text.find(b"\n%08x-" % row.start, at), 0)
            near = text[max(at - NEIGHBOUR_BYTES, 0) : at + NEIGHBOUR_BYTES].partition(b"\n")[2].rpartition(b"\n")[0]
            if b"/" in near:
                spans += resolver.find_anonymous_spans(record, parse_mappings(near).rows, processes.moved[pid], now)
            else:
                spans += resolver.find_spans(record, now)
    processes.set_scanned(pid, spans, name, now, read)
    return True


def _make_record(pid: int, row: Mapping) -> MmapRecord:
    return MmapRecord(pid, pid, row.start, row.end, row.offset, row.executable, row.path, *parse_file_key(row.device, row.inode))


class Follower:
    """Follows `targets` and their descendants, or all processes if it is None. Raises EventError if that is not allowed."""

    def __init__(self, targets: Iterable[int] | None = None) -> None:
        self.files = TracedFiles()
        self.records = 0  # number of records applied so far
        self._resolver = MappingResolver(self.files)
        self.processes = Processes(self._resolver, targets)
        self._reader = RecordReader(SIDE_BAND)
        self._rings = CpuRings()
        self._cpus: set[int] = set()
        self._cpus_at = 0
        try:
            self._update_cpus()
        except EventError:
            self.close()
            raise

    @property
    def filenos(self) -> list[int]:
        """Return descriptors that are readable when there are records. They change if CPUs come or go."""
        return self._rings.filenos

    @property
    def lost(self) -> int:
        """Return how many records the kernel could not write. Mappings are then read again from /proc."""
        return self._rings.lost

    def collect(self) -> None:
        """Take records out of the ring buffers, for the next `drain`. May be called in another thread."""
        self._rings.collect_unless_full()

    def drain(self) -> int:
        """Apply the records of all CPUs up to now, in time order. Return that time (CLOCK_MONOTONIC, nanoseconds).

        Samples after that time have to wait for the next call.
        """
        now = time.monotonic_ns()
        if now - self._cpus_at >= CPUS_INTERVAL:
            self._update_cpus()
        self._rings.collect()
        for at, _, kind, misc, body in self._rings.take_until(now):
            if kind == GAP:
                self.processes.forget_mappings(at, misc)
            elif (record := self._reader.read(kind, misc, body)) is not None:
                self.processes.apply(record, at)
            self.records += 1
        return now

    def spans(self, pid: int, time: int | None = None) -> ProcessSpans | None:
        """Return the spans of a process now, or at a time; None if they are unknown, so that `scan` has to be called."""
        return self.processes.spans(pid, time)

    def scan(self, pid: int, drained: int = 0) -> bool:
        """Read the mappings of a process from /proc. Return False if it has ended, or is a kernel thread.

        `drained`: the result of `drain`, if it was called just before.
        """
        was_known = self.processes.spans(pid) is not None
        if not scan_process(pid, self.processes, self._resolver, drained or self.drain()):
            return False
        if not was_known:
            self.drain()
            self.processes.confirm_scan(pid)
        return True

    def check_files(self) -> None:
        """Retire files that were rewritten in place, and mark processes whose files answer again. Call it now and then."""
        retired = self.files.retire_rewritten()
        if retired:
            self.processes.forget_files(retired, time.monotonic_ns())
        answering = self.files.take_answering()
        if answering:
            self.processes.mark_users_changed(answering)

    def close(self) -> None:
        """Close the events. Files stay open, because the report reads names from them."""
        self._rings.close_all()

    def _update_cpus(self) -> None:
        """Open events on new CPUs, and close those of CPUs that are gone."""
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
            if was_running:  # nothing was recorded on that CPU until now
                self.processes.forget_mappings(before, time.monotonic_ns())
        self._cpus = cpus


def read_memory(pid: int, address: int, size: int) -> bytes:
    """Return bytes of a process's memory; none if it cannot be read."""
    try:
        descriptor = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)  # not in the helper: Yama may allow only a parent
    except OSError:
        return b""
    try:
        data: bytes = helpers().call(("memory", pid), read_memory_in_helper, address, size, descriptors=[descriptor]).value
    except OSError:
        return b""
    finally:
        os.close(descriptor)
    return data


class GeneratedCode:
    """Reads a process's code that is in no file. Pages are cached only for a second, because such code changes."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._pages: dict[int, bytes] = {}
        self._until = 0.0

    def read(self, address: int, size: int) -> bytes:
        """Return bytes of code; fewer, or none, if they cannot be read."""
        now = time.monotonic()
        if now > self._until:
            self._pages, self._until = {}, now + PAGE_LIFETIME
        start, code = address & -PAGE, b""
        for page in range(start, address + size, PAGE):
            if page not in self._pages:
                self._pages[page] = read_memory(self._pid, page, PAGE)
            code += self._pages[page]
            if len(self._pages[page]) < PAGE:
                break
        return code[address - start :][:size]
