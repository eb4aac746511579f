"""Names of events, and what the kernel's refusals become."""

from __future__ import annotations

import errno
import os
import re
from typing import TYPE_CHECKING

import pytest

from sframegen.profile.events import attributes, names
from sframegen.profile.events.attributes import EventAttributes, EventError, EventFlag, open_event
from sframegen.profile.events.names import BY_NAME, EVENTS, find_event

if TYPE_CHECKING:
    from pathlib import Path


def test_only_events_of_the_machine_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(asked: EventAttributes, _pid: int, _cpu: int) -> int:
        if any((asked.type, asked.config) == (BY_NAME[name].type, BY_NAME[name].config) for name in ("cpu-clock", "page-faults")):
            return os.open("/dev/null", os.O_RDONLY)
        raise EventError("no", errno.ENOENT)

    monkeypatch.setattr(names, "open_event", opened)
    assert find_event("faults") is BY_NAME["page-faults"]
    with pytest.raises(EventError, match=r"^this machine has no cycles events; choose one of cpu-clock, page-faults$"):
        find_event("cycles")
    with pytest.raises(EventError, match=r"^cpuclock: unknown event; choose one of cpu-clock, page-faults$"):
        find_event("cpuclock")


def test_no_two_events_are_the_same() -> None:
    assert len({(event.type, event.config) for event in EVENTS}) == len(EVENTS)
    assert len(BY_NAME) == sum(1 + len(event.aliases) for event in EVENTS)


def test_refusals_are_in_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(attributes, "_LIBC", type("Library", (), {"syscall": staticmethod(lambda *_: -1)}))
    for name in ("PARANOID", "MAX_RATE"):
        monkeypatch.setattr(attributes, name, tmp_path / "level")
    own, other = 7, 8
    monkeypatch.setattr(attributes, "_is_own_process", lambda pid: pid == own)
    wrong = {}
    for level, number, pid, flags, message in (
        (3, errno.EACCES, -1, 0, "^cycles events of all processes need root, or CAP_BPF and CAP_PERFMON$"),
        (3, errno.EPERM, own, 0, r"^cycles events of your own processes .* of 1 or less \(it is 3\)$"),
        (3, errno.EACCES, own, EventFlag.EXCLUDE_KERNEL, r"^cycles events of your own processes .* of 2 or less"),
        (3, errno.EACCES, other, 0, "cycles events of other users' processes need root or CAP_PERFMON$"),
        (3, errno.EMFILE, -1, 0, "ulimit -n"),
        (3, errno.ENOENT, -1, 0, "^this machine has no cycles events$"),
        (3, errno.EOPNOTSUPP, -1, 0, "^this machine has no cycles events$"),
        (3, errno.ESRCH, 7, 0, "^process 7: no such process$"),
        (3, errno.ENOSYS, 7, 0, "^this kernel has no perf events$"),
        (3, errno.EINVAL, 7, 0, "refuses cycles events: Invalid argument$"),
        (3, errno.EINVAL, 7, EventFlag.FREQUENCY, "^99,999 samples per second are more than .*max_sample_rate allows: 3$"),
        (1, errno.EACCES, 7, 0, "^process 7: cycles events of other users' processes need root or CAP_PERFMON$"),
        (1, errno.EACCES, 0, 0, "^cycles events are not allowed, though .* is 1: a container or a policy forbids them$"),
    ):
        (tmp_path / "level").write_text(f"{level}\n")
        monkeypatch.setattr("ctypes.get_errno", lambda number=number: number)
        with pytest.raises(EventError) as caught:
            open_event(EventAttributes(0, flags=flags, period=99_999), pid, -1, name="cycles")
        if caught.value.number != number or not re.search(message, caught.value.message):
            wrong[message] = caught.value.message
    assert wrong == {}
