"""/proc/PID -> the executable mappings of a process as records, and its name."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from sframegen.profile.events.event_records import MmapRecord
from sframegen.profile.following.mapped_file import key_of_row
from sframegen.stack.live.process import parse_mappings

VSYSCALL = "[vsyscall]"


class MappingsNow(NamedTuple):
    mappings: list[MmapRecord]
    name: str


def mappings_now(pid: int) -> MappingsNow | None:
    """Return None for a process that has no memory: it has ended, or is a thread of the kernel."""
    try:
        folder = Path(f"/proc/{pid}")
        rows = parse_mappings((folder / "maps").read_bytes()).rows
        name = (folder / "comm").read_text(errors="surrogateescape").removesuffix("\n")
    except OSError:
        return None
    if not rows:
        return None
    records = []
    for row in rows:
        if row.executable and row.path != VSYSCALL:
            key = key_of_row(row.device, row.inode)
            record = MmapRecord(pid, pid, row.start, row.end, row.offset, executable=True, path=row.path)
            records.append(record._replace(major=key.major, minor=key.minor, inode=key.inode))
    return MappingsNow(records, name)
