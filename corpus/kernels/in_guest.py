"""The first process of a virtual machine: tries the kernel program on its kernel, prints a line of JSON, and powers off.

Runs in the guest, where /init starts it, with nothing but Python's library, sframegen and what that needs.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import struct
import subprocess
import sys
import traceback
from contextlib import ExitStack
from pathlib import Path
from typing import Any

PREFIX = "RESULT "
WORKLOADS = ("recursion", "signal", "time")
PROGRAM = "/known_stacks"
SPIN = "spin"
SHORT = "the copy of the stack ends before the stack"
YIELDING = "import os, sys; os.nice(19); os.execv(sys.argv[1], sys.argv[1:])"
FIRST_SECONDS, SECONDS = (10, 90), 8  # the first run makes tables, and keeps them for the next; a longer one if they were late
VERIFIED_AT, INFO_BYTES = 216, 232  # in struct bpf_prog_info: u32 verified_insns, since 5.16
POWER_OFF = 0x4321FEDC
MOUNTS = (("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev"))


def mount_all() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    for kind, place in MOUNTS:
        if libc.mount(kind.encode(), place.encode(), kind.encode(), 0, None):
            raise OSError(ctypes.get_errno(), f"mount {place}: {os.strerror(ctypes.get_errno())}")


def power_off() -> None:
    os.sync()
    ctypes.CDLL(None).reboot(POWER_OFF)


def load() -> dict[str, Any]:
    """Load the kernel program alone. Raises LoadError."""
    from sframegen.profile.bpf.kernel_needs import has_tracepoint  # noqa: PLC0415 - after mount_all
    from sframegen.profile.bpf.kernel_walker import AREA_TRACEPOINT, KernelWalker  # noqa: PLC0415
    from sframegen.profile.bpf.libbpf import library  # noqa: PLC0415
    from sframegen.profile.sampling_plan import ProfilePlan  # noqa: PLC0415

    walker = KernelWalker(ProfilePlan())
    try:
        functions = library().functions
        info, size = ctypes.create_string_buffer(INFO_BYTES), ctypes.c_uint32(INFO_BYTES)
        functions.bpf_obj_get_info_by_fd(walker.program_fd, info, ctypes.byref(size))
        verified = struct.unpack_from("=I", info.raw, VERIFIED_AT)[0]
        return {"verified": verified, "tracepoint": has_tracepoint(AREA_TRACEPOINT)}
    finally:
        walker.close()


def sframegen(*arguments: str) -> dict[str, Any]:
    made = subprocess.run([sys.executable, "-m", "sframegen", *arguments], capture_output=True, text=True, check=False)
    if made.returncode:
        raise RuntimeError(f"sframegen {' '.join(arguments)}: {made.stderr.strip()}")
    answer: dict[str, Any] = json.loads(made.stdout)
    return answer


def callers(frames: list[dict[str, Any]]) -> list[tuple[str, int]]:
    """Return file and address of the frames further out than `spin`, the innermost first; none without a `spin`."""
    last = max((at for at, frame in enumerate(frames) if frame["function"] == SPIN), default=len(frames))
    return [(frame.get("path") or frame["object"], frame["address"]) for frame in frames[last + 1 :]]


def same(sampled: list[tuple[str, int]], stopped: list[tuple[str, int]]) -> bool:
    """True if both stacks are one: `profile` prints the address of the call, `stack` the one of return, which may follow it."""
    return (
        bool(stopped)
        and len(sampled) == len(stopped)
        and all(
            Path(path).name == Path(other).name and other_address - address in (0, 1)
            for (path, address), (other, other_address) in zip(sampled, stopped, strict=True)
        )
    )


def compared(profile: dict[str, Any], pid: int, stack: dict[str, Any]) -> dict[str, Any]:
    """Count a process's samples: all; with a complete walk; equal to what `sframegen stack` saw; from a copy that was too short.

    The latter have the inner frames of the same stack, and the others are missing.
    """
    [thread] = stack["threads"]
    stopped = callers(thread["frames"])
    counts = dict.fromkeys(("samples", "complete", "equal", "short", "in_vdso"), 0)
    differs = ""
    for one in profile["stacks"]:
        if one["pid"] != pid:
            continue
        frames = [profile["frames"][number] for number in reversed(one["frames"])]
        outer = callers([frame for frame in frames if frame["kind"] != "missing"])
        equal = one["complete"] and same(outer, stopped)
        short = one["end"] == SHORT and same(outer, stopped[: len(outer)])
        counts["samples"] += one["samples"]
        counts["complete"] += one["samples"] * one["complete"]
        counts["equal"] += one["samples"] * equal
        counts["short"] += one["samples"] * short
        counts["in_vdso"] += one["samples"] * (equal and frames[0]["object"] == "[vdso]")
        if not equal and not short:
            differs = f"{one['end']}: {[(frame['function'], frame['address']) for frame in frames]}"
    return {**counts, "frames": len(thread["frames"]), "differs": differs}


def profiled(seconds: int, pids: list[int]) -> dict[str, Any]:
    options = ("--backend", "kernel", "--json", "--by", "pid", "--duration", str(seconds))
    return sframegen("profile", *options, *map(str, pids))


def sampled() -> dict[str, Any]:
    with ExitStack() as running:
        pids = {}
        for workload in WORKLOADS:
            command = [sys.executable, "-c", YIELDING, PROGRAM, workload]  # what samples is to run first
            process = running.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE))
            running.callback(process.kill)
            assert process.stdout
            process.stdout.readline()
            pids[workload] = process.pid
        for seconds in FIRST_SECONDS:
            if not profiled(seconds, list(pids.values()))["lost"]:
                break
        profile = profiled(SECONDS, list(pids.values()))
        stacks = {pid: sframegen("stack", "--convert", "--json", str(pid)) for pid in pids.values()}
        return {
            "workloads": {workload: compared(profile, pid, stacks[pid]) for workload, pid in pids.items()},
            "lost": profile["lost"],
            "notes": profile["notes"],
        }


def tried() -> dict[str, Any]:
    found: dict[str, Any] = {"release": platform.release(), "version": platform.version(), "machine": platform.machine()}
    from sframegen.profile.bpf.libbpf import LoadError  # noqa: PLC0415 - after mount_all

    try:
        return found | load() | sampled()
    except LoadError as error:
        return found | {"refused": error.message}


def main() -> None:
    try:
        mount_all()
        found = tried()
    except BaseException:  # noqa: BLE001 - a first process that ends is a panic of the kernel
        found = {"failed": traceback.format_exc()}
    print(f"\n{PREFIX}{json.dumps(found)}", flush=True)
    power_off()


if __name__ == "__main__":
    main()
