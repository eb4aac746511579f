"""Records -> spans, against a plain model; a file is opened only if it is the inode that was mapped; real processes."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from time import monotonic_ns, time_ns
from types import SimpleNamespace
from typing import cast
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sframegen.base.errors import FormatError
from sframegen.elf.file import ElfFile
from sframegen.elf.records import PF, PT, Phdr
from sframegen.profile.events import cpu_rings
from sframegen.profile.events.attributes import EventAttributes, EventError, open_event
from sframegen.profile.events.event_records import CommRecord, MmapRecord, TaskRecord
from sframegen.profile.following import follower, mapped_file
from sframegen.profile.following import processes as module
from sframegen.profile.following.code_spans import MAX_SPAN_LISTS, FileMapping, make_spans, split_into_code_spans
from sframegen.profile.following.files import NOT_ELF, REWRITTEN, CodeSpan, TracedFile, TracedFiles
from sframegen.profile.following.follower import Follower, GeneratedCode, MappingResolver, read_memory
from sframegen.profile.following.mapped_file import CLOCK_STEP, FileKey, Opener, ProcessMapping
from sframegen.profile.following.processes import MAX_DELAY, VERSION_LIFETIME, Processes, ProcessSpans, replace_spans
from sframegen.program import time_limits
from sframegen.program.helper import helpers
from sframegen.program.time_limits import TimeLimits
from sframegen.stack import snapshot as memory
from sframegen.stack.live.process import parse_mappings
from sframegen.stack.mappings import VDSO
from sframegen.stack.snapshot import MAX_CODE_SIZE
from tests.support.loops import for_each
from tests.support.peers import Compiler
from tests.support.processes.live import HOLD, MOVES_CODE, Program, compiled

PARENT, CHILD, OTHER = 4_194_301, 4_194_302, 4_194_303  # numbers that no process has here


class Made:
    """The file is the inode; a mapping without one is code without a file."""

    def find_spans(self, record: MmapRecord, time: int) -> list[CodeSpan]:
        assert time
        return [CodeSpan(record.start, record.end, record.start - record.offset, record.inode)]


def fork(parent: int, child: int) -> TaskRecord:
    return TaskRecord(True, child, parent, child, parent)


def thread(pid: int, tid: int) -> TaskRecord:
    return TaskRecord(True, pid, pid, tid, pid)


def leave(pid: int, tid: int = 0) -> TaskRecord:
    return TaskRecord(False, pid, 1, tid or pid, 1)


def run(pid: int, name: str = "program") -> CommRecord:
    return CommRecord(pid, pid, name, by_exec=True)


def mapped(pid: int, start: int, end: int, file: int = 1, *, executable: bool = True) -> MmapRecord:
    return MmapRecord(pid, pid, start, end, 0, executable, "/x", inode=file)


def followed(records: Iterable[object], targets: Iterable[int] | None = None) -> Processes:
    """Records one nanosecond apart, from 1 on."""
    processes = Processes(Made(), targets)
    for time, record in enumerate(records, 1):
        processes.apply(record, time)  # type: ignore[arg-type] # they are records
    return processes


def files_at(spans: Iterable[CodeSpan] | None) -> dict[int, tuple[int, int]]:
    return {at: (span.file, span.bias) for span in spans or () for at in range(span.start, span.end)}


def test_a_process_with_very_many_mappings_has_its_past() -> None:
    processes = Processes(Made(), [PARENT])
    processes.set_scanned(PARENT, [CodeSpan(64 * at, 64 * at + 8, 0, 1) for at in range(20_000)], "many", 1)
    times = range(10, 310)
    for time in times:
        processes.apply(mapped(PARENT, 64 * time + 16, 64 * time + 24, file=time), time)
    for time in times:
        starts = {span.start for span in processes.spans(PARENT, time) or ()}
        assert 64 * time + 16 in starts
        assert 64 * (time + 1) + 16 not in starts


def test_many_such_processes_together_keep_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_COST", 1_000)
    monkeypatch.setattr(module, "MAX_COST_OF_LARGE", 20_000)
    monkeypatch.setattr(module, "MAX_COST_OF_ALL", 30_000)
    processes = Processes(Made(), [PARENT, CHILD, OTHER])
    for pid in (PARENT, CHILD, OTHER):
        processes.set_scanned(pid, [CodeSpan(64 * at, 64 * at + 8, 0, 1) for at in range(500)], "many", 1)
        for time in range(10, 110):
            processes.apply(mapped(pid, 64 * time + 16, 64 * time + 24), time)
    kept = [next(at for at in range(1, 110) if processes.spans(pid, at) is not None) for pid in (PARENT, CHILD, OTHER)]
    assert 109 - kept[0] > 30  # 20,000 in versions of 500 and more
    assert 109 - kept[1] < 109 - kept[0]
    assert 109 - kept[2] <= 2


ranges = st.tuples(st.integers(0, 40), st.integers(1, 12), st.integers(0, 3))


@given(st.lists(ranges, max_size=30))
def test_spans_are_what_was_mapped_last_at_each_address(made_of: list[tuple[int, int, int]]) -> None:
    spans: tuple[CodeSpan, ...] = ()
    model: dict[int, tuple[int, int]] = {}
    for start, size, file in made_of:
        spans = replace_spans(spans, start, start + size, [CodeSpan(start, start + size, start, file)])
        model |= dict.fromkeys(range(start, start + size), (file, start))
        assert files_at(spans) == model
        assert all(one.start < one.end for one in spans)
        assert all(one.end <= two.start for one, two in pairwise(spans))


PIDS = (PARENT, CHILD, OTHER)
events = st.one_of(
    st.builds(lambda pid, place: mapped(pid, place[0], place[0] + place[1], place[2]), st.sampled_from(PIDS), ranges),
    st.builds(run, st.sampled_from(PIDS)),
    st.builds(leave, st.sampled_from(PIDS)),
    st.builds(fork, st.sampled_from(PIDS), st.sampled_from(PIDS)).filter(lambda task: task.pid != task.parent_pid),
)


@given(st.lists(events, max_size=50))
def test_every_process_has_the_mappings_that_it_had_at_each_time(records: list[MmapRecord | CommRecord | TaskRecord]) -> None:
    processes = Processes(Made())
    model: dict[int, dict[int, tuple[int, int]] | None] = {}
    history = [dict(model)]
    for time, record in enumerate(records, 1):
        processes.apply(record, time)
        known = model.get(record.pid)
        match record:
            case MmapRecord() if known is not None:
                model[record.pid] = known | dict.fromkeys(range(record.start, record.end), (record.inode, record.start))
            case CommRecord():
                model[record.pid] = {}
            case TaskRecord(begins=True):
                model[record.pid] = model.get(record.parent_pid)
            case _:
                pass
        history.append(dict(model))
        for pid in PIDS:
            assert (processes.spans(pid) is None) == (model.get(pid) is None)
            assert files_at(processes.spans(pid)) == (model.get(pid) or {})
    began = dict.fromkeys(PIDS, 0)
    for time, record in enumerate(records, 1):
        if isinstance(record, TaskRecord) and record.begins:
            began[record.pid] = time
    for time, then in enumerate(history):
        for pid in PIDS:
            if time >= began[pid]:  # a number that is used again has no history
                assert files_at(processes.spans(pid, time)) == (then.get(pid) or {})


def test_only_targets_and_their_descendants_are_followed() -> None:
    records = [run(OTHER), fork(PARENT, CHILD), fork(CHILD, CHILD - 1000), fork(OTHER, OTHER - 1000), mapped(OTHER, 1, 2)]
    processes = followed(records, [PARENT])
    assert [pid in processes for pid in (PARENT, CHILD, CHILD - 1000, OTHER, OTHER - 1000)] == [True, True, True, False, False]
    processes.apply(fork(OTHER, CHILD), 6)  # the number is used again
    assert CHILD not in processes


def test_what_is_not_known_is_not_invented() -> None:
    processes = followed([mapped(PARENT, 1, 2), fork(PARENT, CHILD)])
    assert processes.spans(PARENT) is None
    assert processes.spans(CHILD) is None
    found = [CodeSpan(1, 2, 0, 1)]
    processes.set_scanned(PARENT, found, "p", 5)
    processes.confirm_scan(PARENT)
    assert processes.spans(PARENT, 1) == tuple(found)  # so it was since its last change,
    assert processes.spans(PARENT, 0) is None  # not before
    processes.apply(mapped(PARENT, 1, 2, 7), 4)  # a record that came late: the scan was after it
    assert processes.spans(PARENT) == tuple(found)
    processes.apply(mapped(PARENT, 1, 2, 7), 6)
    assert files_at(processes.spans(PARENT)) == {1: (7, 1)}


def test_mappings_are_unknown_where_records_may_be_missing() -> None:
    processes = followed([run(PARENT), mapped(PARENT, 1, 2)])
    processes.changed.clear()
    processes.forget_mappings(10, 20)
    assert processes.spans(PARENT) is None
    assert processes.spans(PARENT, 9) == (CodeSpan(1, 2, 1, 1),)
    assert processes.changed == {PARENT}
    processes.set_scanned(PARENT, [CodeSpan(1, 3, 0, 1)], "p", 30, 32)
    assert [processes.spans(PARENT, time) for time in (9, 15, 31)] == [(CodeSpan(1, 2, 1, 1),), None, None]
    assert processes.spans(PARENT, 32) == (CodeSpan(1, 3, 0, 1),)
    processes.forget_mappings(40, 50)
    processes.apply(run(PARENT), 45)  # another CPU's record: some of what was mapped since may be missing
    assert processes.spans(PARENT) is None
    processes.apply(run(PARENT), 51)
    assert processes.spans(PARENT) == ()


@pytest.mark.parametrize(("later", "known_from"), [([], 20), ([(31, 5, 6)], 31), ([(33, 5, 6)], 32)])
def test_a_scan_holds_since_the_last_record_if_none_came_meanwhile(later: list[tuple[int, int, int]], known_from: int) -> None:
    """Another mapping may have been in the place of what was found, until the record that came meanwhile."""
    processes = followed([run(PARENT), mapped(PARENT, 1, 2)])
    processes.forget_mappings(10, 20)
    processes.set_scanned(PARENT, [CodeSpan(1, 3, 0, 1)], "p", 30, 32)
    for time, start, end in later:
        processes.apply(mapped(PARENT, start, end), time)
    processes.confirm_scan(PARENT)
    assert processes.spans(PARENT, known_from - 1) is None
    assert processes.spans(PARENT, known_from) is not None


def test_a_process_with_lost_records_has_not_ended() -> None:
    own = os.getpid()  # one that runs: whether it does is looked up
    processes = followed([mapped(own, 1, 2)])
    processes.forget_mappings(2, 12)
    assert processes.spans(own) is None
    assert not processes.has_ended(own)
    assert processes.has_ended(own + 1)
    processes.apply(leave(own), 11)
    assert processes.has_ended(own)


def test_a_process_whose_end_was_lost_is_dropped() -> None:
    processes = followed([run(PARENT)])
    processes.forget_mappings(2, 12)
    processes.drop_ended(2 * MAX_DELAY)
    assert PARENT not in processes
    assert processes.ended == {PARENT}


@pytest.mark.parametrize("forked", [True, False])
def test_a_process_whose_other_threads_run_stays(monkeypatch: pytest.MonkeyPatch, forked: bool) -> None:
    """Only one that is known to have had no others is not looked at."""
    monkeypatch.setattr(module, "_has_threads", lambda _: True)
    alone = [fork(OTHER, PARENT)] if forked else [run(PARENT)]
    processes = followed([*alone, leave(PARENT)])
    processes.drop_ended(2 * MAX_DELAY)
    assert (PARENT in processes) is not forked
    processes = followed([*alone, thread(PARENT, 77), leave(PARENT)])
    processes.drop_ended(2 * MAX_DELAY)
    assert PARENT in processes


@pytest.mark.parametrize("pid", [0, (1 << 32) - 1])
def test_processes_of_other_namespaces_are_not_one_process(pid: int) -> None:
    assert len(followed([run(pid), fork(PARENT, pid), mapped(pid, 1, 2), leave(pid)])) == 0


def test_files_that_were_rewritten_are_no_files_any_more() -> None:
    """Data is none from the beginning."""
    records = [mapped(PARENT, 1, 2, 5), mapped(PARENT, 4, 5, 6), mapped(PARENT, 7, 8, executable=False)]
    processes = followed([run(PARENT), *records, run(OTHER)])
    processes.changed.clear()
    processes.forget_files({5}, 10)
    assert processes.spans(PARENT) == (CodeSpan(1, 2, 0, 0), CodeSpan(4, 5, 4, 6))
    assert processes.changed == {PARENT}


def test_threads_have_names_of_their_own() -> None:
    records = [run(PARENT, "p"), CommRecord(PARENT, 77, "worker", by_exec=False), thread(PARENT, 78)]
    processes = followed([*records, TaskRecord(True, PARENT, PARENT, 79, 77)])
    assert [processes.thread_name(PARENT, tid) for tid in (77, 78, 79)] == ["worker", "p", "worker"]
    processes.apply(leave(PARENT, 77), 9)
    assert processes.thread_name(PARENT, 77) == "p"
    assert PARENT in processes


def test_a_process_stays_a_while_after_its_end_and_memory_does_not_grow() -> None:
    processes = Processes(Made())
    most = 0
    for number in range(20_000):
        time = number * MAX_DELAY // 100 + 1
        pid = 5_000_000 + number
        for record in (fork(PARENT, pid), run(pid), mapped(pid, 1, 2), leave(pid)):
            processes.apply(record, time)
        assert processes.spans(pid) == (CodeSpan(1, 2, 1, 1),)
        processes.drop_ended(time)
        most = max(most, len(processes))
        processes.ended.clear()
    assert most < 110
    processes.drop_ended(30_000 * MAX_DELAY)
    assert len(processes) == 0


def test_a_number_that_is_used_again_is_not_dropped_with_its_first_process() -> None:
    processes = followed([run(PARENT), leave(PARENT), fork(OTHER, PARENT), run(PARENT), mapped(PARENT, 1, 2)])
    processes.drop_ended(2 * MAX_DELAY)
    assert processes.spans(PARENT) == (CodeSpan(1, 2, 1, 1),)
    assert processes.ended == set()


def test_many_mappings_at_one_time_keep_the_last_versions() -> None:
    count = 1000
    processes = followed([run(PARENT), *(mapped(PARENT, 2 * n, 2 * n + 1) for n in range(count))])
    assert len(processes.spans(PARENT) or ()) == count
    assert processes.spans(PARENT, 2) is None  # too long ago: unknown, not guessed
    assert len(processes.spans(PARENT, count - 5) or ()) == count - 6


def test_a_process_that_loads_and_unloads_a_library_in_a_loop_keeps_some_of_its_past() -> None:
    """Some hundred times a second: samples come a tenth of a second later."""
    pair = [mapped(PARENT, 0x1000, 0x2000, 1), mapped(PARENT, 0x1000, 0x2000, 2)]
    processes = followed([run(PARENT), *pair * 10_000])
    assert processes.spans(PARENT, 2) is None
    assert [[span.file for span in processes.spans(PARENT, time) or ()] for time in (19_000, 19_001)] == [[1], [2]]


def test_new_memory_ends_only_what_was_mapped_there_before() -> None:
    """The kernel's program reports it apart from the records, perhaps after the record of the new mapping."""
    processes = followed([run(PARENT), mapped(PARENT, 0x1000, 0x2000, 1), mapped(PARENT, 0x3000, 0x4000, 2)])
    processes.apply(mapped(PARENT, 0x1000, 0x2000, 3), 9)
    processes.apply_unmapping(PARENT, 0x1800, 0x3800, 8)
    assert [span.file for span in processes.spans(PARENT) or ()] == [3]
    processes.apply_unmapping(PARENT, 0, 0x1000, 10)
    assert [span.file for span in processes.spans(PARENT) or ()] == [3]
    processes.apply_unmapping(PARENT, 0, 0x1001, 10)
    assert processes.spans(PARENT) == ()


Step = tuple[str, int, int] | tuple[str, int, int, int]  # map: time, file; scan: file, since, until; unmap: time, end
LATE: dict[str, tuple[list[Step], dict[int, int]]] = {
    "what is read from /proc says nothing about earlier times: a library was replaced while it was read": (
        [("scan", 3, 5, 20), ("map", 10, 2), ("map", 15, 3)],
        {7: 1, 12: 2, 17: 3, 30: 3},
    ),
    "a record that the kernel had not yet written when all before the scan were read holds up to it": (
        [("scan", 2, 10, 20), ("map", 9, 2), ("map", 30, 4)],
        {8: 1, 9: 2, 19: 2, 25: 2, 30: 4},
    ),
    "a late record counts where the scan has found nothing new: library 2 took the place of 1, and gave it back": (
        [("scan", 1, 10, 20), ("map", 9, 2)],
        {8: 1, 9: 2, 14: 2, 20: 1},
    ),
    "so it does with reports of new memory from before": (
        [("scan", 1, 10, 20), ("map", 9, 2), ("map", 15, 1), ("unmap", 8, 0x4000), ("unmap", 14, 0x4000)],
        {8: 1, 9: 2, 14: 2, 15: 1, 20: 1},
    ),
    "new memory before a late record does not end what the scan has found: the library was loaded again": (
        [("scan", 1, 10, 20), ("map", 9, 1), ("unmap", 8, 0x4000)],
        {30: 1},
    ),
    "a late record counts after an earlier scan that ended after it, but read what was mapped before": (
        [("scan", 3, 5, 20), ("scan", 4, 25, 40), ("map", 15, 2)],
        {14: 1, 15: 2, 30: 2, 40: 4},
    ),
    "a file that is loaded, unloaded and loaded again at its place, before the report of the new memory is read, stays": (
        [("map", 9, 1), ("unmap", 8, 0x4000)],
        {10: 1},
    ),
}


@for_each("case", LATE)
def test_records_reports_and_scans_that_come_late(case: str) -> None:
    processes = followed([run(PARENT), mapped(PARENT, 0x1000, 0x2000, 1)])
    steps, expected = LATE[case]
    for step in steps:
        match step:
            case ("map", time, file):
                processes.apply(mapped(PARENT, 0x1000, 0x2000, file), time)
            case ("unmap", time, end):
                processes.apply_unmapping(PARENT, 0, end, time)
            case ("scan", file, since, until):
                processes.set_scanned(PARENT, [CodeSpan(0x1000, 0x2000, 0x1000, file)], "p", since, until)
    found = {time: processes.spans(PARENT, time) for time in expected}
    assert found == {time: (CodeSpan(0x1000, 0x2000, 0x1000, file),) for time, file in expected.items()}


def test_a_program_that_is_executed_while_proc_is_read_begins_without_mappings() -> None:
    """The scan has found those of the program."""
    processes = followed([run(PARENT), mapped(PARENT, 0x1000, 0x2000)])
    processes.set_scanned(PARENT, [CodeSpan(0x1000, 0x2000, 0x1000, 5)], "p", 40, 50)
    processes.apply(run(PARENT), 35)
    assert [processes.spans(PARENT, time) for time in (34, 35, 49)] == [(CodeSpan(0x1000, 0x2000, 0x1000, 1),), (), ()]
    assert processes.spans(PARENT) == (CodeSpan(0x1000, 0x2000, 0x1000, 5),)


def test_files_are_in_use_for_a_while_after_they_were_unmapped() -> None:
    processes = followed([run(PARENT), mapped(PARENT, 1, 2, 1), mapped(PARENT, 1, 2, 2), fork(PARENT, CHILD)])
    assert processes.files_in_use() == {1, 2}
    processes.apply(mapped(PARENT, 3, 4, 3), 2 * VERSION_LIFETIME)
    assert processes.files_in_use() == {2, 3}
    processes.apply(leave(PARENT), 3 * VERSION_LIFETIME)
    processes.apply(leave(CHILD), 3 * VERSION_LIFETIME)
    processes.drop_ended(4 * VERSION_LIFETIME)
    assert processes.files_in_use() == set()


@pytest.fixture
def files() -> Iterator[TracedFiles]:
    found = TracedFiles()
    yield found
    found.close()


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A file that is older than the clock's step."""
    path = tmp_path / "library"
    shutil.copy(shutil.which("true") or "", path)
    return path


def key_of(path: Path, *, generation: int = 0) -> FileKey:
    status = path.stat()
    return FileKey(os.major(status.st_dev), os.minor(status.st_dev), status.st_ino, generation)


def later(path: Path) -> int:
    """A time of CLOCK_MONOTONIC after the last change of a file."""
    return path.stat().st_ctime_ns - time_ns() + monotonic_ns() + 2 * CLOCK_STEP


def place(path: Path, when: int) -> ProcessMapping:
    return ProcessMapping(OTHER, 0x1000, 0x2000, str(path), when)


def test_a_path_of_a_process_that_ended_is_opened_if_it_is_the_same_inode(library: Path) -> None:
    key, when = key_of(library), later(library)
    descriptor = Opener().open(key, place(library, when))
    assert os.fstat(descriptor).st_ino == key.inode
    os.close(descriptor)
    for other in (key._replace(inode=key.inode + 1), key._replace(minor=key.minor ^ 1)):
        with pytest.raises(FormatError, match="another file has its path"):
            Opener().open(other, place(library, when))


def test_a_file_that_changed_after_it_was_mapped_is_refused(library: Path) -> None:
    with pytest.raises(FormatError, match="changed or replaced"):
        Opener().open(key_of(library), place(library, later(library) - 4 * CLOCK_STEP))


def test_an_inode_number_that_is_used_again_is_another_file(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = key_of(library, generation=5)
    monkeypatch.setattr("fcntl.ioctl", lambda *_: (6).to_bytes(8, "little"))
    with pytest.raises(FormatError, match="changed or replaced"):
        Opener().open(key, place(library, later(library)))
    os.close(Opener().open(key._replace(generation=6), place(library, later(library))))


def test_what_is_no_regular_file_is_not_opened(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for path in (fifo, tmp_path):
        with pytest.raises(FormatError, match="not a regular file"):
            Opener().open(key_of(path), place(path, later(path)))
    with pytest.raises(OSError, match="No such file"):
        Opener().open(FileKey(0, 0, 1), place(tmp_path / "none", 1))
    with pytest.raises((OSError, FormatError)):
        Opener().open(FileKey(0, 0, 1), ProcessMapping(OTHER, 0, 1, "//anon", 1))


def own_row() -> tuple[FileKey, ProcessMapping]:
    with open("/proc/self/maps", "rb") as file:  # noqa: PTH123 - a file that has no size
        rows = parse_mappings(file.read())
    row = next(row for row in rows if row.executable and row.inode)
    return mapped_file.parse_file_key(row.device, row.inode), ProcessMapping(os.getpid(), row.start, row.end, row.path, 1)


@pytest.mark.sampled
def test_what_a_process_has_mapped_is_opened_even_if_stat_numbers_its_device_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on btrfs: then /proc/PID/maps must say that the mapping is that file."""
    key, where = own_row()
    try:
        os.close(os.open(f"/proc/self/map_files/{where.start:x}-{where.end:x}", os.O_RDONLY))
    except OSError as error:
        pytest.skip(f"no perf events: {error}")
    opener = Opener()
    os.close(opener.open(key, where))
    with pytest.raises(FormatError):
        Opener().open(key._replace(major=key.major + 1), where)
    major = os.major
    monkeypatch.setattr("os.major", lambda device: major(device) + 7)
    os.close(opener.open(key, where))
    moved = where._replace(pid=OTHER, time=monotonic_ns())
    os.close(opener.open(key, moved))  # the device is known now
    with pytest.raises(FormatError, match="another file"):
        Opener().open(key, moved)
    # A device that is unmounted leaves its number to another one.
    monkeypatch.setattr(time_limits, "current", TimeLimits(device_numbers=-1))
    with pytest.raises(FormatError, match="another file"):
        opener.open(key, moved)


@pytest.mark.sampled
def test_another_file_that_was_mapped_there_for_a_moment_is_not_taken(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process may map one plugin after the other at the same addresses, many times a second."""
    key, where = own_row()
    where = where._replace(time=monotonic_ns())
    opened = os.open
    monkeypatch.setattr("os.open", lambda path, flags: opened(library if "/map_files/" in path else path, flags))
    descriptor = Opener().open(key, where)
    assert os.fstat(descriptor).st_ino == key.inode
    os.close(descriptor)


def found(files: TracedFiles, path: Path, *, generation: int = 0) -> TracedFile:
    file = files.find_or_open(key_of(path, generation=generation), place(path, later(path)))
    assert file is not None
    return file


def test_files_have_one_number_for_an_inode(files: TracedFiles, library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = found(files, library)
    assert first.elf is not None
    monkeypatch.setattr("fcntl.ioctl", lambda *_: (3).to_bytes(8, "little"))
    helpers().close()  # the next one has this ioctl
    assert found(files, library, generation=3) is first
    assert (files.take_new(), files.take_new()) == ([first], [])
    assert files.by_number == {1: first}
    helpers().close()  # and the next one has not


def test_a_file_that_could_not_be_opened_is_tried_again(files: TracedFiles, library: Path) -> None:
    key = key_of(library)
    moved = library.rename(library.with_name("moved"))
    failed = files.find_or_open(key, place(library, later(moved)))
    assert failed is not None
    assert (failed.elf, failed.why, failed.ready) == (None, "No such file or directory", True)
    moved.rename(library)
    opened = found(files, library)
    assert opened.number != failed.number, "stacks may have addresses in it, and nobody knew its bias"
    assert (opened.elf is not None, opened.why, opened.ready, files.take_new()) == (True, "", False, [opened])


@pytest.mark.parametrize(
    ("data", "number", "why"), [(b"text", None, NOT_ELF), (b"\x7fELF\1\1\1" + bytes(60), 1, "32-bit"), (b"", 1, "empty")]
)
def test_files_that_are_no_elf_files_of_64_bits(
    files: TracedFiles, tmp_path: Path, data: bytes, number: int | None, why: str
) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    traced = files.find_or_open(key_of(path), place(path, later(path)))
    assert (traced.number if traced else None) == number
    assert why in files.by_number[1].why
    assert files.take_new() == []
    assert files.find_or_open(key_of(path), place(path, later(path))) is traced
    assert len(files.by_number) == 1


def test_files_that_nobody_uses_are_closed_and_their_numbers_used_again(files: TracedFiles, library: Path) -> None:
    first = found(files, library)
    descriptor = first.elf and first.elf.descriptor
    assert descriptor
    assert files.release_unused(set()) == []  # its table is being made
    first.ready = True
    assert files.release_unused({first.number}) == []
    assert files.release_unused(set()) == [first.number]
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    other = library.with_name("other")
    other.write_bytes(library.read_bytes())
    second = found(files, other)
    assert (second.number, second.path) == (first.number, str(other))
    assert found(files, library).number != second.number


def test_numbers_are_limited_and_only_for_elf_files(files: TracedFiles, library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit holds for images of the kernel, too."""
    monkeypatch.setattr("sframegen.profile.following.files.MAX_FILES", 0)
    assert files.find_or_open(key_of(library), place(library, later(library))) is None
    assert files.add_image(b"\x7fELF") is None
    assert files.refused == 2
    monkeypatch.undo()
    assert (files.add_image(b""), files.add_image(b"no ELF")) == (None, None)


def test_a_number_that_is_used_again_gets_no_table_of_its_first_file(files: TracedFiles, library: Path) -> None:
    library.rename(library.with_name("moved"))
    assert files.find_or_open(key_of(library.with_name("moved")), place(library, 0)) is not None
    assert (files.take_without_table(), files.release_unused(set())) == ([1], [1])
    library.with_name("moved").rename(library)
    opened = found(files, library)
    assert (opened.number, files.take_without_table(), files.take_new()) == (1, [], [opened])


# -- mappings of ELF files -> spans with biases; the first case is what loaders do

PAGE = 0x1000


def load(offset: int, vaddr: int, size: int, flags: int = PF.X) -> Phdr:
    return Phdr(PT.LOAD, flags, offset, vaddr, vaddr, size, size, PAGE)


def elf(*loads: Phdr) -> ElfFile:
    made = SimpleNamespace(segments=list(loads), executable_loads=lambda: [one for one in loads if one.p_flags & PF.X])
    return cast("ElfFile", made)


TEXT, DATA = load(0x1100, 0x401100, 0x1F00), load(0x3000, 0x405000, 0x500, 0)
SECOND = load(0x3800, 0x806800, 0x1000)


def test_spans() -> None:
    cases: list[tuple[tuple[Phdr, ...], FileMapping, list[CodeSpan]]] = [
        ((TEXT, DATA), FileMapping(0x10000, 0x12000, PAGE), [CodeSpan(0x10000, 0x12000, 0x10000 - 0x401000, 1)]),
        ((TEXT, DATA), FileMapping(0x11000, 0x12000, 2 * PAGE), [CodeSpan(0x11000, 0x12000, 0x11000 - 0x402000, 1)]),
        ((TEXT, DATA), FileMapping(0x10000, 0x11000, 3 * PAGE), [CodeSpan(0x10000, 0x11000, 0x10000 - 0x405000, 1)]),
        ((TEXT, DATA), FileMapping(0x10000, 0x11000, 9 * PAGE), [CodeSpan(0x10000, 0x11000, 0, 0)]),
        (
            (TEXT, SECOND),
            FileMapping(0x10000, 0x15000, 0),
            [CodeSpan(0x11100, 0x13000, 0x10000 - 0x400000, 1), CodeSpan(0x13800, 0x14800, 0x10000 - 0x803000, 1)],
        ),
        ((TEXT, SECOND), FileMapping(0x20000, 0x22000, 3 * PAGE), [CodeSpan(0x20000, 0x22000, 0x20000 - 0x806000, 1)]),
        # two segments in one page: each mapping has the segment that it was made for
        (
            (load(0, 0x400000, 0x1800), load(0x1800, 0x602800, 0x800)),
            FileMapping(0x10000, 0x12000, 0),
            [CodeSpan(0x10000, 0x12000, -0x3F0000, 1)],
        ),
        ((), FileMapping(0x10000, 0x11000, 0), [CodeSpan(0x10000, 0x11000, 0, 0)]),
    ]
    wrong = []
    for loads, mapped, spans in cases:
        expected = [span._replace(bias=span.bias & (1 << 64) - 1) for span in spans]
        file = TracedFile(1, "/library", elf(*loads))
        found = [split_into_code_spans(elf(*loads), 1, mapped), *(make_spans(file, mapped) for _ in range(2))]
        if found != [expected] * 3:
            wrong.append((loads, mapped, found))
    assert wrong == []


def test_a_file_at_other_addresses_and_from_other_places() -> None:
    """What is known of a file's mappings is known by offset and size."""
    file = TracedFile(1, "/library", elf(TEXT, SECOND))
    for mapped in (
        FileMapping(0x10000, 0x12000, PAGE),
        FileMapping(0x7F0000010000, 0x7F0000012000, PAGE),
        FileMapping(0x10000, 0x11000, PAGE),
        FileMapping(0x10000, 0x12000, 3 * PAGE),
        *(FileMapping(0x10000, 0x10000 + size * PAGE, 0) for size in range(1, 2 * MAX_SPAN_LISTS)),
        FileMapping(0x20000, 0x22000, PAGE),
    ):
        assert make_spans(file, mapped) == split_into_code_spans(elf(TEXT, SECOND), 1, mapped)


LIBRARY = "int function(int n) { return n * 7 + 1; }"
HOLDING = 'int main(void) { hold(); puts("done"); }'


@pytest.fixture
def following() -> Iterator[Follower]:
    with all_followed() as found:
        yield found


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Mock:
    recorded = Mock(wraps=read_memory)
    monkeypatch.setattr(follower, "read_memory", recorded)
    return recorded


def test_the_vdso_is_read_once(asked: Mock) -> None:
    """All processes of our kind have the same: none of them can give the others another one."""
    resolver = MappingResolver(TracedFiles())
    [(start, end)] = [(row.start, row.end) for row in parse_mappings(Path("/proc/self/maps").read_bytes()).rows if row.path == VDSO]
    records = [MmapRecord(pid, pid, base, base + end - start, 0, True, VDSO) for pid, base in ((1, 1 << 40), (2, 1 << 41))]
    first, second = (resolver.find_spans(record, 0) for record in records)
    assert [span.file for span in first] == [span.file for span in second] != [0]
    assert [span.start for span in second] == [1 << 41]
    assert [call.args[0] for call in asked.call_args_list] == [os.getpid()]


def test_code_that_a_process_makes_is_read_by_pages_and_again_after_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = {0: bytes(4096), 1: bytes(4096), 3: bytes(4096)}
    asked: list[int] = []

    def read(_pid: int, address: int, size: int) -> bytes:
        asked.append(address)
        assert size == 4096
        return memory.get(address // size, b"")

    clock = [10.0]
    monkeypatch.setattr(follower, "read_memory", read)
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    code = GeneratedCode(1)
    assert (code.read(4094, 5), code.read(8190, 5), asked) == (bytes(5), bytes(2), [0, 4096, 8192])
    assert code.read(3 * 4096 - 2, 5) == b""  # reading stops at the unreadable page, so bytes after it do not count
    memory[0] = b"\xcc" * 4096
    assert code.read(4094, 2) == bytes(2)
    clock[0] += 1.1
    assert code.read(4094, 3) == b"\xcc\xcc\0"


@contextmanager
def all_followed() -> Iterator[Follower]:
    try:
        found = Follower()
    except EventError as error:
        pytest.skip(f"no perf events: {error}")
    yield found
    found.close()
    found.files.close()


def check(following: Follower, pid: int) -> dict[str, TracedFile]:
    """The spans of a running process are its executable mappings, with the right files and biases; files by path."""
    following.drain()
    rows = [row for row in parse_mappings(Path(f"/proc/{pid}/maps").read_bytes()) if row.executable and row.path != "[vsyscall]"]
    spans = following.processes.spans(pid)
    assert spans is not None
    assert [(span.start, span.end) for span in spans] == [(row.start, row.end) for row in rows]
    files = {}
    memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
    for span, row in zip(spans, rows, strict=True):
        if span.file:
            file = following.files.by_number[span.file]
            files[file.path] = file
            assert file.elf is not None
            loads = [one for one in file.elf.executable_loads() if one.p_vaddr < span.end - span.bias]
            load = next(one for one in loads if span.start - span.bias < one.p_vaddr + one.p_filesz)
            start = max(span.start, load.p_vaddr + span.bias)
            size = min(span.end, load.p_vaddr + load.p_filesz + span.bias) - start
            assert size > 100
            assert os.pread(memory, size, start) == bytes(file.elf.at(start - span.bias, size))
        else:
            assert not row.path.startswith("/") or not row.inode
    os.close(memory)
    return files


def test_a_program_that_starts_while_it_is_followed(following: Follower, compile_c: Compiler, tmp_path: Path) -> None:
    with Program(compiled(compile_c, tmp_path, HOLDING, section=False)) as program:
        files = check(following, program.pid)
        assert {Path(path).name for path in files} >= {"program", "libc.so.6", "[vdso]"}
        assert following.processes.name_of(program.pid) == "program"
        before = following.processes.spans(program.pid)
        assert following.scan(program.pid)
        assert following.processes.spans(program.pid) == before
        assert len({file.number for file in following.files.take_new()}) >= len(files)
        assert all(file.build_id for path, file in files.items() if path != "[vdso]" or file.build_id)


def test_what_is_no_process_has_no_mappings(following: Follower) -> None:
    assert not following.scan(2)  # a thread of the kernel
    child = subprocess.Popen(["true"])
    child.wait()
    assert not following.scan(child.pid)


def test_children_and_programs_that_they_execute(following: Follower, compile_c: Compiler, tmp_path: Path) -> None:
    source = """int main(int count, char **names) {
        if (count > 1) { hold(); puts("done"); return 0; }
        if (fork() == 0) { hold(); execl(names[0], names[0], "again", NULL); }
        wait(0);
    }"""
    program = compiled(compile_c, tmp_path, "#include <sys/wait.h>\n" + source, section=False)
    with Program(program) as running:
        following.drain()
        parent = check(following, running.pid)
        child = int(Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text())
        assert following.processes.spans(child) == following.processes.spans(running.pid)
        running.go_on()
        running.wait()
        assert check(following, child).keys() == parent.keys()
        assert following.processes.spans(child) != following.processes.spans(running.pid)


def test_libraries_that_come_and_go(following: Follower, compile_c: Compiler, tmp_path: Path) -> None:
    names = [tmp_path / f"{name}.so" for name in "ab"]
    for name in names:
        shutil.copy(compile_c(LIBRARY, "-shared", "-fPIC"), name)
    source = """int main(int count, char **names) {
        void *first = dlopen(names[1], RTLD_NOW); hold();
        dlclose(first); void *second = dlopen(names[2], RTLD_NOW); hold();
        puts(second ? "done" : "failed"); }"""
    with Program(compiled(compile_c, tmp_path, source, section=False), *names) as program:
        assert "a.so" in {Path(path).name for path in check(following, program.pid)}
        first = following.processes.spans(program.pid)
        at = following.drain()
        following.processes.changed.clear()
        program.go_on()
        program.wait()
        following.drain()
        assert program.pid in following.processes.changed
        assert {"b.so"} <= {Path(path).name for path in check(following, program.pid)}
        assert following.processes.spans(program.pid, at) == first
        assert following.scan(program.pid)
        assert "a.so" not in {Path(path).name for path in check(following, program.pid)}


MAKES_CODE = """#include <sys/mman.h>
int main(void) {
    char *code = mmap(0, 12288, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(code + 4096, 4096, PROT_READ | PROT_EXEC);
    hold();
    puts("done");
}"""


def test_code_that_is_made_at_run_time_has_no_file(following: Follower, compile_c: Compiler, tmp_path: Path) -> None:
    with Program(compiled(compile_c, tmp_path, MAKES_CODE, section=False)) as program:
        check(following, program.pid)
        assert [span.end - span.start for span in following.processes.spans(program.pid) or () if not span.file] == [4096]


def test_code_that_a_program_has_moved_to_anonymous_memory_is_that_of_its_file(
    monkeypatch: pytest.MonkeyPatch, asked: Mock, compile_c: Compiler, tmp_path: Path
) -> None:
    """If it is the same, which is found out once: programs move their code to huge pages. Code above the limit is not read."""
    path = compiled(compile_c, tmp_path, MOVES_CODE, section=False)
    for arguments, most in (((), MAX_CODE_SIZE), (("changed",), MAX_CODE_SIZE), (("too much",), 64)):
        monkeypatch.setattr(memory, "MAX_CODE_SIZE", most)
        with Program(path, *arguments) as program, all_followed() as following:
            for _ in range(2):
                assert following.scan(program.pid)
                files = check(following, program.pid)
                assert (str(path) in files) == (not arguments)
            assert [call.args[0] for call in asked.call_args_list].count(program.pid) == (most == MAX_CODE_SIZE)


def test_a_file_that_is_deleted_or_replaced_is_still_the_one(following: Follower, compile_c: Compiler, tmp_path: Path) -> None:
    path = compiled(compile_c, tmp_path, HOLDING, section=False)
    other = compile_c(HOLD + HOLDING.replace("done", "gone"))
    with Program(path) as first:
        path.unlink()
        file = check(following, first.pid)[str(path)]
        shutil.copy(other, path.with_name("new"))
        path.with_name("new").rename(path)
        with all_followed() as later:  # it finds another file at the path
            assert later.scan(first.pid)
            assert check(later, first.pid)[f"{path} (deleted)"].build_id == file.build_id


def with_library(compile_c: Compiler, tmp_path: Path) -> tuple[Path, Path]:
    library = Path(shutil.copy(compile_c(LIBRARY, "-shared", "-fPIC"), tmp_path / "a.so"))
    source = 'int main(int count, char **names) { dlopen(names[1], RTLD_NOW); hold(); puts("done"); }'
    return compiled(compile_c, tmp_path, source, section=False), library


def test_a_file_that_is_rewritten_in_place_loses_its_number(following: Follower, compile_c: Compiler, tmp_path: Path) -> None:
    path, library = with_library(compile_c, tmp_path)
    with Program(path, library) as program:
        file = check(following, program.pid)[str(library)]
        with library.open("ab") as end:
            end.write(b"more")
        following.check_files()
        assert (file.elf, file.why, file.ready) == (None, REWRITTEN, True)
        assert file.number not in {span.file for span in following.processes.spans(program.pid) or ()}
        assert following.scan(program.pid)
        assert check(following, program.pid)[str(library)].number != file.number


def test_who_maps_a_file_after_it_was_rewritten_has_another_one(following: Follower, compile_c: Compiler, tmp_path: Path) -> None:
    """Nobody looks at the file meanwhile. Who maps it again unchanged has the same one."""
    program, library = with_library(compile_c, tmp_path)
    numbers = []
    for rewritten in (False, False, True):
        if rewritten:
            with library.open("ab") as end:
                end.write(b"more")
        with Program(program, library) as running:
            following.drain()
            numbers.append(check(following, running.pid)[str(library)].number)
    first, same, other = numbers
    assert first == same != other


@pytest.mark.parametrize("options", ["-t tmpfs none", "-t overlay -o lowerdir=lower,upperdir=upper,workdir=work none"])
def test_a_process_in_other_namespaces(following: Follower, compile_c: Compiler, tmp_path: Path, options: str) -> None:
    """As in a container: its files are nowhere in our namespace, and on a file system of layers."""
    inside = tmp_path / "mount"
    for name in ("mount", "lower", "upper", "work"):
        (tmp_path / name).mkdir()
    program = compiled(compile_c, tmp_path, HOLDING, section=False)
    script = f"cd {tmp_path} && mount {options} {inside} && cp {program} {inside}/hidden && exec {inside}/hidden"
    command = ["unshare", "--mount", "--pid", "--fork", "sh", "-c", script]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout
    if process.stdout.readline() != b"here\n":
        process.communicate()
        pytest.skip("no perf events: namespaces are not allowed")
    following.drain()
    pid = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())
    assert (check(following, pid)[f"{inside}/hidden"].why, following.processes.name_of(pid)) == ("", "hidden")
    assert not (inside / "hidden").exists()
    assert process.communicate(b".")[0] == b"done\n"


def test_threads_have_names(following: Follower, compile_c: Compiler, tmp_path: Path) -> None:
    source = """static void *work(void *name) { pthread_setname_np(pthread_self(), name); hold(); return NULL; }
    int main(void) { pthread_t one; pthread_create(&one, NULL, work, "worker"); pthread_join(one, NULL); puts("done"); }"""
    with Program(compiled(compile_c, tmp_path, source, "-pthread", section=False)) as program:
        following.drain()
        threads = [int(folder.name) for folder in Path(f"/proc/{program.pid}/task").iterdir()]
        assert {following.processes.thread_name(program.pid, tid) for tid in threads} == {"program", "worker"}
        with all_followed() as later:
            later.scan(program.pid)
            assert {later.processes.thread_name(program.pid, tid) for tid in threads} == {"program", "worker"}


def test_processors_that_come_and_go(following: Follower, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    online = tmp_path / "online"
    online.write_text(cpu_rings.ONLINE.read_text())
    monkeypatch.setattr(cpu_rings, "ONLINE", online)
    monkeypatch.setattr(follower, "CPUS_INTERVAL", 0)
    following.scan(os.getpid())
    count = len(following.filenos)
    online.write_text("0\n")
    following.drain()
    assert len(following.filenos) == 1
    assert following.processes.spans(os.getpid()) is not None

    def opened(attributes: EventAttributes, pid: int, cpu: int) -> int:
        if cpu == count:  # it is offline again
            raise EventError("no", errno.ENODEV)
        return open_event(attributes, pid, cpu)

    monkeypatch.setattr(follower, "open_event", opened)
    online.write_text(f"0-{count}\n")
    following.drain()
    assert len(following.filenos) == count
    assert following.processes.spans(os.getpid()) is None  # what was done there meanwhile is not known
    assert cpu_rings.parse_cpu_list("0-3,8\n") == {0, 1, 2, 3, 8}


def known_spans(following: Follower) -> ProcessSpans:
    """Those of this process. Others on the machine may fill the small buffers once more, just after they were read."""
    for _ in range(1000):
        if (spans := following.processes.spans(os.getpid())) is not None:
            return spans
        assert following.scan(os.getpid())
    raise AssertionError("records are lost again and again")


def test_records_that_are_lost_make_mappings_unknown_until_they_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "RING_PAGES", 8)
    cpus = os.sched_getaffinity(0)
    with all_followed() as following:
        os.sched_setaffinity(0, {min(cpus)})  # its ring is full then, and is written to again
        known = known_spans(following)
        for _ in range(100):
            os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)
        following.drain()
        os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)  # there is room again, to say how many were lost
        following.drain()
        os.sched_setaffinity(0, cpus)
        assert following.lost > 0
        assert following.processes.spans(os.getpid()) is None
        assert known_spans(following) == known
