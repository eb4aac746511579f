"""The notes of a core file: threads with their registers, the program, the mapped files."""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from sframegen.elf.notes import notes_of
from sframegen.elf.records import MARKS
from sframegen.stack.abi.machines import conventions_of
from sframegen.stack.abi.registers import NT_PRFPREG, NT_PRSTATUS

if TYPE_CHECKING:
    from cfi.errors import FormatError
    from sframegen.elf.file import ElfFile
    from sframegen.elf.notes import Note
    from sframegen.format.abi import Abi

NT_PRPSINFO, NT_AUXV, NT_FILE = 3, 6, 0x46494C45
CORE, LINUX = b"CORE\0", b"LINUX\0"
AT_ENTRY, AT_BASE, AT_EXECFN, AT_PHDR, AT_SYSINFO_EHDR = 9, 7, 31, 3, 33

PR_PID, PR_REG = 32, 112  # in struct elf_prstatus; the registers' number differs
PSINFO_PID, PSINFO_NAME, PSINFO_NAME_SIZE = 24, 40, 16  # in struct elf_prpsinfo


class FileRange(NamedTuple):
    """Addresses [start, end) are mapped from `offset` in the file at `path`."""

    start: int
    end: int
    offset: int
    path: str


class ThreadNotes:
    """The register sets of a thread, as bytes of the notes; empty if there are none."""

    def __init__(self, general: bytes) -> None:
        self.general = general
        self.floating = self.masks = b""  # `masks`: the signatures' bits in addresses


class CoreNotes:
    """The contents of a core's notes. Raises FormatError if one is too short for its kind."""

    def __init__(self, elf: ElfFile, abi: Abi) -> None:
        self.pid = 0
        self.name = ""  # of the first thread
        self.threads: dict[int, ThreadNotes] = {}  # by tid, in the file's order
        self.auxv: dict[int, int] = {}
        self.files: list[FileRange] = []  # ascending, without overlaps; none if the core does not say
        self._elf, self._known = elf, conventions_of(abi)
        self._mark = MARKS[elf.byte_order]
        self._current: ThreadNotes | None = None  # a thread's notes follow its NT_PRSTATUS
        for note in notes_of(elf):
            if (note.name, note.type) == (LINUX, self._known.ra_mask_set):
                self._masks(note)
            elif read := self._readers.get((note.name, note.type)):
                read(self, note)
        self.pid = self.pid or next(iter(self.threads), 0)

    def _status(self, note: Note) -> None:
        general = 8 * self._known.general.words
        desc = self._desc(note, "NT_PRSTATUS", PR_REG + general)
        tid = self._number("i", desc, PR_PID)
        self._current = self.threads.setdefault(tid, ThreadNotes(desc[PR_REG : PR_REG + general]))

    def _floating(self, note: Note) -> None:
        if self._current:
            self._current.floating = note.desc

    def _masks(self, note: Note) -> None:
        if self._current:
            self._current.masks = note.desc

    def _process(self, note: Note) -> None:
        desc = self._desc(note, "NT_PRPSINFO", PSINFO_NAME + PSINFO_NAME_SIZE)
        self.pid = self._number("i", desc, PSINFO_PID)
        self.name = desc[PSINFO_NAME : PSINFO_NAME + PSINFO_NAME_SIZE].partition(b"\0")[0].decode(errors="replace")

    def _auxiliary(self, note: Note) -> None:
        pairs = Struct(self._mark + "QQ")
        self.auxv = dict(pairs.iter_unpack(note.desc[: len(note.desc) // pairs.size * pairs.size]))

    def _files(self, note: Note) -> None:
        rows = Struct(self._mark + "QQQ")
        head = Struct(self._mark + "QQ")
        desc = self._desc(note, "NT_FILE", head.size)
        count, page = head.unpack_from(desc)
        if count > (len(desc) - head.size) // rows.size:
            raise self._error(note, "NT_FILE", f"{count} mappings in {len(desc)} bytes")
        end = head.size + count * rows.size
        names = desc[end:].split(b"\0")
        if len(names) < count:
            raise self._error(note, "NT_FILE", f"{count} mappings, {len(names)} names")
        found = [
            FileRange(start, stop, offset * page, name.decode(errors="surrogateescape"))
            for (start, stop, offset), name in zip(rows.iter_unpack(desc[head.size : end]), names, strict=False)
        ]
        found.sort()
        last = 0
        for start, stop, _, name in found:
            if not last <= start < stop:
                raise self._error(note, "NT_FILE", f"{name!r} at {start:#x} to {stop:#x} overlaps another mapping, or is empty")
            last = stop
        self.files = found

    def _number(self, code: str, desc: bytes, at: int) -> int:
        number: int = Struct(self._mark + code).unpack_from(desc, at)[0]
        return number

    def _desc(self, note: Note, kind: str, size: int) -> bytes:
        if len(note.desc) < size:
            raise self._error(note, kind, f"expected {size} bytes, have {len(note.desc)}")
        return note.desc

    def _error(self, note: Note, kind: str, message: str) -> FormatError:
        return self._elf.error(message, f"{kind} at file offset {note.offset:#x}")

    _readers: ClassVar = {
        (CORE, NT_PRSTATUS): _status,
        (CORE, NT_PRFPREG): _floating,
        (CORE, NT_PRPSINFO): _process,
        (CORE, NT_AUXV): _auxiliary,
        (CORE, NT_FILE): _files,
    }
