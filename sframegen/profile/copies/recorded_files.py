"""The files that a recording names: found here with their path and build-id, and used only if they are the same."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from cfi.errors import FormatError
from sframegen.elf.file import ElfFile
from sframegen.elf.notes import build_id_of
from sframegen.profile.following.files import TracedFile
from sframegen.profile.following.mapped_code import Mapped, spans_in
from sframegen.profile.limits import MAX_FILES
from sframegen.stack.live.open_aside import open_elf_aside
from sframegen.stack.live.process import parse_mappings
from sframegen.stack.names.file_names import DEBUG_FILES
from sframegen.stack.snapshot.mappings import MAX_VDSO, VDSO

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sframegen.profile.events.event_records import MmapRecord
    from sframegen.profile.following.files import CodeSpan


class RecordedFiles:
    """Resolves the mappings of a recording. `notes`: one line for each file that is missing or another one."""

    def __init__(self, build_ids: Mapping[str, bytes], recorded_at: float) -> None:
        """`build_ids`: by path. `recorded_at`: a file changed later is not used, if its build-id was not recorded."""
        self.by_number: dict[int, TracedFile] = {}
        self.notes: list[str] = []
        self._build_ids = build_ids
        self._recorded_at = recorded_at
        self._known: dict[tuple[str, bytes], TracedFile | None] = {}

    def spans_of(self, record: MmapRecord, _time: int) -> list[CodeSpan]:
        """The spans of a mapping; one without a file for code that is in none."""
        traced = self._traced(record.path, record.build_id or self._build_ids.get(record.path, b""))
        return spans_in(traced, Mapped(record.start, record.end, 0 if record.path == VDSO else record.offset))

    def _traced(self, path: str, build_id: bytes) -> TracedFile | None:
        if not (path.startswith("/") and not path.startswith("//")) and path != VDSO:
            return None
        key = (path, build_id)
        if key not in self._known:
            self._known[key] = self._find(path, build_id) if len(self.by_number) < MAX_FILES else None
        return self._known[key]

    def _find(self, path: str, build_id: bytes) -> TracedFile:
        traced = TracedFile(len(self.by_number) + 1, path, build_id=build_id)
        self.by_number[traced.number] = traced
        why = ""
        for name, elf in _candidates(path, build_id):
            if isinstance(elf, str):
                why = why or elf
                continue
            try:
                found = build_id_of(elf) or b""
            except FormatError:
                found = b""
            if build_id and found != build_id:
                why = "another file than in the recording: its build-id differs"
            elif not build_id and elf.status and elf.status.st_mtime > self._recorded_at:
                why = "changed after the recording, which has no build-id of it"
            elif not build_id and name == VDSO:
                why = "the recording has no build-id of it"
            else:
                elf.name = path
                traced.elf, traced.build_id = elf, found
                return traced
        traced.why, traced.ready = why, True
        self.notes.append(f"{path}: {why}")
        return traced


def _candidates(path: str, build_id: bytes) -> Iterator[tuple[str, ElfFile | str]]:
    """(name, file or why not): the file itself, then where perf and debuggers keep files by build-id."""
    if path == VDSO:
        yield path, _own_vdso()
    else:
        yield path, _opened(Path(path))
    if build_id:
        text = build_id.hex()
        kept = Path(os.path.expanduser("~/.debug/.build-id")) / text[:2] / text[2:]  # noqa: PTH111 - raises nothing without a home
        for place in (kept / "elf", kept / "vdso", kept, Path(DEBUG_FILES) / text[:2] / f"{text[2:]}.debug"):
            yield str(place), _opened(place)


def _opened(path: Path) -> ElfFile | str:
    try:
        return open_elf_aside(path.parent, str(path))[0]
    except FormatError as error:
        return error.message
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error)


def _own_vdso() -> ElfFile | str:
    """The vDSO of this machine: the kernel of the recording may have been the same."""
    try:
        row = next(row for row in parse_mappings(Path("/proc/self/maps").read_bytes()) if row.path == VDSO)
        with Path("/proc/self/mem").open("rb", buffering=0) as memory:
            memory.seek(row.start)
            return ElfFile(memoryview(memory.read(min(row.end - row.start, MAX_VDSO))), VDSO)
    except (OSError, StopIteration, FormatError):
        return "this machine has none"
