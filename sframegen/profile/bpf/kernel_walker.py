"""Runs the kernel program: gives it processes, spans and tables, and takes stacks, counts and numbers of lost samples from it.

This process writes arrays that the program reads at the same time: `spans`, in which each published process has an extent, `files`,
with the state and layout of each file's table, and `tables`, with the tables. The spans of a process are valid only during an
epoch, which the program ends when new memory takes the place of a mapping. Counts are in two maps: the program writes to one, and
the other is read.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections import Counter
from itertools import pairwise
from time import monotonic, monotonic_ns, sleep
from typing import TYPE_CHECKING

from sframegen.profile.bpf.extents import Extents
from sframegen.profile.bpf.kernel_needs import check_kernel, has_tracepoint, switch_has_state
from sframegen.profile.bpf.kernel_records import NO_SAMPLES, CountKey, KernelRecord, NewStack, SampleCount, Statistic, decode_record
from sframegen.profile.bpf.libbpf import LoadError, Map, Program, create_filled_table, map_memory, possible_cpus, read_object
from sframegen.profile.bpf.record_ring import RecordRing, RingReader
from sframegen.profile.events.attributes import EventAttributes, EventFlag, open_event
from sframegen.profile.events.cpu_rings import online_cpus
from sframegen.profile.limits import MAX_FILES
from sframegen.profile.packed_frames import OffCpu, is_off_cpu
from sframegen.profile.sampling_plan import SECOND, ProfilePlan
from sframegen.stack.abi.machines import HOST_ABIS, conventions_of

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

    from sframegen.profile.following.files import CodeSpan
    from sframegen.profile.tables.decoded_table import DecodedTable

MAX_COUNTS = 1 << 16  # stacks in each of the two maps of counts
MAX_PROCESSES = 1 << 16
MAX_BLOCKS = 1 << 16  # threads off the CPU
SAMPLES_PER_CPU = 2
MAX_SPANS_OF_TARGETS, MAX_SPANS_OF_ALL = 1 << 16, 1 << 18  # if there are targets; if every process is sampled
MAX_TABLE_MEMORY = 1 << 30  # bytes
COUNT_INTERVAL = 1.0  # seconds between two readings of the counts, after which a stack is sent again
GRACE = 0.1  # seconds after switching maps of counts, when no run of the program can still write to the old one
FIRST_USER_EPOCH = 1 << 31  # epochs that the kernel program begins are numbered from 1

_SPAN = struct.Struct("=QQQII")  # start, end, bias, file, padding
_PROCESS = struct.Struct("=III")  # first span, number of spans, epoch
_FILE = struct.Struct("=QIIIIII")  # base, pages, index_at, rows_at, rules_at, state, unproven
_COUNT_KEY = struct.Struct("=QII")  # hash, pid, tid
_COUNT = struct.Struct("=QQ")  # samples, nanoseconds
_BLOCK = struct.Struct("=QQQQII")  # since, woken, hash, CPU time, pid, reason
_U32 = struct.Struct("=I")
_STATE_AT, _UNPROVEN_AT = 24, 28  # offsets in struct file
PENDING, WITHOUT, READY = 0, 1, 2  # states of a file's table: not loaded, there is none, loaded
WANTED, WANTED_AFTER_EXEC = 1, 2

FOLLOWING_PROGRAMS = ("on_exec", "on_exit", "on_fork")
AREA_PROGRAM, AREA_TRACEPOINT = "on_unmapped_area", "vm_unmapped_area"
EVENT_PROGRAM = "on_event"
SWITCH_PROGRAMS = ("on_waking", "on_switch")
ASLEEP_PROGRAM = "on_begin"  # runs once, for threads that are already asleep


class KernelWalker:
    """Takes samples by the plan. Raises LoadError. Nothing is pinned, so the kernel frees everything when this process ends."""

    def __init__(self, plan: ProfilePlan) -> None:
        check_kernel()
        self.plan = plan
        self.memory = 0  # bytes of all tables that are loaded
        self.refused: set[int] = set()  # files whose tables do not fit into MAX_TABLE_MEMORY
        self.cpus = possible_cpus()
        self._program = Program(read_object())
        spans = MAX_SPANS_OF_ALL if plan.targets is None else MAX_SPANS_OF_TARGETS
        ring = choose_ring_size(plan.hertz, self.cpus)
        self._program.resize(
            {
                "processes": MAX_PROCESSES,
                "epochs": MAX_PROCESSES,
                "wanted": MAX_PROCESSES,
                "counts": MAX_COUNTS,
                "more_counts": MAX_COUNTS,
                "blocks": MAX_BLOCKS if plan.has_off_cpu_time else 1,
                "memos": MAX_MEMOS if plan.has_off_cpu_time else 1,
                "spans": spans,
                "samples": SAMPLES_PER_CPU * self.cpus,
                "ring": ring,
            }
        )
        self._program.set_constants(pack_settings(plan, self.cpus))
        self._follows = self._closed = False
        self._follows_areas = has_tracepoint(AREA_TRACEPOINT)
        programs = {EVENT_PROGRAM: plan.on_cpu, AREA_PROGRAM: self._follows_areas}
        programs |= dict.fromkeys((*SWITCH_PROGRAMS, ASLEEP_PROGRAM), plan.has_off_cpu_time)
        for name, is_used in programs.items():
            if not is_used:
                self._program.disable(name)
        try:
            self._program.load()
            self._open_maps(spans, ring)
        except BaseException:
            self._program.close()
            raise
        self._extents = Extents(spans, self._read_used_extents)
        self._extent_of: dict[int, int] = {}  # by pid
        self._sizes: dict[int, int] = {}  # bytes of each loaded table, by file number
        self._links: dict[int, int] = {}  # by CPU
        self._global_links: list[int] = []  # links of programs that are not attached to one CPU
        self._ended = 0  # when sampling ended, in nanoseconds; 0 before, and once threads off the CPU have been counted
        self._unreturned: dict[CountKey, SampleCount] = {}  # counts that were read, but that `take_counts` has not returned yet
        self._new_stacks, self._switched = 0, 0.0  # stacks since the maps of counts were switched, and the time of that
        self._last_state = READY  # of the table that was loaded last: each gets another number, from READY on
        self._user_epoch = FIRST_USER_EPOCH
        for pid in plan.targets or ():
            self.sample_process(pid, after_exec=plan.after_exec)

    def _open_maps(self, spans: int, ring: int) -> None:
        """Open the program's maps, and map the arrays that this process writes into its memory."""
        program = self._program
        self._processes = program.map("processes", 4, _PROCESS.size)
        self._epochs = program.map("epochs", 4, 4)
        self._wanted = program.map("wanted", 4, 1)
        self._tables = program.map("tables", 4, 4)
        self._statistics = program.map("statistics", 4, 8 * self.cpus)
        self._counts = [program.map(name, _COUNT_KEY.size, _COUNT.size) for name in ("counts", "more_counts")]
        self._blocks = program.map("blocks", 4, _BLOCK.size)
        self._spans = map_memory(program.map("spans", 4, _SPAN.size).fd, spans * _SPAN.size)
        self._files = map_memory(program.map("files", 4, _FILE.size).fd, (MAX_FILES + 1) * _FILE.size)
        self._shared = map_memory(program.find_bss_fd(), mmap.PAGESIZE)
        self.ring = RingReader(RecordRing(program.map("ring", 0, 0).fd, ring))

    def follow(self) -> None:
        """Begin to notice when published mappings end. Call it before any mappings are read."""
        for name in (*FOLLOWING_PROGRAMS, *[AREA_PROGRAM] * self._follows_areas):
            self._program.attach(name)
        self._follows = True

    def attach(self) -> None:
        """Begin to sample on all CPUs. Further calls add CPUs that have come since."""
        if not self._follows:
            self.follow()
        plan = self.plan
        if plan.has_off_cpu_time and not self._global_links:
            self._global_links += [self._program.attach(name) for name in SWITCH_PROGRAMS]
            if plan.comm is None:  # the program can compare only the current task's name
                self._program.run_for_all(ASLEEP_PROGRAM)
        if not plan.on_cpu:
            return
        flags = EventFlag.FREQUENCY * plan.event.by_frequency
        attributes = EventAttributes(plan.event.type, config=plan.event.config, period=plan.frequency, flags=flags)
        online = online_cpus()
        for cpu in self._links.keys() - online:
            self._program.detach(self._links.pop(cpu))
        for cpu in sorted(online - self._links.keys()):
            fd = open_event(attributes, -1, cpu)
            try:
                self._links[cpu] = self._program.attach_event(EVENT_PROGRAM, fd)
            except LoadError:
                os.close(fd)
                raise

    def detach(self) -> None:
        """End sampling, and the thread that reads records. Records and counts can still be taken."""
        while self._links:
            self._program.detach(self._links.popitem()[1])
        while self._global_links:
            self._program.detach(self._global_links.pop())
        self.ring.stop()
        self._switched = monotonic()
        if self.plan.has_off_cpu_time and not self._ended:
            self._ended = monotonic_ns()

    def close(self) -> None:
        """Free all memory. Afterwards, only `close` may be called."""
        if self._closed:
            return
        self._closed = True
        self.detach()
        self.ring.close()
        for area in (self._spans, self._files, self._shared):
            area.close()
        self._program.close()

    @property
    def program_fd(self) -> int:
        """Return the descriptor of the program that takes samples."""
        return self._program.program_fd(EVENT_PROGRAM)

    def sample_process(self, pid: int, *, after_exec: bool = False) -> None:
        """Sample a process and its future children. `after_exec`: only from its next exec on."""
        self._wanted.put(_U32.pack(pid), bytes([WANTED_AFTER_EXEC if after_exec else WANTED]))

    def begin_epoch(self, pid: int) -> int:
        """Begin and return a new epoch of a process's mappings, so that those published before end. Then read and publish them.

        Until they are published, any new memory of the process ends the epoch; afterwards, only new memory in place of a mapping.
        """
        self._user_epoch += 1
        self._epochs.put(_U32.pack(pid), _U32.pack(self._user_epoch))
        return self._user_epoch

    def publish(self, pid: int, spans: Iterable[CodeSpan], epoch: int) -> bool:
        """Let the kernel program walk the process with these spans while the epoch lasts. Return False if there is no room."""
        ordered = sorted(span for span in spans if span.start < span.end)
        # Of overlapping spans, the last stays; there should be none.
        disjoint = [span for span, after in pairwise([*ordered, None]) if span and (after is None or span.end <= after.start)]
        first = self._extents.allocate(len(disjoint)) if disjoint else None
        if first is None:
            return False
        packed = b"".join(_SPAN.pack(span.start, span.end, span.bias, span.file, 0) for span in disjoint)
        self._spans[first * _SPAN.size : first * _SPAN.size + len(packed)] = packed
        if not self._processes.put(_U32.pack(pid), _PROCESS.pack(first, len(disjoint), epoch)):
            self._extents.retire(first)
            return False
        self._retire(pid)
        self._extent_of[pid] = first
        return True

    def forget(self, pid: int) -> None:
        """Forget a process that has ended. If its pid was reused, the new process is published again when it is sampled."""
        self._processes.delete(_U32.pack(pid))
        self._epochs.delete(_U32.pack(pid))
        self._retire(pid)

    def _retire(self, pid: int) -> None:
        first = self._extent_of.pop(pid, None)
        if first is not None:
            self._extents.retire(first)

    def _read_used_extents(self) -> set[int]:
        """Return the extents that processes use, read twice, because a process can fork and end meanwhile."""
        return {_PROCESS.unpack(value)[0] for _ in range(2) for _, value in self._processes.items(MAX_PROCESSES)}

    def add_tables(self, tables: Mapping[int, DecodedTable | None], unproven: Container[int] = ()) -> None:
        """Give the kernel program the tables of files by number; None: the file has none. Files without room become `refused`.

        Add many at once, because the kernel waits for its running programs at each update. `unproven`: files to which a proof may
        still add rules; samples in their code without a rule are walked from copies.
        """
        descriptors: dict[int, int] = {}  # of the new tables, by file number
        try:
            for number, table in tables.items():
                if table is None:
                    self._set_file_field(number, _UNPROVEN_AT, number in unproven)
                    self._set_file_field(number, _STATE_AT, WITHOUT)
                    continue
                self.drop_table(number)
                if self.memory + len(table.data) > MAX_TABLE_MEMORY:
                    self.refused.add(number)
                    continue
                descriptors[number] = create_filled_table(table)
                layout = (table.pages, table.index_at, table.rows_at, table.rules_at)
                at = number * _FILE.size
                self._files[at : at + _FILE.size] = _FILE.pack(table.base, *layout, PENDING, number in unproven)
                self._sizes[number] = len(table.data)
                self.memory += len(table.data)
                self.refused.discard(number)
            self._tables.put_all({_U32.pack(number): _U32.pack(fd) for number, fd in descriptors.items()})
        finally:
            for fd in descriptors.values():
                os.close(fd)
        for number in descriptors:  # only now, so that the program finds no state of a table before the table
            self._last_state += 1
            self._set_file_field(number, _STATE_AT, self._last_state)

    def end_proof(self, number: int) -> None:
        """Expect no more rules for a file, so that samples in its code without a rule are also walked in the kernel."""
        self._set_file_field(number, _UNPROVEN_AT, 0)

    def drop_table(self, number: int) -> None:
        """Drop a file's table, so that samples in the file are walked from copies of the stack."""
        self._set_file_field(number, _STATE_AT, PENDING)
        self.refused.discard(number)
        if number in self._sizes:
            self._tables.delete(_U32.pack(number))
            self.memory -= self._sizes.pop(number)

    def _set_file_field(self, number: int, offset: int, value: int) -> None:
        at = number * _FILE.size + offset
        self._files[at : at + 4] = _U32.pack(value)

    def poll(self, milliseconds: int) -> list[KernelRecord]:
        """Return the oldest records, after a wait of at most `milliseconds` for the first."""
        records = [decode_record(record) for record in self.ring.take_records(milliseconds)]
        stacks = [record for record in records if isinstance(record, NewStack)]
        self._new_stacks += len(stacks)
        if self.plan.has_off_cpu_time:
            records += [stack.as_waiting() for stack in stacks if is_off_cpu(stack.frames)]
        if self._new_stacks > MAX_COUNTS // 2 and monotonic() - self._switched > GRACE:
            self.switch_counts()
        return records

    @property
    def lacks_records(self) -> bool:
        """Return True until `poll` has returned all records from before the maps of counts were switched, or before `detach`."""
        return self.ring.taken_until < self._switched * SECOND

    def switch_counts(self) -> None:
        """Let the program count in the other map, once no run of it can still write to that map."""
        sleep(max(0.0, GRACE - (monotonic() - self._switched)))
        active = _U32.unpack_from(self._shared)[0]
        self._drain(self._counts[1 - active])
        self._shared[:4] = _U32.pack(1 - active)
        self._new_stacks, self._switched = 0, monotonic()

    def _drain(self, counts: Map) -> None:
        """Move the counts of a map into `_unreturned`."""
        for key, value in counts.items(MAX_COUNTS, take=True):
            samples, nanoseconds = _COUNT.unpack(value)
            if samples:
                self._add_count(_COUNT_KEY.unpack(key), samples, nanoseconds)

    def _add_count(self, key: CountKey, samples: int, nanoseconds: int) -> None:
        before = self._unreturned.get(key, NO_SAMPLES)
        self._unreturned[key] = SampleCount(before.samples + samples, before.nanoseconds + nanoseconds)

    def take_counts(self) -> dict[CountKey, SampleCount]:
        """Return new counts by stack; after `detach`, all that are left. Return none until `poll` has returned their stacks."""
        if self.lacks_records:
            return {}
        if self._links or self._global_links:
            if monotonic() - self._switched > COUNT_INTERVAL:
                self.switch_counts()
        else:
            for counts in self._counts:
                self._drain(counts)
            self._count_blocks()
        counted, self._unreturned = self._unreturned, {}
        return counted

    def _count_blocks(self) -> None:
        """Count the time of threads that are still off the CPU when sampling ends."""
        ended, self._ended = self._ended, 0
        for key, value in self._blocks.items(MAX_BLOCKS) if ended else ():
            since, woken, stack_hash, _, pid, reason = _BLOCK.unpack(value)
            if not since or ended <= since:
                continue
            tid = _U32.unpack(key)[0] if self.plan.separates_threads else 0
            until = woken if since < woken < ended else ended
            self._add_count((stack_hash, pid, tid), 1, until - since)
            if until < ended:
                waiting_hash = stack_hash ^ OffCpu(reason).hash ^ OffCpu.WAITING.hash
                self._add_count((waiting_hash, pid, tid), 1, ended - until)

    def is_asleep(self, tid: int, stack_hash: int) -> bool:
        """Return True if a thread has been off the CPU ever since the kernel program made that hash for its stack."""
        value = self._blocks.get(_U32.pack(tid))
        since, woken, current_hash, *_ = _BLOCK.unpack(value) if value else (0, 0, 0)
        return bool(since) and not woken and current_hash == stack_hash

    def statistics(self) -> Counter[int]:
        """Return the sums of all CPUs' counters since the program was attached, by End and Statistic."""
        by_cpu = struct.Struct(f"={self.cpus}Q")
        values = ((number, self._statistics.get(_U32.pack(number))) for number in range(max(Statistic) + 1))
        return Counter({number: sum(by_cpu.unpack(counts)) for number, counts in values if counts})


MIB = 1 << 20
MIN_RING, MAX_RING = MIB, 64 * MIB
COPY_SIZE, SECONDS_IN_RING = 16 << 10, 2  # bytes of a usual sample in a new process; time for which this process may lack a CPU
EVENTS_PER_SECOND = 250  # assumed on each CPU, for events that are not sampled by time
MAX_MEMOS = 1 << 12  # remembered stacks of threads off the CPU; must be a power of two
COMM_BYTES = 16
_SETTINGS = struct.Struct("=QQII5B3x16s")


def choose_ring_size(hertz: int, cpus: int) -> int:
    """Return the size of the ring buffer in bytes, a power of two. `hertz`: samples per second on each CPU; 0: unknown."""
    needed = (hertz or EVENTS_PER_SECOND) * cpus * COPY_SIZE * SECONDS_IN_RING
    power_of_two = 1 << (needed - 1).bit_length()  # rounded up
    return max(MIN_RING, min(MAX_RING, power_of_two))


def pack_settings(plan: ProfilePlan, cpus: int) -> bytes:
    """Return the bytes of `struct settings` in walker.h."""
    return _SETTINGS.pack(
        conventions_of(HOST_ABIS[os.uname().machine]).ra_mask, plan.sample_time, cpus, MAX_MEMOS if plan.has_off_cpu_time else 1,
        plan.targets is None, plan.kernel, plan.separates_threads, plan.comm is not None, switch_has_state(),
        (plan.comm or "").encode(errors="surrogateescape")[: COMM_BYTES - 1],
    )  # fmt: skip
