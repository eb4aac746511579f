"""Flat columns: new ones, and tables of them as the compiled modules take them (docs/compiled.md); numbers in bytes. Compiled."""

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
LINE = 64  # bytes that a processor's cache holds together
_left: list[memoryview] = []  # unused zeros at the ends of large pages: one for each thread that asked at the same time


def zeros(code: str, count: int) -> array[int]:
    """A column of `count` zeros; `code` as array's."""
    return array(code, [0]) * count


def room(codes: str, count: int) -> list[memoryview]:
    """Columns of `count` zeros, one for each of `codes`: they cannot grow, and a slice is not a copy.

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
    """`size` zeros, in large pages, where the kernel has them: a fault for each of 4 KiB takes as long as filling ten.

    The rest of one page goes to the next caller, but not that of several pages: it would keep all of them allocated.
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
    """True if a column is sorted."""
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
    """The numbers from `first` to before `end`, sorted by what stands there in `values`; stable."""
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
    for shift in range(0, 64, 11):  # by eleven bits a time, the lowest first
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
    """A sorted copy of a column."""
    i: cython.Py_ssize_t
    (found,) = room("Q", len(values))
    order = order_of(values, 0, len(values))
    ordered = found
    for i in range(len(order)):
        ordered[i] = values[order[i]]
    return found


class Entries:
    """CIEs or FDEs, as offsets in their section: of the entry, of what follows its CIE pointer, of its end.

    `cie`: for an FDE, the offset of its CIE; empty for CIEs.
    """

    def __init__(self, start: Column, body: Column, end: Column, cie: Column) -> None:
        self.start = start
        self.body = body
        self.end = end
        self.cie = cie


class Fdes:
    """Address and bytes of the code that each FDE describes, and the number of its CIE."""

    def __init__(self, start: Column, size: Column, cie: Column) -> None:
        self.start = start
        self.size = size
        self.cie = cie


class Programs:
    """Offsets in the section: where each FDE's instructions begin and end."""

    def __init__(self, start: Column, end: Column) -> None:
        self.start = start
        self.end = end


class Rows:
    """The rows of FDEs, or of functions: those of i are first_row[i] .. first_row[i + 1] - 1.

    Of each row the offset from the start of the code, and the number of its rule.
    """

    def __init__(self, first_row: Column, start: Column, rule: Column) -> None:
        self.first_row = first_row
        self.start = start
        self.rule = rule


class ByteReader:
    """Bytes, and the unsigned numbers in them, in either byte order: all that reads bytes in a loop derives from it."""

    def __init__(self, data: Bytes, big: bool) -> None:
        """`big`: the byte order."""
        self.data = data
        self.length = len(data)
        self.big = big

    @cython.boundscheck(False)
    def number(self, pos: cython.Py_ssize_t, width: cython.Py_ssize_t) -> cython.ulonglong:
        """The number of `width` bytes, at most 8, at `pos`. Raises IndexError where they are not in `data`."""
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
