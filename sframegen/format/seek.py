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
NOT_COVERED, OUTERMOST, BAD = -1, -2, -3


@cython.final
@cython.cclass
class Seeker:
    """A sorted section, its header checked by the caller. Every read is fenced.

    A look-up costs the logarithm of the functions, and the rows of one.
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
    info = cython.declare("int")
    fde_type = cython.declare("int", visibility="public")
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
        self.info = 0
        self.fde_type = 0
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

    @cython.cfunc
    @cython.exceptval(-9)
    def seek(self, pc: cython.ulonglong) -> cython.longlong:
        low: cython.longlong = 0
        high: cython.longlong = self.functions
        middle: cython.longlong
        entry: cython.longlong
        attribute: cython.longlong
        pos: cython.longlong
        found: cython.longlong = -2
        count: cython.longlong
        width: cython.longlong
        period: cython.ulonglong
        offset: cython.ulonglong
        while low < high:  # the number of functions that begin at or before pc
            middle = (low + high) // 2
            if self.start_of(middle) <= pc:
                low = middle + 1
            else:
                high = middle
        if low == 0:
            return -1
        entry = self.index_at + (low - 1) * self.fields[0]
        offset = pc - self.start_of(low - 1)
        if offset >= self.number(entry + self.fields[2], 4):
            return -1
        pos = self.fres_at + self.number(entry + self.fields[3], 4)
        attribute = pos if self.fields[4] else entry
        pos += self.fields[5]
        if pos > self.fres_end:
            return -3
        count = self.number(attribute + self.fields[6], self.fields[7])
        self.info = self.data[attribute + self.fields[8]]
        self.fde_type = self.data[attribute + self.fields[9]] & 0x1F if self.fields[9] >= 0 else 0
        if self.info & 0x10:  # PC type MASK
            period = self.data[attribute + self.fields[10]] if self.fields[10] >= 0 else self.fields[12]
            if period == 0:
                return -3
            offset %= period
        width = 1 << (self.info & 0x0F)
        if width > 4:
            return -3
        for _ in range(count):
            if pos + width + 1 > self.fres_end:
                return -3
            if self.number(pos, width) > offset:
                break
            self.scanned += 1
            found = pos + width
            pos = found + 1 + (((self.data[found] >> 1) & 0x0F) << ((self.data[found] >> 5) & 3))
            if pos > self.fres_end:
                return -3
        return found

    def find(self, pc: int) -> int:
        """Offset of the info byte of the row that covers `pc`; its FDE type is then in `fde_type`. Else NOT_COVERED, OUTERMOST (a
        function without rows) or BAD (the section is damaged there).
        """
        return self.seek(pc)

    @cython.locals(pcs="const unsigned long long[::1]", found="long long[::1]")
    def find_all(self, pcs: Column, found: Column) -> None:
        """The same for many; `scanned` counts the rows that were looked at."""
        i: cython.Py_ssize_t
        for i in range(len(pcs)):
            found[i] = self.seek(pcs[i])
