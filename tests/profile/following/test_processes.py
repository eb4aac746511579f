"""Records -> spans, against a plain model; and what a process's life means for them."""

from __future__ import annotations

import os
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sframegen.profile.events.event_records import CommRecord, MmapRecord, TaskRecord
from sframegen.profile.following import processes as module
from sframegen.profile.following.files import CodeSpan
from sframegen.profile.following.processes import MAX_DELAY, VERSION_LIFETIME, Processes, replace_spans
from tests.support.loops import for_each

if TYPE_CHECKING:
    from collections.abc import Iterable

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
