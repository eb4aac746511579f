"""Typed columns and tables of them for the compiled modules (docs/architecture.md), and numbers in bytes. Compiled."""

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
LARGE_PAGE = 1 << 21
LINE = 64  # bytes of a CPU cache line
_left: list[memoryview] = []  # unused zeros at the ends of large pages, one for each thread that allocated at the same time


def zeros(code: str, count: int) -> array[int]:
    """Return a column of `count` zeros. `code`: a type code of `array`."""
    return array(code, [0]) * count


def room(codes: str, count: int) -> list[memoryview]:
    """Return a column of `count` zeros for each of `codes`. Such columns cannot grow, and slices of them are not copies.

    Raises MemoryError.
    """
    sizes = [-(-array(code).itemsize * count // LINE) * LINE for code in codes]
    if sum(sizes) < LARGE_PAGE // 64:
        return [memoryview(zeros(code, count)) for code in codes]
    memory = _in_large_pages(sum(sizes))
    columns, at = [], 0
    for code, size in zip(codes, sizes, strict=True):
        columns.append(memory[at : at + size].cast(code)[:count])  # type: ignore[call-overload]  # an integer's
        at += size
    return columns


def _in_large_pages(size: int) -> memoryview:
    """Return `size` zero bytes, in large pages if the kernel has them: a fault on a 4 KiB page takes as long as filling ten.

    The rest of a single page goes to the next caller; the rest of several pages does not, as it would keep all of them allocated.
    """
    if size >= LARGE_PAGE:
        return _mapped(size)[:size]
    try:
        left = _left.pop()  # no lock: a process that is forked while one is held would wait for it forever
    except IndexError:
        left = memoryview(b"")
    if len(left) < size:
        page = _mapped(LARGE_PAGE)
        _left.append(max(page[size:], left, key=len))
        return page[:size]
    _left.append(left[size:])
    return left[:size]


def _mapped(size: int) -> memoryview:
    try:
        pages = mmap(-1, -(-size // LARGE_PAGE) * LARGE_PAGE, flags=MAP_PRIVATE | MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError from error
    with suppress(OSError):  # a kernel without large pages
        pages.madvise(MADV_HUGEPAGE)
    return memoryview(pages)


@cython.locals(values="const unsigned long long[::1]")
def ascends(values: Column) -> bool:
    """Return True if a column is sorted in ascending order."""
    i: cython.Py_ssize_t
    for i in range(1, len(values)):
        if values[i - 1] > values[i]:
            return False
    return True


@cython.locals(
    values="const unsigned long long[::1]",
    order="unsigned int[::1]",
    spare="unsigned int[::1]",
    places="unsigned int[::1]",
)
def order_of(values: Column, first: cython.Py_ssize_t, end: cython.Py_ssize_t) -> memoryview:
    """Return the indexes from `first` to before `end`, in stable order of their `values`."""
    shift: cython.int
    i: cython.Py_ssize_t
    digit: cython.Py_ssize_t
    count: cython.Py_ssize_t
    total: cython.Py_ssize_t
    if not cython.compiled:
        return memoryview(array("I", sorted(range(first, end), key=values.__getitem__)))
    numbers, other = room("II", end - first)
    order = numbers
    spare = other
    places = zeros("I", 2048)
    for i in range(len(order)):
        order[i] = first + i
    for shift in range(0, 64, 11):  # radix sort by eleven bits at a time, the lowest first
        for digit in range(2048):
            places[digit] = 0
        for i in range(len(order)):
            places[(values[order[i]] >> shift) & 2047] += 1
        total = 0
        for digit in range(2048):
            count = places[digit]
            places[digit] = total
            total += count
            if count == len(order):  # all are equal here
                total = -1
                break
        if total < 0:
            continue
        for i in range(len(order)):
            digit = (values[order[i]] >> shift) & 2047
            spare[places[digit]] = order[i]
            places[digit] += 1
        for i in range(len(order)):
            order[i] = spare[i]
    return numbers


@cython.locals(values="const unsigned long long[::1]", order="const unsigned int[::1]", ordered="unsigned long long[::1]")
def ascending(values: Column) -> memoryview:
    """Return a sorted copy of a column."""
    i: cython.Py_ssize_t
    (found,) = room("Q", len(values))
    order = order_of(values, 0, len(values))
    ordered = found
    for i in range(len(order)):
        ordered[i] = values[order[i]]
    return found


class Entries:
    """CIEs or FDEs as section offsets: `start` of the entry, `body` after its CIE pointer, and `end`.

    `cie`: the offset of each FDE's CIE; empty for CIEs.
    """

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
    """The CFI programs of FDEs: section offsets where each FDE's instructions begin and end."""

    def __init__(self, start: Column, end: Column) -> None:
        self.start = start
        self.end = end


class Rows:
    """The rows of FDEs or functions: number i has rows first_row[i] .. first_row[i + 1] - 1.

    Each row has `start`, its offset from the start of the code, and `rule`, the number of its rule.
    """

    def __init__(self, first_row: Column, start: Column, rule: Column) -> None:
        self.first_row = first_row
        self.start = start
        self.rule = rule


class ByteReader:
    """A reader of unsigned numbers in bytes, in either byte order; the base class of all readers with hot loops."""

    def __init__(self, data: Bytes, big: bool) -> None:
        """`big`: the byte order."""
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
        if width == 4 and not self.big:  # most numbers that are read: a single load
            value = self.data[pos + 3]
            return value << 24 | self.data[pos + 2] << 16 | self.data[pos + 1] << 8 | self.data[pos]
        for i in range(pos, pos + width):
            byte = self.data[i]
            value |= byte << shift
            shift += step
        return value
