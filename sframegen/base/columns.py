"""Typed columns, and tables of them, for the compiled modules (docs/architecture.md); reads numbers from bytes. Compiled."""

from __future__ import annotations

from array import array
from contextlib import suppress
from mmap import MADV_HUGEPAGE, MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import TYPE_CHECKING

try:
    import cython
except ImportError:
    from sframegen.base import cython_shadow as cython  # type: ignore[no-redef]

if TYPE_CHECKING:
    from typing import TypeAlias

    Column: TypeAlias = array[int] | memoryview
    Bytes: TypeAlias = bytes | bytearray | memoryview

COMPILED: bool = cython.compiled
LARGE_PAGE = 1 << 21  # bytes
CACHE_LINE = 64  # bytes
_unused_tails: list[memoryview] = []  # the unused ends of large pages; several only if several threads allocated at the same time


def zeros(code: str, count: int) -> array[int]:
    """Return a column of `count` zeros that can grow. `code`: a type code of `array`."""
    return array(code, [0]) * count


def make_columns(codes: str, count: int) -> list[memoryview]:
    """Return a column of `count` zeros for each type code in `codes`. They cannot grow; slices share memory. Raises MemoryError."""
    sizes = [-(-array(code).itemsize * count // CACHE_LINE) * CACHE_LINE for code in codes]
    if sum(sizes) < LARGE_PAGE // 64:
        return [memoryview(zeros(code, count)) for code in codes]
    memory = _allocate_in_large_pages(sum(sizes))
    columns, offset = [], 0
    for code, size in zip(codes, sizes, strict=True):
        columns.append(memory[offset : offset + size].cast(code)[:count])  # type: ignore[call-overload]  # `code` is an integer type
        offset += size
    return columns


def _allocate_in_large_pages(size: int) -> memoryview:
    """Return `size` zero bytes, in large pages if the kernel has them: a fault on a 4 KiB page takes as long as filling ten.

    The tail of a single page is kept for the next caller. The tail of several pages is not: it would keep all of them allocated.
    """
    if size >= LARGE_PAGE:
        return _map_large_pages(size)[:size]
    try:
        tail = _unused_tails.pop()  # without a lock: a process forked while a thread holds one would wait for it forever
    except IndexError:
        tail = memoryview(b"")
    if len(tail) < size:
        page = _map_large_pages(LARGE_PAGE)
        _unused_tails.append(max(page[size:], tail, key=len))
        return page[:size]
    _unused_tails.append(tail[size:])
    return tail[:size]


def _map_large_pages(size: int) -> memoryview:
    try:
        pages = mmap(-1, -(-size // LARGE_PAGE) * LARGE_PAGE, flags=MAP_PRIVATE | MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError from error
    with suppress(OSError):  # a kernel without large pages
        pages.madvise(MADV_HUGEPAGE)
    return memoryview(pages)


@cython.locals(values="const unsigned long long[::1]")
def is_ascending(values: Column) -> bool:
    """Return True if a column is sorted in ascending order."""
    i: cython.Py_ssize_t
    for i in range(1, len(values)):
        if values[i - 1] > values[i]:
            return False
    return True


@cython.locals(
    values="const unsigned long long[::1]", order="unsigned int[::1]", spare="unsigned int[::1]", next_index="unsigned int[::1]"
)
def sort_indexes(values: Column, first: cython.Py_ssize_t, end: cython.Py_ssize_t) -> memoryview:
    """Return the indexes `first` .. `end` - 1, sorted by their `values`; indexes of equal values stay in order."""
    shift: cython.int
    i: cython.Py_ssize_t
    digit: cython.Py_ssize_t
    count: cython.Py_ssize_t
    position: cython.Py_ssize_t
    if not cython.compiled:
        return memoryview(array("I", sorted(range(first, end), key=values.__getitem__)))
    ordered, scratch = make_columns("II", end - first)
    order = ordered
    spare = scratch
    next_index = zeros("I", 2048)  # for each digit: first its count, then where its next index goes
    for i in range(len(order)):
        order[i] = first + i
    for shift in range(0, 64, 11):  # radix sort by digits of eleven bits, the lowest first
        for digit in range(2048):
            next_index[digit] = 0
        for i in range(len(order)):
            next_index[(values[order[i]] >> shift) & 2047] += 1
        position = 0
        for digit in range(2048):
            count = next_index[digit]
            if count == len(order):  # all values have this digit, so their order does not change
                break
            next_index[digit] = position
            position += count
        else:
            for i in range(len(order)):
                digit = (values[order[i]] >> shift) & 2047
                spare[next_index[digit]] = order[i]
                next_index[digit] += 1
            for i in range(len(order)):
                order[i] = spare[i]
    return ordered


@cython.locals(values="const unsigned long long[::1]", order="const unsigned int[::1]", ordered="unsigned long long[::1]")
def sorted_column(values: Column) -> memoryview:
    """Return a sorted copy of a column."""
    i: cython.Py_ssize_t
    (column,) = make_columns("Q", len(values))
    order = sort_indexes(values, 0, len(values))
    ordered = column
    for i in range(len(order)):
        ordered[i] = values[order[i]]
    return column


class Entries:
    """CIEs or FDEs by section offsets: each entry's `start`, its `body` (after the CIE pointer), its `end`, and an FDE's `cie`."""

    def __init__(self, start: Column, body: Column, end: Column, cie: Column) -> None:
        self.start = start
        self.body = body
        self.end = end
        self.cie = cie


class Fdes:
    """FDEs: the address and size in bytes of each one's code, and the number of its CIE."""

    def __init__(self, start: Column, size: Column, cie: Column) -> None:
        self.start = start
        self.size = size
        self.cie = cie


class Programs:
    """The section offsets where the call frame instructions of each FDE begin and end."""

    def __init__(self, start: Column, end: Column) -> None:
        self.start = start
        self.end = end


class Rows:
    """The rows of FDEs or functions: function i has rows first_row[i] .. first_row[i + 1] - 1.

    A row's `start` is its offset in bytes from the start of the function; its `rule` is the number of its rule.
    """

    def __init__(self, first_row: Column, start: Column, rule: Column) -> None:
        self.first_row = first_row
        self.start = start
        self.rule = rule


class ByteReader:
    """Reads unsigned numbers from bytes in either byte order. It is the base class of all readers with hot loops."""

    def __init__(self, data: Bytes, big: bool) -> None:
        """`big`: True if the numbers are big-endian."""
        self.data = data
        self.length = len(data)
        self.big = big

    @cython.boundscheck(False)
    def number(self, pos: cython.Py_ssize_t, width: cython.Py_ssize_t) -> cython.ulonglong:
        """Return the number of `width` bytes, at most 8, at `pos`. Raises IndexError if they are not within `data`."""
        value: cython.ulonglong = 0
        byte: cython.ulonglong
        shift: cython.int = 8 * (width - 1) if self.big else 0
        step: cython.int = -8 if self.big else 8
        i: cython.Py_ssize_t
        if pos < 0 or pos + width > self.length:  # checked once, not for each byte
            raise IndexError(pos)
        if width == 4 and not self.big:  # the most frequent case, which compilers turn into a single load
            value = self.data[pos + 3]
            return value << 24 | self.data[pos + 2] << 16 | self.data[pos + 1] << 8 | self.data[pos]
        for i in range(pos, pos + width):
            byte = self.data[i]
            value |= byte << shift
            shift += step
        return value
