"""Reads the bytes of a section, and finds the row that covers an address. Compiled.

Every read is checked against the bounds. Types: section_bytes.pxd.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Protocol

try:
    import cython
except ImportError:
    from sframegen.base import cython_shadow as cython  # type: ignore[no-redef]

from sframegen.base.columns import ByteReader

if not cython.compiled:
    from sframegen.format.fre_bytes import fre_type_known, is_masked, start_width, word_size_known, words_size
if TYPE_CHECKING:
    from sframegen.base.columns import Column
    from sframegen.format.abi import Abi
    from sframegen.format.layouts import Layout, SframeHeader

COMPILED: bool = cython.compiled

# The text of each fault, by its number: compiled code reports a fault by number and offset.
FAULTS = (
    "",
    "function's FREs lie outside the FRE sub-section",
    "unknown FRE type",
    "unknown data word size",
    "FRE reaches past the end of the section",
    "row starts do not ascend from 0 within the function",
    "more FREs than bytes for them",
)
# The results of `find` without a row.
NOT_COVERED, NO_ROWS, BAD = -1, -2, -3


class Fields:
    """The fields of a Layout that compiled loops need, as C numbers. Their meaning is that of Layout."""

    def __init__(self, layout: Layout) -> None:
        self.index_size = layout.index_size
        self.start_width = layout.start_width
        self.size_at = layout.size_at
        self.fre_offset_at = layout.fre_offset_at
        self.attribute_in_block = layout.attribute_in_block
        self.attribute_size = layout.attribute_size
        self.num_fres_at = layout.num_fres_at
        self.num_fres_width = layout.num_fres_width
        self.info_at = layout.info_at
        self.info2_at = layout.info2_at
        self.rep_size_at = layout.rep_size_at
        self.default_rep_size = layout.default_rep_size
        self.info_unused = layout.info_unused
        self.info2_unused = layout.info2_unused
        self.padding_at = layout.padding_at
        self.outermost = layout.outermost


fields_of = cache(Fields)  # objects have thousands of sections


class OpenedSection(Protocol):
    """A section whose header has been read. decode.SframeSection describes its attributes."""

    @property
    def data(self) -> bytes | memoryview: ...
    @property
    def abi(self) -> Abi: ...
    @property
    def layout(self) -> Layout: ...
    @property
    def header(self) -> SframeHeader: ...
    @property
    def address(self) -> int: ...
    @property
    def relative(self) -> bool: ...
    @property
    def index_at(self) -> int: ...
    @property
    def fres_at(self) -> int: ...
    @property
    def fres_end(self) -> int: ...


class SectionBytes(ByteReader):
    """A section's bytes, the offsets of its parts (limited to `data`), and the fields of the current function.

    `read_entry` sets the offsets of the function's index entry, block and rows (`entry`, `block`, `rows_at`), `start` and `size`.
    `read_attribute` sets its number of rows, `count`, its `info`, `info2`, `rep_size`, and the offset of `info`, `attribute_at`.
    """

    def __init__(self, section: OpenedSection) -> None:
        size = len(section.data)
        ByteReader.__init__(self, section.data, section.abi.byte_order == "big")
        self.fields = fields_of(section.layout)
        self.relative = section.relative
        self.index_at = section.index_at
        self.functions = min(section.header.num_fdes, max(0, size - section.index_at) // section.layout.index_size)
        self.fres_at = section.fres_at
        self.fres_end = min(section.fres_end, size)
        self.address = section.address
        # In an expression, a literal of more than 31 bits becomes a Python object; an attribute is a C number.
        self.mask = 0xFFFFFFFFFFFFFFFF
        self.sign = 1 << 31
        self.entry = self.block = self.rows_at = self.start = self.size = 0
        self.count = self.attribute_at = 0
        self.info = self.info2 = self.rep_size = 0

    def start_of(self, function: cython.longlong) -> cython.ulonglong:
        """Return the address of a function."""
        entry: cython.Py_ssize_t = self.index_at + function * self.fields.index_size
        distance: cython.ulonglong = self.number(entry, self.fields.start_width)
        if self.fields.start_width == 4:  # signed
            distance = (distance ^ self.sign) - self.sign
        return (self.address + (entry if self.relative else 0) + distance) & self.mask

    def read_entry(self, function: cython.longlong) -> cython.bint:
        """Read a function's index entry; True if its attribute can be read, and its rows begin in the FRE sub-section."""
        entry: cython.longlong = self.index_at + function * self.fields.index_size
        size: cython.ulonglong = self.number(entry + self.fields.size_at, 4)
        block: cython.longlong = self.fres_at + self.number(entry + self.fields.fre_offset_at, 4)
        self.set_entry(function, self.start_of(function), size, block)
        return self.rows_at <= self.fres_end

    def set_entry(
        self, function: cython.longlong, start: cython.ulonglong, size: cython.ulonglong, block: cython.longlong
    ) -> cython.int:
        """Set the attributes that `read_entry` sets, to values that are already known."""
        self.entry = self.index_at + function * self.fields.index_size
        self.start = start
        self.size = size
        self.block = block
        self.rows_at = block + self.fields.attribute_size
        return 0

    def read_attribute(self) -> cython.int:
        """Read the attribute of the current function, after `read_entry`."""
        at: cython.longlong = self.block if self.fields.attribute_in_block else self.entry
        self.attribute_at = at + self.fields.info_at
        self.count = self.number(at + self.fields.num_fres_at, self.fields.num_fres_width)
        self.info = self.data[at + self.fields.info_at]
        self.info2 = self.data[at + self.fields.info2_at] if self.fields.info2_at >= 0 else 0
        self.rep_size = self.data[at + self.fields.rep_size_at] if self.fields.rep_size_at >= 0 else self.fields.default_rep_size
        return 0


class Seeker(SectionBytes):
    """Finds rows with a binary search, as an unwinder does, without decoding other rows.

    A look-up reads a logarithmic number of index entries, and the rows of one function up to the one that it looks for. A hostile
    function can claim 2 ** 32 rows; but each takes two bytes or more of the FRE sub-section, so a look-up reads at most half as
    many rows as that sub-section has bytes.

    `find` sets the number of the `function`, its `start`, `size`, `info`, `info2`, `rep_size`, and `row_offset`, the row's start in
    bytes from the function's start or the repeated block's; after BAD the number of the `fault` in FAULTS, and its offset `at`.
    """

    def __init__(self, section: OpenedSection) -> None:
        SectionBytes.__init__(self, section)
        self.function = 0
        self.row_offset = 0
        self.fault = self.at = 0
        self.scanned = 0

    def ascends(self) -> bool:
        """True if function starts ascend, as a search requires. Reads the whole index."""
        function: cython.longlong
        before: cython.ulonglong = 0
        start: cython.ulonglong
        for function in range(self.functions):
            start = self.start_of(function)
            if start < before:
                return False
            before = start
        return True

    def set_fault(self, fault: cython.int, at: cython.longlong) -> cython.Py_ssize_t:
        """Set `fault` (an index in FAULTS) and `at`; return BAD."""
        self.fault = fault
        self.at = at
        return -3  # BAD

    def seek_row(self, pc: cython.ulonglong) -> cython.Py_ssize_t:
        """Do the work of `find`, for callers in compiled code."""
        low: cython.longlong = 0
        high: cython.longlong = self.functions
        middle: cython.longlong
        readable: cython.bint
        offset: cython.ulonglong
        while low < high:  # afterwards `low` is the number of functions that begin at or before pc
            middle = (low + high) // 2
            if self.start_of(middle) <= pc:
                low = middle + 1
            else:
                high = middle
        if low == 0:
            return -1  # NOT_COVERED
        self.function = low - 1
        readable = self.read_entry(low - 1)
        offset = pc - self.start
        if offset >= self.size:
            return -1  # NOT_COVERED
        return self.find_row(offset) if readable else self.set_fault(1, self.entry)  # FREs outside the FRE sub-section

    def find_row(self, offset: cython.longlong) -> cython.Py_ssize_t:
        """Return what `find` returns, for the address `offset` bytes into the current function."""
        pos: cython.longlong = self.rows_at
        info_at: cython.longlong = -2  # NO_ROWS
        width: cython.longlong
        info: cython.int
        start: cython.longlong
        before: cython.longlong = -1
        self.read_attribute()
        self.at = self.attribute_at + 1
        if not fre_type_known(self.info):
            return self.set_fault(2, pos)  # unknown FRE type
        width = start_width(self.info)
        if is_masked(self.info) and self.rep_size:
            offset %= self.rep_size
        for _ in range(self.count):
            if pos + width + 1 > self.fres_end:
                return self.set_fault(4, pos)  # FRE reaches past the end
            start = self.data[pos] if width == 1 else self.number(pos, width)
            if start <= before or (before < 0 and start != 0):
                return self.set_fault(5, pos)  # row starts do not ascend
            if start > offset:
                break
            info_at = pos + width
            info = self.data[info_at]
            if not word_size_known(info):
                return self.set_fault(3, info_at)  # unknown data word size
            self.scanned += 1
            before = start
            pos = info_at + 1 + words_size(info)
            if pos > self.fres_end:
                return self.set_fault(4, pos)  # FRE reaches past the end
        self.row_offset = before
        return info_at

    def find(self, pc: int) -> int:
        """Return the offset of the info byte of the row that covers `pc`; else NOT_COVERED, NO_ROWS (the function has no rows) or
        BAD (the section is damaged there).
        """
        return self.seek_row(pc)

    @cython.locals(pcs="const unsigned long long[::1]", functions="long long[::1]", rows="long long[::1]")
    def find_all(self, pcs: Column, functions: Column, rows: Column) -> None:
        """Fill for each of `pcs` the number of its function, or NOT_COVERED, and the row as `find` returns it.

        `scanned` grows by the number of rows that were read.
        """
        i: cython.Py_ssize_t
        for i in range(len(pcs)):
            rows[i] = self.seek_row(pcs[i])
            functions[i] = -1 if rows[i] == -1 else self.function  # NOT_COVERED
