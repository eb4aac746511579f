"""A perf.data file that `perf record --call-graph dwarf` wrote -> counted stacks, walked with decoded tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cfi.errors import naming
from sframegen.profile.collected import Collected
from sframegen.profile.copies.counting import Counting, RegisterLayout, Wanted
from sframegen.profile.copies.perf_file import PerfFile
from sframegen.profile.copies.recorded_files import RecordedFiles
from sframegen.profile.events.attributes import SOFTWARE_DUMMY, TYPE_SOFTWARE, EventFlag, SampleType
from sframegen.profile.events.event_records import CommRecord, LostRecord, Misc, MmapRecord, SampleRecord, TaskRecord
from sframegen.profile.events.names import BY_NAME
from sframegen.profile.following.processes import Processes
from sframegen.profile.machines import PROFILED
from sframegen.profile.tables.table_builder import TableBuilder
from sframegen.stack.abi.machines import HOSTS
from sframegen.stack.live.process import host_abi

if TYPE_CHECKING:
    from pathlib import Path

    from sframegen.detached.stores import Stores
    from sframegen.format.abi import Abi
    from sframegen.profile.copies.perf_file import TimedRecord
    from sframegen.profile.tables.table_cache import TableCache

BEFORE = -1  # before all times: what perf read from /proc has time 0
NEEDED = SampleType.REGS_USER | SampleType.STACK_USER
NANOSECONDS = 1e9
NO_EVENT = "the recording does not say what event they are of"
NOT_WRITTEN = "lost while it was recorded: the ring buffer was full"
MAPPINGS_LOST = "lost records may have been mappings; then later stacks are wrong: give perf record a larger buffer (-m)"


def read_perf_data(
    path: Path,
    wanted: Wanted,
    *,
    event: str | None = None,
    workers: int = 1,
    cache: TableCache | None = None,
    stores: Stores | None = None,
) -> Collected:
    """Walk all samples of one event of a recording, with registers and copies of stacks. `workers`: processes that make tables.

    `event`: its name, with or without modifiers; None: the first one. `stores`: of detached sections.

    Raises FormatError, or OSError if it cannot be opened.
    """
    file = PerfFile(path)
    abi = _abi_of(file)
    with TableBuilder(workers, cache, stores=stores) as builder:
        return _Reading(file, abi, event, builder, wanted).read()


def _abi_of(file: PerfFile) -> Abi:
    if not file.architecture:
        return host_abi()
    if file.architecture not in HOSTS:
        raise file.error(f"it was recorded on {file.architecture}; only {' and '.join(PROFILED)} are read")
    return HOSTS[file.architecture]


def _usable(file: PerfFile) -> dict[int, str]:
    """Return the names of the events whose samples can be walked, by number. perf's own event for mappings has no samples."""
    usable = {
        number: file.name_of(number)
        for number, event in enumerate(file.events)
        if event.attributes.sample_type & NEEDED == NEEDED
        and (event.attributes.type, event.attributes.config) != (TYPE_SOFTWARE, SOFTWARE_DUMMY)
    }
    if not usable:
        raise file.error("its samples have no copies of stacks: record with perf record --call-graph dwarf")
    return usable


def _chosen(file: PerfFile, usable: dict[int, str], event: str | None) -> int:
    """Return the number of the event with that name; the first one for None."""
    if event is None:
        return next(iter(usable))
    names = BY_NAME[event].names if event in BY_NAME else (event,)
    for number, name in usable.items():
        if name == event or name.partition(":")[0] in names:
            return number
    raise file.error(f"it has no samples of {event}; its events: {', '.join(usable.values())}")


class _Reading:
    """One pass over a recording."""

    def __init__(self, file: PerfFile, abi: Abi, event: str | None, builder: TableBuilder, wanted: Wanted) -> None:
        usable = _usable(file)
        self.event = _chosen(file, usable, event)
        attributes = file.events[self.event].attributes
        name = usable[self.event]
        frequency = attributes.period if attributes.flags & EventFlag.FREQUENCY else 0
        self.file = file
        self.files = RecordedFiles(file.build_ids, file.status.st_mtime)
        self.processes = Processes(self.files)
        self.collected = Collected(name, f"walked from copies of stacks in {file.name}", frequency, files=self.files.by_number)
        if others := [other for number, other in usable.items() if number != self.event]:
            self.collected.notes.append(f"{file.name}: {name} is read; other events: {', '.join(others)}")
        with naming(file.name):
            self.layout = RegisterLayout(abi, attributes.user_registers)
        self.counting = Counting(abi, self.collected, builder, wanted)

    def read(self) -> Collected:
        first = last = 0
        for timed in self.file.records():
            record = timed.record
            if isinstance(record, SampleRecord):
                if timed.event == self.event:
                    first, last = first or timed.time, timed.time
                    self.counting.take(record, self.layout, self.processes)
            elif isinstance(record, LostRecord):
                self.collected.lost[NOT_WRITTEN] += record.records
            else:
                self._apply(timed)
        self.counting.finish()
        collected = self.collected
        if self.file.unknown:
            collected.lost[NO_EVENT] += self.file.unknown
        if collected.lost[NOT_WRITTEN]:
            collected.notes.append(f"{self.file.name}: {MAPPINGS_LOST}")
        collected.seconds = (last - first) / NANOSECONDS
        collected.started = self.file.status.st_mtime - collected.seconds
        collected.notes += self.files.notes
        return collected

    def _apply(self, timed: TimedRecord) -> None:
        """Nothing of a process was mapped before its first record: perf begins with what it read from /proc."""
        record = timed.record
        match record:
            case TaskRecord(begins=True):
                self._begin(record.parent_pid)
                if timed.misc & Misc.COMM_EXEC:  # perf made it up: the mappings of the process follow
                    self._begin(record.pid)
                    return
            case TaskRecord():
                return  # samples of an ending process may come later
            case MmapRecord() | CommRecord():
                self._begin(record.pid)
        self.processes.apply(record, timed.time)

    def _begin(self, pid: int) -> None:
        if pid not in self.processes:
            self.processes.set_scanned(pid, (), "", BEFORE)
