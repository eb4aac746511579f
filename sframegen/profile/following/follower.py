"""Follows the mappings of processes: applies the perf records of all CPUs in time order, and reads earlier mappings from /proc.

A mapping becomes spans (code_spans.py), which `Processes` keeps for each process. To scan a process is to read all its mappings
from /proc: at first, after records were lost, and before its mappings are published, because no record tells what was unmapped.
"""

from __future__ import annotations

import errno
import os
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

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
from sframegen.profile.following.code_spans import FileMapping, make_spans, read_code_in_file
from sframegen.profile.following.files import CodeSpan, TracedFile, TracedFiles
from sframegen.profile.following.mapped_file import FileKey, ProcessMapping, parse_file_key
from sframegen.profile.following.processes import Processes
from sframegen.profile.packed_frames import NO_FILE
from sframegen.program.helper import helpers
from sframegen.stack.live.process import parse_mappings, read_memory_in_helper
from sframegen.stack.mappings import MAX_VDSO, VDSO, Mapping

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sframegen.stack.snapshot import MovedCode

RING_PAGES = 512  # 2 MiB for each CPU, enough for 20,000 mappings
WAKE_UP = 1 << 16  # bytes in a ring buffer, at which the kernel wakes us
SIDE_BAND = EventAttributes(
    TYPE_SOFTWARE, config=SOFTWARE_DUMMY, sample_type=SampleType.TID | SampleType.TIME | SampleType.CPU, flags=FOLLOWING,
    wakeup=WAKE_UP, clock=CLOCK_MONOTONIC,
)  # fmt: skip
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
            traced = self.files.find_or_open(key, ProcessMapping(record.pid, start, end, record.path, time))
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
                if span.file != NO_FILE and self._is_moved(record.pid, candidate, moved):
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
    read_at = time.monotonic_ns()
    if text == b"\n":  # a kernel thread, or a process that is ending
        return False
    spans: list[CodeSpan] = []
    row_at = 0  # offset of the row in the text; rows ascend, so that the search goes on from the last one
    # Only executable rows ("START-END r-xp ...") are parsed, because there may be 40,000 others.
    executable = b"\n".join(line for line in text.split(b"\n") if line.partition(b" ")[2][2:3] == b"x")
    for row in parse_mappings(executable).rows:
        if row.path != VSYSCALL:
            record = _make_record(pid, row)
            if row.inode or row.path == VDSO:
                spans += resolver.find_spans(record, now)
                continue
            row_at = max(text.find(b"\n%08x-" % row.start, row_at), 0)
            near = text[max(row_at - NEIGHBOUR_BYTES, 0) : row_at + NEIGHBOUR_BYTES]
            near = near.partition(b"\n")[2].rpartition(b"\n")[0]  # without the rows that are cut off at both ends
            if b"/" in near:  # a file is mapped near this memory
                spans += resolver.find_anonymous_spans(record, parse_mappings(near).rows, processes.moved[pid], now)
            else:
                spans += resolver.find_spans(record, now)
    processes.set_scanned(pid, spans, name, now, read_at)
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
        self._cpus_checked = 0  # when the online CPUs were read last, in nanoseconds
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
        """Apply the records of all CPUs up to now, in time order; return that time. Later samples must wait for the next call."""
        now = time.monotonic_ns()
        if now - self._cpus_checked >= CPUS_INTERVAL:
            self._update_cpus()
        self._rings.collect()
        for record_time, _, kind, misc, body in self._rings.take_until(now):
            if kind == GAP:  # then `misc` is the time of its end
                self.processes.forget_mappings(record_time, misc)
            elif (record := self._reader.read(kind, misc, body)) is not None:
                self.processes.apply(record, record_time)
            self.records += 1
        return now

    def scan(self, pid: int, drained: int = 0) -> bool:
        """Read the mappings of a process from /proc. Return False if it has ended, or is a kernel thread.

        `drained`: the time that `drain` returned, if it was called just before; 0: it is called now.
        """
        was_known = self.processes.spans(pid) is not None
        if not scan_process(pid, self.processes, self._resolver, drained or self.drain()):
            return False
        if not was_known:
            self.drain()  # again, for records of changes that came while /proc was read
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
        last_check, self._cpus_checked = self._cpus_checked, time.monotonic_ns()
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
                self.processes.forget_mappings(last_check, time.monotonic_ns())
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
        start, code = address & -PAGE, b""  # `start`: of the page
        for page in range(start, address + size, PAGE):
            if page not in self._pages:
                self._pages[page] = read_memory(self._pid, page, PAGE)
            code += self._pages[page]
            if len(self._pages[page]) < PAGE:
                break
        return code[address - start :][:size]
