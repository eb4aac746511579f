"""Reads /proc: the threads of a process, their status, and why a thread may not be traced."""

from __future__ import annotations

import os
import time

GONE = "it has ended"
OURSELVES = "a process cannot trace itself"
EXECUTES = "it is just executing another program; try again"
MAX_TRIES, RETRY_INTERVAL = 500, 0.002  # the interval in seconds
FLAGS_FIELD = 6  # index of the field in /proc/TID/stat, counted after the name
PF_KTHREAD = 0x00200000
CHUNK_SIZE = 1 << 16  # bytes read at a time


def proc_contents(path: str) -> bytes:
    """Return the contents of a /proc file. Raises OSError. It avoids Python's `open`, which takes three times as long."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return b"".join(iter(lambda: os.read(descriptor, CHUNK_SIZE), b""))
    finally:
        os.close(descriptor)


def threads_of(pid: int) -> list[int]:
    """Return the thread ids of a process, the first thread first; empty if the process has ended."""
    for _ in range(3):  # retried because the folder is gone for a moment while another thread takes over the first one's id
        try:
            tids = [int(name) for name in os.listdir(f"/proc/{pid}/task")]  # noqa: PTH208 - pathlib takes longer
            break
        except OSError:
            tids = []
    return sorted(tids, key=lambda tid: (tid != pid, tid))


def status_fields_of(tid: int) -> dict[str, str]:
    """Return the fields of /proc/TID/status by name; empty if the thread has ended."""
    try:
        lines = proc_contents(f"/proc/{tid}/status").decode(errors="replace").splitlines()
    except OSError:
        return {}
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def _is_kernel_thread(tid: int) -> bool:
    try:
        _, _, numbers = proc_contents(f"/proc/{tid}/stat").decode(errors="replace").rpartition(") ")
    except OSError:
        return False
    return bool(int(numbers.split()[FLAGS_FIELD]) & PF_KTHREAD)


def is_alive(tid: int) -> bool:
    """Return True unless the thread has ended; one that has ended but is not reaped yet counts as ended."""
    return status_fields_of(tid).get("State", "Z")[0] not in "ZX"


def _may_be_traced(tid: int) -> bool:
    """Return False if the kernel does not let us open the thread's memory, which needs the same permission as tracing.

    During execve(), which can take long on a busy machine, only privileged users may open the new memory.
    """
    is_ours = set(status_fields_of(tid).get("Uid", "").split()) == {str(os.geteuid())}
    for _ in range(MAX_TRIES if is_ours else 1):
        try:
            os.close(os.open(f"/proc/{tid}/mem", os.O_RDONLY | os.O_CLOEXEC))
        except PermissionError:
            time.sleep(RETRY_INTERVAL)
        except OSError:  # the thread has no memory for a moment, between two programs
            return True
        else:
            return True
    return False


def explain_refusal(tid: int) -> str:
    """Return why the kernel does not let us trace a thread, and what the user can do about it."""
    fields = status_fields_of(tid)
    if fields.get("State", "Z")[0] in "ZX":
        return GONE
    if "VmSize" not in fields:  # it has no memory: kernel threads never have any, and a process that ends loses it first
        return "it is a thread of the kernel" if _is_kernel_thread(tid) else GONE
    if os.access(f"/proc/self/task/{tid}", os.F_OK):
        return OURSELVES
    tracer = fields.get("TracerPid", "0").strip()
    if tracer not in ("0", str(os.getpid())):
        return f"process {tracer} already traces it"
    if _may_be_traced(tid):
        return EXECUTES
    try:
        scope = proc_contents("/proc/sys/kernel/yama/ptrace_scope").decode().strip()
    except OSError:
        scope = "0"
    if scope != "0":
        return f"not permitted: kernel.yama.ptrace_scope is {scope}; run as root, or `sysctl kernel.yama.ptrace_scope=0`"
    return "not permitted: it belongs to another user or has privileges that you lack; run as root"
