"""What a profiler holds in the kernel, and what is left of it when it has ended."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from sframegen.stack.live.process import parse_mappings

KINDS = {"prog_id": "prog", "map_id": "map", "link_id": "link"}
ARRAY_OF_MAPS = "12"
PATIENCE = 20.0  # seconds: the kernel frees maps some time after their last user has ended
POLL = 0.05
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - looked at only


class Held(NamedTuple):
    """`objects`: (kind, id) of programs, maps and links. Bytes are those of the maps. `children`: pids, with theirs."""

    objects: frozenset[tuple[str, int]]
    own_bytes: int
    table_bytes: int
    events: int
    children: tuple[int, ...]


def held_by(pid: int) -> Held:
    """Return what a process holds now. Stop it before, if it must be exact. Raises OSError if it has ended."""
    objects: dict[tuple[str, int], int] = {}
    outer, events = 0, 0
    for descriptor in list(Path(f"/proc/{pid}/fd").iterdir()):
        try:
            events += "perf_event" in str(descriptor.readlink())
            lines = Path(f"/proc/{pid}/fdinfo/{descriptor.name}").read_text().splitlines()
        except OSError:  # it was closed
            continue
        fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        for name, kind in KINDS.items():
            if name in fields:
                objects[kind, int(fields[name])] = int(fields.get("memlock", 0)) if kind == "map" else 0
        if fields.get("map_type") == ARRAY_OF_MAPS:
            outer = int(fields["map_id"])
    inner = [_number(entry["value"]) for entry in bpftool("map", "dump", "id", str(outer)) if isinstance(entry.get("value"), list)]
    sizes = {entry["id"]: int(entry["bytes_memlock"]) for entry in bpftool("map", "show")} if inner else {}
    tables = frozenset(("map", number) for number in inner)
    return Held(
        frozenset(objects) | tables,
        sum(objects.values()),
        sum(sizes.get(number, 0) for number in inner),
        events,
        tuple(descendants(pid)),
    )


def programs_of(pid: int) -> list[int]:
    """Return the ids of the programs in the kernel that a process holds."""
    found = []
    with suppress(OSError):
        for info in Path(f"/proc/{pid}/fdinfo").iterdir():
            with suppress(OSError):
                found += [int(line.split()[1]) for line in info.read_text().splitlines() if line.startswith("prog_id:")]
    return found


def has_events(pid: int) -> bool:
    """Return whether a process samples: False, too, if it has ended."""
    for descriptor in Path(f"/proc/{pid}/fd").glob("*"):
        with suppress(OSError):  # it was closed
            if "perf_event" in str(descriptor.readlink()):
                return True
    return False


def remaining(held: Held, *, patience: float = PATIENCE) -> list[str]:
    """Wait for all of it to go; return what does not."""
    deadline = time.monotonic() + patience
    while True:
        left = [f"{kind} {number}" for kind, number in sorted(held.objects & _all_objects())]
        left += [f"process {pid}" for pid in held.children if Path(f"/proc/{pid}").exists()]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(POLL)


def temporary_files(own: Path) -> set[str]:
    """Return the names of files that a profiler could leave, and that no process has mapped, as others that run have theirs.

    `own`: its TMPDIR, in which all are its files.
    """
    folders = (SHARED_MEMORY, Path.home() / ".cache/sframegen/profile")
    ours = [path for folder in folders if folder.is_dir() for path in folder.iterdir() if _is_ours(path.name)]
    mapped = _mapped()
    found = {str(path) for path in own.iterdir()}
    for path in ours:
        with suppress(FileNotFoundError):
            if path.parent != SHARED_MEMORY or path.stat().st_ino not in mapped:
                found.add(str(path))
    return found


def _mapped() -> set[int]:
    """The inodes of files in shared memory that processes have mapped: a semaphore's has another name there."""
    found: set[int] = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):
            found.update(row.inode for row in parse_mappings(maps.read_bytes()).rows if row.path.startswith(f"{SHARED_MEMORY}/"))
    return found


def descendants(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            found += [child, *descendants(child)]
    return found


def _is_ours(name: str) -> bool:
    return name.startswith((".sframegen", "sframegen", "sem.mp-", "psm_", "pymp-", "sem."))


def _all_objects() -> set[tuple[str, int]]:
    return {(kind, int(entry["id"])) for kind in KINDS.values() for entry in bpftool(kind, "show")}


def _number(value: list[str]) -> int:
    """Return the number of a value, which bpftool prints as bytes."""
    return int.from_bytes(bytes(int(byte, 16) for byte in value), sys.byteorder)


def bpftool(*arguments: str) -> list[dict[str, Any]]:
    run = subprocess.run(["bpftool", "-j", *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    found = json.loads(run.stdout or b"[]")
    return found if isinstance(found, list) else [found]
