"""Finds out with which backend this user can profile on this machine, and what would allow a better one."""

from __future__ import annotations

import errno
import os
import platform
import re
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from sframegen.profile.bpf.kernel_needs import check_kernel
from sframegen.profile.bpf.libbpf import LoadError, create_table, library, read_object
from sframegen.profile.events.attributes import (
    TYPE_SOFTWARE,
    EventAttributes,
    EventError,
    EventFlag,
    command_for_own_events,
    open_event,
    read_paranoid_level,
)
from sframegen.profile.events.names import list_available
from sframegen.profile.this_machine import describe_root, in_user_namespace, list_pids

CAPABILITIES = {"CAP_BPF": 39, "CAP_PERFMON": 38, "CAP_SYS_PTRACE": 19, "CAP_SYS_ADMIN": 21}
NEEDED = "cap_bpf,cap_perfmon,cap_sys_ptrace"


class Backend(Enum):
    """The ways to walk stacks, as messages describe them."""

    KERNEL = "walked in the kernel"
    COPIES = "walked from copies of stacks"
    NONE = "cannot be sampled"


class Fact(NamedTuple):
    """A line of the report. `name`: what was tested. `fine`: True if the profiler can use it. `found`: the result."""

    name: str
    fine: bool
    found: str


class Probe(NamedTuple):
    """The report. `own`, `other`, `all`: the backend for processes of this user, of other users, and for all at once."""

    facts: list[Fact]
    own: Backend
    other: Backend
    all: Backend
    remedies: list[str]  # what would allow a better backend, one line each

    def report_lines(self) -> list[str]:
        lines = [f"{'ok' if fact.fine else 'no'}  {fact.name}: {fact.found}" for fact in self.facts]
        targets = {"this user's processes": self.own, "other users' processes": self.other, "all processes at once": self.all}
        lines += [f"stacks of {target}: {backend.value}" for target, backend in targets.items()]
        return lines + [f"to improve this: {remedy}" for remedy in self.remedies]

    def json_fields(self) -> dict[str, Any]:
        return {
            "facts": [fact._asdict() for fact in self.facts],
            "backends": {"own": self.own.name.lower(), "other": self.other.name.lower(), "all": self.all.name.lower()},
            "remedies": self.remedies,
        }


def probe() -> Probe:
    """Return the backends and facts of this machine, found by cheap trials. Never raises, because a failure is a fact."""
    capabilities = _read_capabilities()
    kernel = _test("kernel", check_kernel, os.uname().release)
    program = _test("kernel program", read_object, "built for this machine")
    runtime = _test("libbpf.so.1", library, "found")
    allowed = _test_bpf() if runtime.fine else Fact("BPF", False, "not tried without libbpf.so.1")
    missing = sorted({"CAP_BPF", "CAP_PERFMON"} - capabilities) if "CAP_SYS_ADMIN" not in capabilities else []
    missing_text = f"; without {' and '.join(missing)}" if missing else ""
    is_machine_wide = allowed.fine or not in_user_namespace()
    scope = "" if is_machine_wide else "; only in this user namespace, not on the machine"
    rights = Fact(
        "capabilities", is_machine_wide and not missing, (", ".join(sorted(capabilities)) or "none") + missing_text + scope
    )
    own = _test_event("perf events of own processes", 0)
    own_kernel = _test_event("perf events of own processes, in the kernel too", 0, kernel=True)
    everyone = _test_event("perf events of all processes", -1, kernel=True)
    number = read_paranoid_level()
    level = Fact("kernel.perf_event_paranoid", own.fine, "unreadable" if number is None else str(number))
    names = ", ".join(event.name for event in list_available())
    events = Fact("events", bool(names), names or "none")
    facts = [kernel, program, runtime, rights, allowed, level, own, own_kernel, everyone, events]
    works_in_kernel = kernel.fine and program.fine and runtime.fine and allowed.fine and everyone.fine and not missing
    may_trace = bool(capabilities & {"CAP_SYS_PTRACE", "CAP_SYS_ADMIN"}) or _may_read_mappings()
    fallback = Backend.COPIES if own.fine else Backend.NONE
    best = Backend.KERNEL if works_in_kernel else fallback
    others = Backend.KERNEL if works_in_kernel and may_trace else Backend.NONE
    is_privileged = rights.fine and may_trace and (allowed.fine or not runtime.fine)
    return Probe(facts, best, others, others, _suggest_remedies(facts, best, is_privileged=is_privileged))


def _test(name: str, check: Any, found: str) -> Fact:  # noqa: ANN401 - any function without arguments
    """Return the fact whether `check` raises no LoadError. `found`: the result if it does not."""
    try:
        check()
    except LoadError as error:
        return Fact(name, False, error.message)
    return Fact(name, True, found)


def _test_bpf() -> Fact:
    """Return the fact whether the smallest BPF map can be made. A container may forbid it despite its capabilities."""
    try:
        os.close(create_table(1))
    except (LoadError, OSError) as error:
        return Fact("BPF", False, error.message if isinstance(error, LoadError) else os.strerror(error.errno or errno.EPERM))
    return Fact("BPF", True, "allowed")


def _test_event(name: str, pid: int, *, kernel: bool = False) -> Fact:
    """Return the fact whether a perf event can be opened. `pid`: 0 for this process, -1 for all. `kernel`: with kernel code."""
    flags = EventFlag.DISABLED | EventFlag.EXCLUDE_HYPERVISOR | EventFlag.EXCLUDE_KERNEL * (not kernel)
    try:
        os.close(open_event(EventAttributes(TYPE_SOFTWARE, flags=flags), pid, 0 if pid < 0 else -1))
    except EventError as error:
        return Fact(name, False, error.message)
    return Fact(name, True, "allowed")


def _may_read_mappings() -> bool:
    """Return True if /proc shows the mappings of another user's process, as on newer kernels with CAP_PERFMON."""
    for pid in list_pids():
        try:
            if Path(f"/proc/{pid}").stat().st_uid != os.geteuid() and Path(f"/proc/{pid}/maps").read_bytes():
                return True
        except OSError:  # it has ended, or is protected more than others
            continue
    return False


def _read_capabilities() -> set[str]:
    """Return the names of this process's effective capabilities, as far as a profile needs them."""
    try:
        match = re.search(r"^CapEff:\s*([0-9a-f]+)$", Path("/proc/self/status").read_text(), re.MULTILINE)
    except OSError:
        return set()
    bits = int(match[1], 16) if match else 0
    return {name for name, bit in CAPABILITIES.items() if bits >> bit & 1}


def _suggest_remedies(facts: list[Fact], best: Backend, *, is_privileged: bool) -> list[str]:
    """Return a line for each way to get a better backend, judging by the facts."""
    fine = {fact.name: fact.fine for fact in facts}
    remedies = []
    if not fine["libbpf.so.1"]:
        remedies.append("install libbpf 1 (the package libbpf1 of Debian, libbpf of Fedora)")
    if not fine["kernel program"]:
        remedies.append(f"install clang, then sframegen again from its sources: it has no kernel program for {platform.machine()}")
    if fine["kernel"] and not is_privileged:
        remedies.append(_suggest_privileges(has_capabilities=fine["capabilities"]))
    if best is Backend.NONE:
        if command := command_for_own_events():  # else a container or a policy forbids them
            remedies.append(f"{command} allows perf events of own processes")
    elif not fine["perf events of own processes, in the kernel too"]:
        remedies.append("for kernel frames: sysctl kernel.perf_event_paranoid=1")
    return remedies


def _suggest_privileges(*, has_capabilities: bool) -> str:
    """Return a line on how to get the rights that this process lacks."""
    if in_user_namespace():
        return f"run as {describe_root()}"
    if os.geteuid() != 0:
        return f"run as root, or in a virtual environment with a copy of Python, after `setcap {NEEDED}+ep` of that copy"
    if has_capabilities:
        return "allow this process to use BPF: a container or a policy forbids it even for root"
    return f"give this root the capabilities {NEEDED}: a container withholds them"
