"""From an address to its row in the raw bytes of a section, as an unwinder looks it up: nothing else is decoded. Compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    import cython
except ImportError:
    from cfi import cython_shadow as cython  # type: ignore[no-redef]

if TYPE_CHECKING:
    from cfi.columns import Bytes, Column

COMPILED: bool = cython.compiled

# What `find` returns where it finds no row.
NOT_COVERED, NO_ROWS, BAD = -1, -2, -3


@cython.final
@cython.cclass
class Seeker:
    """Finds rows in the bytes of a section, which the caller has checked to hold the index and the FRE sub-section.

    A look-up reads as many index entries as the logarithm of their number, and the rows of one function up to the one it looks
    for. A hostile function can claim 2 ** 32 rows; each takes two bytes or more and none lies outside of the FRE sub-section, so
    that half its bytes is the bound. Everything that is read is fenced, and nothing else is.

    After `find`: `function`, its number, with `start`, `size`, `info`, `info2`, `rep_size`; `row_offset`, where the row begins,
    in bytes from the function's start or the repeated block's; after BAD the number of the `fault` in unpack.FAULTS, and its
    place `at`.
    """

    data = cython.declare("const unsigned char[::1]")
    fields = cython.declare("const long long[::1]")
    big = cython.declare("bint")
    relative = cython.declare("bint")
    functions = cython.declare("long long")
    index_at = cython.declare("long long")
    fres_at = cython.declare("long long")
    fres_end = cython.declare("long long")
    address = cython.declare("unsigned long long")
    mask = cython.declare("unsigned long long")
    function = cython.declare("long long", visibility="public")
    start = cython.declare("unsigned long long", visibility="public")
    size = cython.declare("unsigned long long", visibility="public")
    info = cython.declare("int", visibility="public")
    info2 = cython.declare("int", visibility="public")
    rep_size = cython.declare("int", visibility="public")
    row_offset = cython.declare("long long", visibility="public")
    fault = cython.declare("int", visibility="public")
    at = cython.declare("long long", visibility="public")
    scanned = cython.declare("long long", visibility="public")

    def __init__(
        self,
        data: Bytes,
        fields: Column,
        big: bool,
        relative: bool,
        functions: int,
        index_at: int,
        fres_at: int,
        fres_end: int,
        address: int,
    ) -> None:
        """`fields`: Layout.fields. `relative`: function starts are relative to their own fields. The rest: places."""
        self.data = data
        self.fields = fields
        self.big = big
        self.relative = relative
        self.functions = functions
        self.index_at = index_at
        self.fres_at = fres_at
        self.fres_end = fres_end
        self.address = address
        self.mask = 0xFFFFFFFFFFFFFFFF
        self.function = self.start = self.size = 0
        self.info = self.info2 = self.rep_size = 0
        self.row_offset = 0
        self.fault = self.at = 0
        self.scanned = 0

    @cython.cfunc
    @cython.exceptval(-1)
    def number(self, pos: cython.Py_ssize_t, width: cython.Py_ssize_t) -> cython.ulonglong:
        value: cython.ulonglong = 0
        i: cython.Py_ssize_t
        for i in range(width):
            value = value * 256 + self.data[pos + (i if self.big else width - 1 - i)]
        return value

    @cython.cfunc
    @cython.exceptval(-1)
    def start_of(self, function: cython.longlong) -> cython.ulonglong:
        """A function's address."""
        entry: cython.Py_ssize_t = self.index_at + function * self.fields[0]
        distance: cython.ulonglong = self.number(entry, self.fields[1])
        if self.fields[1] == 4 and distance >> 31:
            distance -= self.fields[11]
        origin: cython.ulonglong = self.address + (entry if self.relative else 0)
        return (origin + distance) & self.mask  # type: ignore[no-any-return]

    def ascends(self) -> bool:
        """Whether function starts do, without which no search finds anything. Reads the whole index."""
        function: cython.longlong
        before: cython.ulonglong = 0
        start: cython.ulonglong
        for function in range(self.functions):
            start = self.start_of(function)
            if start < before:
                return False
            before = start
        return True

    @cython.cfunc
    @cython.exceptval(-9)
    def damaged(self, fault: cython.int, at: cython.longlong) -> cython.longlong:
        self.fault = fault
        self.at = at
        return -3  # BAD

    @cython.cfunc
    @cython.exceptval(-9)
    def seek(self, pc: cython.ulonglong) -> cython.longlong:
        low: cython.longlong = 0
        high: cython.longlong = self.functions
        middle: cython.longlong
        entry: cython.longlong
        offset: cython.ulonglong
        while low < high:  # the number of functions that begin at or before pc
            middle = (low + high) // 2
            if self.start_of(middle) <= pc:
                low = middle + 1
            else:
                high = middle
        if low == 0:
            return -1  # NOT_COVERED
        self.function = low - 1
        self.start = self.start_of(low - 1)
        entry = self.index_at + self.function * self.fields[0]
        self.size = self.number(entry + self.fields[2], 4)
        offset = pc - self.start
        if offset >= self.size:
            return -1
        return self.row(entry, offset)

    @cython.cfunc
    @cython.exceptval(-9)
    def row(self, entry: cython.longlong, offset: cython.longlong) -> cython.longlong:
        """The row that holds `offset` bytes into the function whose index entry is at `entry`."""
        attribute: cython.longlong
        pos: cython.longlong
        found: cython.longlong = -2  # NO_ROWS
        width: cython.longlong
        info: cython.longlong
        start: cython.longlong
        before: cython.longlong = -1
        count: cython.longlong
        pos = self.fres_at + self.number(entry + self.fields[3], 4)
        attribute = pos if self.fields[4] else entry
        pos += self.fields[5]
        if pos > self.fres_end:
            return self.damaged(1, entry)
        count = self.number(attribute + self.fields[6], self.fields[7])
        self.info = self.data[attribute + self.fields[8]]
        self.info2 = self.data[attribute + self.fields[9]] if self.fields[9] >= 0 else 0
        self.rep_size = self.data[attribute + self.fields[10]] if self.fields[10] >= 0 else self.fields[12]
        self.at = attribute + self.fields[9]
        if self.info & 0x0F > 2:
            return self.damaged(2, pos)
        width = 1 << (self.info & 0x0F)
        if self.info & 0x10 and self.rep_size:  # PC type MASK
            offset %= self.rep_size
        for _ in range(count):
            if pos + width + 1 > self.fres_end:
                return self.damaged(4, pos)
            start = self.number(pos, width)
            if start <= before or (before < 0 and start != 0):
                return self.damaged(5, pos)
            if start > offset:
                break
            found = pos + width
            info = self.data[found]
            if (info >> 5) & 3 == 3:
                return self.damaged(3, found)
            self.scanned += 1
            before = start
            pos = found + 1 + (((info >> 1) & 0x0F) << ((info >> 5) & 3))
            if pos > self.fres_end:
                return self.damaged(4, pos)
        self.row_offset = before
        return found

    def find(self, pc: int) -> int:
        """Offset of the info byte of the row that covers `pc`; else NOT_COVERED, NO_ROWS (a function without any) or BAD (the
        section is damaged there).
        """
        return self.seek(pc)

    @cython.locals(pcs="const unsigned long long[::1]", functions="long long[::1]", rows="long long[::1]")
    def find_all(self, pcs: Column, functions: Column, rows: Column) -> None:
        """For each of `pcs` the number of its function, NOT_COVERED where there is none, and what `find` returns.

        `scanned` grows by the rows that were looked at.
        """
        i: cython.Py_ssize_t
        for i in range(len(pcs)):
            rows[i] = self.seek(pcs[i])
            functions[i] = -1 if rows[i] == -1 else self.function
