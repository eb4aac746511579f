"""Tests of the profiler need what the kernel or a container may forbid: those are skipped, with the reason. CI allows this skip."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path
from struct import pack

import pytest

from sframegen.profile.bpf.kernel_needs import check_namespace
from sframegen.profile.bpf.libbpf import LoadError
from sframegen.profile.machines import PERF_EVENT_OPEN

BPF = {"x86_64": 321, "aarch64": 280}
BPF_MAP_CREATE, SMALL_ARRAY = 0, pack("=IIII", 2, 4, 8, 1)  # an array of one 8-byte element
SOFTWARE, CPU_CLOCK, USER_ONLY = 1, 0, 1 << 5  # exclude_kernel


def _system_call(numbers: dict[str, int], *arguments: object) -> int:
    """Return a file descriptor, or -errno."""
    number = numbers.get(os.uname().machine)
    if number is None:
        return -38  # ENOSYS
    result = ctypes.CDLL(None, use_errno=True).syscall(number, *arguments)
    return int(result) if result >= 0 else -ctypes.get_errno()


@cache
def why_no_bpf() -> str:
    """Return why programs cannot be loaded here, or an empty text. CI allows those reasons that begin with `no BPF`."""
    if not Path("/sys/kernel/btf/vmlinux").exists():
        return "no BPF: the kernel has no type information"
    try:
        check_namespace()
    except LoadError as error:
        return f"no BPF: {error}"
    attributes = ctypes.create_string_buffer(SMALL_ARRAY, 128)
    fd = _system_call(BPF, BPF_MAP_CREATE, attributes, len(attributes))
    if fd < 0:
        return f"no BPF: {os.strerror(-fd)}"
    os.close(fd)
    try:
        ctypes.CDLL("libbpf.so.1")
    except OSError:
        return "no libbpf.so.1"
    return ""


@cache
def why_no_perf_events() -> str:
    attributes = ctypes.create_string_buffer(pack("=IIQQQQQ", SOFTWARE, 112, CPU_CLOCK, 1 << 20, 0, 0, USER_ONLY), 112)
    fd = _system_call(PERF_EVENT_OPEN, attributes, 0, -1, -1, 8)
    if fd < 0:
        return f"no perf events: {os.strerror(-fd)}"
    os.close(fd)
    return ""


needs_perf_events = pytest.mark.skipif(bool(why_no_perf_events()), reason=why_no_perf_events() or "perf events work")
needs_bpf = pytest.mark.skipif(
    bool(why_no_bpf() or why_no_perf_events()), reason=why_no_bpf() or why_no_perf_events() or "BPF works"
)
