"""What the tracer is given: a process at one moment, stopped or as a core file has it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple, Protocol

from cfi.errors import SframegenError
from sframegen.elf.records import MARKS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from sframegen.elf.file import ElfFile
    from sframegen.elf.records import ByteOrder
    from sframegen.format.abi import Abi
    from sframegen.stack.abi.registers import Registers

DELETED = " (deleted)"  # behind the path of a file that has no name any more
PAGE_BITS = 12
PAGE = 1 << PAGE_BITS
MAX_NEAR = 16  # rows of a file on each side
READ_AHEAD = 4  # pages: stacks are read upwards, most frames of a thread are in the first pages


class StackError(SframegenError):
    """Something cannot be traced: one line that says why, and what to do."""


class Mapping(NamedTuple):
    """A row of /proc/PID/maps: addresses [start, end). `inode` 0: of no file; `path` may still be `[vdso]` or the like."""

    start: int
    end: int
    readable: bool
    writable: bool
    executable: bool
    offset: int  # in the file
    device: str
    inode: int
    path: str

    @property
    def file(self) -> tuple[str, int, str]:
        """The same for all mappings of a file."""
        return self.device, self.inode, self.path


class Mappings:
    """All mappings of a process, ascending; of rows that overlap, as those of a hostile core file may, the first."""

    def __init__(self, rows: Iterable[Mapping] = ()) -> None:
        self.rows: list[Mapping] = []
        for row in sorted(rows):
            if row.start < row.end and (not self.rows or self.rows[-1].end <= row.start):
                self.rows.append(row)
        self._starts = [row.start for row in self.rows]
        self._by_file: dict[tuple[str, int, str], list[Mapping]] | None = None

    def __iter__(self) -> Iterator[Mapping]:
        return iter(self.rows)

    def find(self, address: int) -> Mapping | None:
        at = bisect_right(self._starts, address) - 1
        return self.rows[at] if at >= 0 and address < self.rows[at].end else None

    def of_file(self, row: Mapping) -> list[Mapping]:
        """The rows of the same file, the nearest first; no more than any object has, of a file that is mapped very often."""
        if self._by_file is None:
            self._by_file = {}
            for other in self.rows:
                self._by_file.setdefault(other.file, []).append(other)
        rows = self._by_file[row.file]
        at = bisect_left(rows, row)
        return sorted(rows[max(at - MAX_NEAR, 0) : at + MAX_NEAR], key=lambda other: abs(other.start - row.start))

    def covers(self, address: int, size: int) -> bool:
        """Whether all of these bytes are mapped, and to be read."""
        end = address + size
        while address < end:
            row = self.find(address)
            if row is None or not row.readable:
                return False
            address = row.end
        return True

    def stack_at(self, address: int) -> tuple[int, int] | None:
        """(start, end) of the writable memory around `address`, of one mapping or several that follow one another without a gap."""
        at = bisect_right(self._starts, address) - 1
        if at < 0 or address >= self.rows[at].end or not _is_data(self.rows[at]):
            return None
        first = last = at
        while first and _is_data(self.rows[first - 1]) and self.rows[first - 1].end == self.rows[first].start:
            first -= 1
        while last + 1 < len(self.rows) and _is_data(self.rows[last + 1]) and self.rows[last].end == self.rows[last + 1].start:
            last += 1
        return self.rows[first].start, self.rows[last].end


def _is_data(row: Mapping) -> bool:
    return row.readable and row.writable


class Memory:
    """Memory of a process that does not run, read by pages and kept."""

    def __init__(self, read: Callable[[int, int], bytes], byte_order: ByteOrder) -> None:
        """`read(address, size)`: the bytes there, fewer where readable memory ends, none where there is none. Never raises."""
        self._read = read
        self._pages: dict[int, bytes] = {}
        self._word = Struct(MARKS[byte_order] + "Q").unpack_from
        self.byte_order = byte_order

    def read(self, address: int, size: int) -> bytes:
        """As the reader gives it, past what is kept."""
        return self._read(address, size)

    def word(self, address: int) -> int | None:
        """The 8 bytes at `address` as a number; None where they cannot be read."""
        place = address & PAGE - 1
        if place <= PAGE - 8:
            page = self._pages.get(address >> PAGE_BITS)
            if page is None:
                page = self._fetch(address >> PAGE_BITS)
            if len(page) != PAGE:
                return None
            word: int = self._word(page, place)[0]
            return word
        raw = self._read(address, 8)
        return int.from_bytes(raw, self.byte_order) if len(raw) == 8 else None

    def _fetch(self, number: int) -> bytes:
        raw = self._read(number << PAGE_BITS, PAGE * READ_AHEAD)
        for i in range(READ_AHEAD):
            page = raw[i << PAGE_BITS : i + 1 << PAGE_BITS]
            if i == 0 or len(page) == PAGE:
                self._pages.setdefault(number + i, page)
        return self._pages[number]


class NotCopiedError(Exception):
    """Memory is asked for that was not copied: only the process itself has it."""


class CopiedMemory:
    """Parts of a process' memory, which may run again."""

    def __init__(self, parts: Sequence[tuple[int, bytes]], mappings: Mappings, byte_order: ByteOrder) -> None:
        """`parts`: addresses and what was there."""
        self._parts = [(start, data) for start, data in parts if len(data) >= 8]
        self._mappings = mappings
        self._word = Struct(MARKS[byte_order] + "Q").unpack_from
        self._start, self._data = self._parts[0] if self._parts else (0, b"")

    def read(self, address: int, size: int) -> bytes:  # noqa: ARG002 - what a Reader has
        """Raises NotCopiedError."""
        raise NotCopiedError

    def word(self, address: int) -> int | None:
        """The 8 bytes at `address` as a number; None where the process has none. Raises NotCopiedError."""
        at = address - self._start
        if not 0 <= at <= len(self._data) - 8:
            found = next((part for part in self._parts if 0 <= address - part[0] <= len(part[1]) - 8), None)
            if found is None:
                if self._mappings.covers(address, 8):
                    raise NotCopiedError
                return None
            self._start, self._data = found
            at = address - self._start
        word: int = self._word(self._data, at)[0]
        return word


class Reader(Protocol):
    """Memory of a process."""

    def read(self, address: int, size: int) -> bytes:
        """The bytes there, fewer where readable memory ends, none where there is none."""

    def word(self, address: int) -> int | None:
        """The 8 bytes at `address` as a number; None where they cannot be read."""


class Snapshot(Protocol):
    """A process at one moment."""

    pid: int
    abi: Abi
    executable: str  # path of the program, for people
    mappings: Mappings

    @property
    def memory(self) -> Reader:
        """Its memory at that moment."""

    def threads(self) -> Sequence[int]:
        """Ids of its threads, the first one's first."""

    def thread_name(self, tid: int) -> str:
        """What the kernel calls it; empty where that is not known."""

    def idle(self, tid: int) -> bool | None:
        """True for a thread that waited; None where that is not known."""

    def registers(self, tid: int) -> Registers:
        """Raises StackError where they cannot be had."""

    def file_of(self, mapping: Mapping) -> ElfFile | None:
        """The file that a mapping is of, read from its beginning; None where there is none, or none to be had."""
