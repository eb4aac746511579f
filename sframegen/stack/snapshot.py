"""A process at one moment: its threads, and its memory, which is read page by page and cached, or copied in parts."""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, NamedTuple, Protocol

from sframegen.base.errors import SframegenError
from sframegen.elf.records import STRUCT_BYTE_ORDERS, ByteOrder
from sframegen.stack.walking.step import StackMemory

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from sframegen.elf.file import ElfFile
    from sframegen.format.abi import Abi
    from sframegen.stack.abi.machines import ThreadRegisters
    from sframegen.stack.mappings import Mapping, Mappings

PAGE_BITS = 12
PAGE_SIZE = 1 << PAGE_BITS
MAX_PAGES = 1 << 14  # that are cached, because a hostile stack may have a frame in each of a million pages
READ_AHEAD = 4  # pages that are read at once, because stacks are read upwards, and most frames are in the first pages
MAX_CODE_SIZE = 64 << 20  # bytes of a mapping that are compared, because files and untouched memory can be sparse and endless
READ_SIZE = 1 << 20  # bytes that are compared at a time
MAX_READS = 256  # parts of READ_SIZE that are compared for one process


class StackError(SframegenError):
    """Raised if a process or thread cannot be traced. The message is one line with the reason and the remedy."""


class MemoryReader(StackMemory, Protocol):
    """Memory of a process. Walks read words of it; `read` returns larger parts."""

    def read(self, address: int, size: int) -> bytes:
        """Return the bytes at an address, fewer if readable memory ends, none if there is none."""


class CachedMemory:
    """Memory of a stopped process, read page by page and cached."""

    def __init__(self, read: Callable[[int, int], bytes], byte_order: ByteOrder) -> None:
        """`read(address, size)` returns the bytes there, fewer if readable memory ends, none if there is none. It never raises."""
        self.read = read  # bypasses the cache
        self._pages: dict[int, bytes] = {}
        self._unpack_word = Struct(STRUCT_BYTE_ORDERS[byte_order] + "Q").unpack_from
        self.byte_order = byte_order

    def word(self, address: int) -> int | None:
        """Return the 8 bytes at `address` as a number; None if they cannot be read."""
        offset = address & PAGE_SIZE - 1
        if offset <= PAGE_SIZE - 8:
            _, page = self.window(address)
            if not page:
                return None
            word: int = self._unpack_word(page, offset)[0]
            return word
        raw = self.read(address, 8)
        return int.from_bytes(raw, self.byte_order) if len(raw) == 8 else None

    def window(self, address: int) -> tuple[int, bytes]:
        """Return (start, bytes) of the page that contains `address`; no bytes if not all of it can be read."""
        number = address >> PAGE_BITS
        page = self._pages.get(number)
        if page is None:
            page = self._read_pages(number)
        return number << PAGE_BITS, page if len(page) == PAGE_SIZE else b""

    def _read_pages(self, number: int) -> bytes:
        """Read the page with that number and a few after it; return the page, which is shorter if not all of it can be read."""
        if len(self._pages) > MAX_PAGES:
            self._pages.clear()
        raw = self.read(number << PAGE_BITS, PAGE_SIZE * READ_AHEAD)
        for i in range(READ_AHEAD):
            page = raw[i << PAGE_BITS : i + 1 << PAGE_BITS]
            if i == 0 or len(page) == PAGE_SIZE:
                self._pages.setdefault(number + i, page)
        return self._pages[number]


class NotCopiedError(Exception):
    """Raised if a walk needs memory that was not copied, so that only the process itself has it."""


class CopiedMemory:
    """Copied parts of the memory of a process, which need not be stopped any longer."""

    def __init__(self, parts: Sequence[tuple[int, bytes]], mappings: Mappings, byte_order: ByteOrder) -> None:
        """`parts`: (address, the bytes that were there) of each part."""
        self._parts = [(start, data) for start, data in parts if len(data) >= 8]
        self._mappings = mappings
        self._unpack_word = Struct(STRUCT_BYTE_ORDERS[byte_order] + "Q").unpack_from
        self._last = self._parts[0] if self._parts else (0, b"")  # the part that was read last, which is tried first

    def read(self, address: int, size: int) -> bytes:  # noqa: ARG002 - the protocol's
        """Refuse: only words of the copied parts can be read. Raises NotCopiedError."""
        raise NotCopiedError

    def word(self, address: int) -> int | None:
        """Return the 8 bytes at `address` as a number; None if the process has none there. Raises NotCopiedError."""
        start, data = self.window(address)
        if data:
            word: int = self._unpack_word(data, address - start)[0]
            return word
        if self._mappings.covers(address, 8):
            raise NotCopiedError
        return None

    def window(self, address: int) -> tuple[int, bytes]:
        """Return (start, bytes) of the copied part that has 8 bytes at `address`; no bytes if none has them."""
        if not _has_word(self._last, address):
            part = next((part for part in self._parts if _has_word(part, address)), None)
            if part is None:
                return address, b""
            self._last = part
        return self._last


def _has_word(part: tuple[int, bytes], address: int) -> bool:
    return 0 <= address - part[0] <= len(part[1]) - 8


class StoppedThread(NamedTuple):
    """A stopped thread. `name`: empty if unknown. `registers`: an error if they cannot be read. `idle`: it was waiting."""

    tid: int
    name: str
    registers: ThreadRegisters | StackError
    idle: bool


class Snapshot(NamedTuple):
    """A process at one moment. `file_of` returns a mapping's file, or None if it cannot be opened.

    `threads`: the process's first thread comes first. `refused`: ids of threads that could not be stopped, and why.
    """

    abi: Abi
    mappings: Mappings
    memory: MemoryReader
    file_of: Callable[[Mapping], ElfFile | None]
    threads: Sequence[StoppedThread]
    refused: dict[int, str]

    def copy_stacks(self, stack_bytes: int) -> Snapshot:
        """Return a snapshot with up to `stack_bytes` of each stack, from SP on, which stays valid when the process runs again."""
        parts = []
        for thread in self.threads:
            if not isinstance(thread.registers, StackError):
                sp = thread.registers.values[self.abi.sp]
                if stack := self.mappings.stack_at(sp):
                    parts.append((sp, self.memory.read(sp, min(stack_bytes, stack[1] - sp))))
        return self._replace(memory=CopiedMemory(parts, self.mappings, self.abi.byte_order))


class MovedCode:
    """Compares code that one process has moved to anonymous memory, for huge pages, with that of files; remembers the results."""

    def __init__(self) -> None:
        self.answers: dict[Hashable, bool] = {}  # by key, at most MAX_READS of them
        self._reads_left = MAX_READS

    def is_same(self, read: Callable[[int, int], bytes], address: int, code: memoryview, key: Hashable = None) -> bool:
        """Return True if `read` returns `code` at the address; False beyond a limit. `key`: the result is cached under it."""
        if key in self.answers:
            return self.answers[key]
        if not 0 < len(code) <= MAX_CODE_SIZE or not self._reads_left:
            return False
        same = all(self._equals(read, address + at, code[at : at + READ_SIZE]) for at in range(0, len(code), READ_SIZE))
        if key is not None:
            self.answers[key] = same
        return same

    def _equals(self, read: Callable[[int, int], bytes], address: int, part: memoryview) -> bool:
        if not self._reads_left:
            return False
        self._reads_left -= 1
        return read(address, len(part)) == bytes(part)
