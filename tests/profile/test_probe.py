"""What a machine can do, as data and as lines: with what it has, and with each part taken away."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from sframegen.profile import probe as module
from sframegen.profile import this_machine
from sframegen.profile.bpf.libbpf import LoadError
from sframegen.profile.events.attributes import EventAttributes, EventError
from sframegen.profile.probe import CAPABILITIES, Backend, probe
from sframegen.profile.this_machine import RAISED_PRIORITY, raised_priority

fails = Mock(side_effect=LoadError("it is not there"))
refused = Mock(side_effect=PermissionError(errno.EPERM, "Operation not permitted"))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("check_kernel", "read_object", "library"):
        monkeypatch.setattr(module, name, lambda: None)
    monkeypatch.setattr(module, "create_table", lambda _: os.open("/dev/null", 0))
    monkeypatch.setattr(module, "open_event", lambda *_: os.open("/dev/null", 0))
    monkeypatch.setattr(module, "_read_capabilities", lambda: set(CAPABILITIES))
    monkeypatch.setattr(module, "read_paranoid_level", lambda: 2)
    monkeypatch.setattr(module, "in_user_namespace", lambda: False)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    return monkeypatch


def test_all_is_there(machine: pytest.MonkeyPatch) -> None:
    assert machine
    found = probe()
    assert (found.own, found.other, found.all, found.remedies) == (Backend.KERNEL, Backend.KERNEL, Backend.KERNEL, [])
    assert all(fact.fine for fact in found.facts)


@pytest.mark.parametrize(
    ("part", "remedy"), [("library", "install libbpf"), ("read_object", "install clang"), ("check_kernel", None)]
)
def test_without_a_part_of_the_kernel_program_copies_are_taken(part: str, remedy: str | None, machine: pytest.MonkeyPatch) -> None:
    machine.setattr(module, part, fails)
    found = probe()
    assert (found.own, found.other, found.all) == (Backend.COPIES, Backend.NONE, Backend.NONE)
    assert next(fact.found for fact in found.facts if not fact.fine) == "it is not there"
    assert remedy is None or any(remedy in line for line in found.remedies)


def test_without_capabilities_it_says_which(machine: pytest.MonkeyPatch) -> None:
    machine.setattr(module, "_read_capabilities", set)

    def allowed(attributes: EventAttributes, pid: int, _cpu: int) -> int:
        if pid < 0 or not attributes.flags & 1 << 5:
            raise EventError("not allowed", 13)
        return os.open("/dev/null", 0)

    machine.setattr(module, "open_event", allowed)
    found = probe()
    assert (found.own, found.other) == (Backend.COPIES, Backend.NONE)
    assert any("setcap cap_bpf,cap_perfmon,cap_sys_ptrace+ep" in line for line in found.remedies)
    assert any("kernel.perf_event_paranoid=1" in line for line in found.remedies)


def test_other_users_need_one_capability_more(machine: pytest.MonkeyPatch) -> None:
    machine.setattr(module, "_read_capabilities", lambda: {"CAP_BPF", "CAP_PERFMON"})
    machine.setattr(module, "_may_read_mappings", lambda: False)
    found = probe()
    assert (found.own, found.other, found.all) == (Backend.KERNEL, Backend.NONE, Backend.NONE)
    machine.setattr(module, "_may_read_mappings", lambda: True)
    assert probe().other is Backend.KERNEL


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_mappings_of_others_are_those_that_the_kernel_shows() -> None:
    child = os.fork()
    if child == 0:
        try:
            os.setresuid(65534, 65534, 65534)  # without capabilities from then on
            os._exit(module._may_read_mappings())
        finally:
            os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_one_protected_process_does_not_hide_that_others_are_shown(machine: pytest.MonkeyPatch) -> None:
    def read_bytes(path: Path) -> bytes:
        if path.parts[2] == "1":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return b"mappings"

    machine.setattr(os, "geteuid", lambda: -1)
    machine.setattr(Path, "read_bytes", read_bytes)
    for pids, shown in (([1], False), ([1, os.getpid()], True)):
        machine.setattr(module, "list_pids", lambda pids=pids: pids)
        assert module._may_read_mappings() is shown


def test_where_nothing_is_allowed_it_says_so(machine: pytest.MonkeyPatch) -> None:
    machine.setattr(module, "open_event", Mock(side_effect=EventError("not allowed", 13)))
    for level, helps in ((3, True), (2, False)):
        machine.setattr("sframegen.profile.events.attributes.read_paranoid_level", lambda level=level: level)
        found = probe()
        assert found.own is Backend.NONE
        assert any("kernel.perf_event_paranoid=2" in line for line in found.remedies) is helps
        assert not any("kernel.perf_event_paranoid=1" in line for line in found.remedies)


def test_this_machine_is_looked_at_without_an_error() -> None:
    found = probe()
    assert json.loads(json.dumps(found.json_fields()))["backends"].keys() == {"own", "other", "all"}
    assert all("\n" not in line for line in found.report_lines())
    assert len(found.report_lines()) == len(found.facts) + 3 + len(found.remedies)


def test_root_of_a_user_namespace_is_not_root_of_the_machine(machine: pytest.MonkeyPatch) -> None:
    machine.setattr(module, "create_table", refused)
    machine.setattr(os, "geteuid", lambda: 0)
    machine.setattr(module, "in_user_namespace", lambda: True)
    machine.setattr(this_machine, "in_user_namespace", lambda: True)
    found = probe()
    assert found.remedies == ["run as root of the machine, outside of this user namespace"]
    [capabilities] = [fact for fact in found.facts if fact.name == "capabilities"]
    assert (capabilities.fine, capabilities.found.partition("; ")[2]) == (False, "only in this user namespace, not on the machine")


def test_root_is_told_what_is_missing_and_not_to_be_root(machine: pytest.MonkeyPatch) -> None:
    machine.setattr(os, "geteuid", lambda: 0)
    for name, missing, remedy in (
        ("create_table", refused, "allow this process to use BPF: a container or a policy forbids it"),
        ("_read_capabilities", set, "give this root the capabilities cap_bpf,cap_perfmon,cap_sys_ptrace"),
        ("library", fails, "install libbpf 1 (the package libbpf1 of Debian"),
    ):
        with machine.context() as alone:
            alone.setattr(module, name, missing)
            [line] = probe().remedies
        assert line.startswith(remedy)


def test_a_user_namespace_is_seen() -> None:
    script = "from sframegen.profile.this_machine import in_user_namespace; print(in_user_namespace())"
    command = ["unshare", "--user", "--map-root-user", sys.executable, "-P", "-c", script]
    if shutil.which("unshare") is None or subprocess.run([*command[:3], "true"], check=False, capture_output=True).returncode:
        pytest.skip("no user namespace can be made here")
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "True\n"


@pytest.mark.parametrize(("own", "within"), [(0, RAISED_PRIORITY), (5, 5), (-3, -3)])
def test_it_goes_first_if_nobody_has_chosen_a_priority(monkeypatch: pytest.MonkeyPatch, own: int, within: int) -> None:
    calls = [own]  # the priorities that it was given
    monkeypatch.setattr(os, "getpriority", lambda _which, _who: calls[-1])
    monkeypatch.setattr(os, "setpriority", lambda _which, _who, priority: calls.append(priority))
    with raised_priority():
        assert calls[-1] == within
    assert calls[-1] == own


def test_without_permission_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "setpriority", refused)
    with raised_priority():
        pass
