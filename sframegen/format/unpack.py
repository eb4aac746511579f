"""Reads all functions and rows of one or more sections into columns. Compiled; decode.Decoder calls it, in this order.

`read_index` reads the function index, `read_rows` finds the start and the bytes of each row, and `number_all` gives equal kinds of
functions the same number, and rows with equal bytes the same rule, whose numbers a Numbering decides. Every read is checked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

try:
    import cython
except ImportError:
    from sframegen.base import cython_shadow as cython  # type: ignore[no-redef]

from sframegen.base.columns import zeros
from sframegen.format.section_bytes import SectionBytes

if not cython.compiled:
    from sframegen.format.fre_bytes import (
        fde_type_of,
        fre_type_known,
        is_masked,
        start_width,
        without_fre_type,
        word_size_known,
        words_size,
    )
if TYPE_CHECKING:
    from sframegen.format.columns import Functions
    from sframegen.format.section_bytes import OpenedSection

COMPILED: bool = cython.compiled

FDE_TYPES = [bytes([number]) for number in range(32)]


class Numbering(Protocol):
    """Numbers kinds and rules. The dictionaries have those found so far; the methods give the next number to a new one.

    Keys of `kinds`: info without the FRE type, info2 and rep_size in one number. Keys of `rules`: the FDE type as a byte, then the
    row's info byte and data words.
    """

    @property
    def kinds(self) -> dict[int, int]: ...

    @property
    def rules(self) -> dict[bytes, int]: ...

    def new_kind(self, key: int, block_at: int) -> int:
        """Return the number of a new kind. `key`: as in `kinds`. `block_at`: offset of the function's rows."""

    def new_rule(self, fde_type: int, row_at: int) -> int:
        """Return the number of a new rule: that of the row whose info byte is at `row_at`."""


class Unpacker(SectionBytes):
    """Reads the functions and rows of one section after the other into columns that all sections share.

    Objects have thousands of small sections, and making columns for each would take longer than reading it. `functions` and `rows`
    count those of the current section; `first` and `first_row` are the indexes of the first ones in the columns. If the section
    cannot be read, `fault` is an index in FAULTS, and `at` an offset. The next section overwrites it, unless `keep` is called.
    """

    def __init__(self, section: OpenedSection, numbering: Numbering, columns: Functions) -> None:
        self.numbering = numbering
        self.use(columns)
        self.open(section, numbering)

    def use(self, columns: Functions) -> None:
        """Fill these columns from now on, from their beginning."""
        functions, rows = len(columns.start), len(columns.row_start)
        slots = 16
        while slots < 0x1000 and slots < rows:  # small sections get few slots, because making them takes time
            slots *= 2
        self.columns = columns
        self.first = self.first_row = 0
        self.attribute, self.block_at, self.row_at = zeros("B", 3 * functions), zeros("Q", functions), zeros("I", rows)
        # A cache of rules by a hash of the row's bytes, because a look-up in `rules` creates a Python object for each row.
        self.slot_mask = slots - 1
        self.slot_bytes, self.slot_type, self.slot_rule = zeros("B", 16 * slots), zeros("B", slots), zeros("I", slots)

    def open(self, section: OpenedSection, numbering: Numbering) -> None:
        """Make a section the current one."""
        SectionBytes.__init__(self, section)
        self.view = section.data
        self.fault = self.at = self.rows = 0
        if numbering is not self.numbering:
            self.numbering = numbering
            self.slot_type = zeros("B", len(self.slot_type))

    def keep(self) -> None:
        """Keep the current section in the columns; the next one is stored after it."""
        self.first += self.functions
        self.first_row += self.rows

    def set_fault(self, fault: cython.int, at: cython.longlong) -> cython.int:
        self.fault = fault
        self.at = at
        return 0

    @cython.locals(
        start="unsigned long long[::1]", size="unsigned int[::1]", attribute="unsigned char[::1]", first_row="unsigned int[::1]",
        block_at="unsigned long long[::1]",
    )  # fmt: skip
    def read_index(self) -> None:
        """Read each function's index entry, 3 bytes of its attribute (`attribute`), and the offset of its rows (`block_at`).

        The columns have room for the functions.
        """
        function: cython.Py_ssize_t
        first: cython.Py_ssize_t = self.first
        row_count: cython.longlong = self.first_row
        start = self.columns.start
        size = self.columns.size
        first_row = self.columns.first_row
        attribute = self.attribute
        block_at = self.block_at
        for function in range(self.functions):
            if not self.read_entry(function):
                self.set_fault(1, self.entry)  # FREs outside the FRE sub-section
                return
            start[first + function] = self.start
            size[first + function] = self.size
            self.read_attribute()
            # Functions can share blocks, so there may be more rows than bytes; decode.py limits their number, `rows`.
            first_row[first + function] = row_count
            row_count += self.count
            if row_count >> 32:
                self.set_fault(6, self.entry)  # more FREs than bytes for them
                return
            attribute[function * 3] = self.info
            attribute[function * 3 + 1] = self.info2
            attribute[function * 3 + 2] = self.rep_size
            block_at[function] = self.rows_at
        first_row[first + self.functions] = row_count
        self.rows = row_count - self.first_row

    @cython.locals(
        size="const unsigned int[::1]", attribute="const unsigned char[::1]", first_row="const unsigned int[::1]",
        block_at="const unsigned long long[::1]", row_start="unsigned int[::1]", row_at="unsigned int[::1]",
    )  # fmt: skip
    def read_rows(self) -> None:
        """Read every row's start, and the offset of its info byte in the section, after `read_index`.

        The columns have room for the rows.
        """
        function: cython.Py_ssize_t
        row: cython.Py_ssize_t
        pos: cython.Py_ssize_t
        width: cython.Py_ssize_t
        info: cython.int
        start: cython.longlong
        previous_start: cython.longlong
        limit: cython.longlong
        first: cython.Py_ssize_t = self.first
        base: cython.Py_ssize_t = self.first_row
        size = self.columns.size
        first_row = self.columns.first_row
        row_start = self.columns.row_start
        attribute = self.attribute
        block_at = self.block_at
        row_at = self.row_at
        for function in range(self.functions):
            pos = block_at[function]
            info = attribute[function * 3]
            if not fre_type_known(info):
                self.set_fault(2, pos)  # unknown FRE type
                return
            width = start_width(info)
            previous_start = -1
            # A row at the very end covers nothing: GNU as 2.47 writes one for a directive after a function's last instruction.
            limit = size[first + function]
            if is_masked(info):  # rows repeat every rep_size bytes
                limit = attribute[function * 3 + 2]
            for row in range(first_row[first + function], first_row[first + function + 1]):
                if pos + width + 1 > self.fres_end:
                    self.set_fault(4, pos)  # FRE reaches past the end
                    return
                start = self.data[pos] if width == 1 else self.number(pos, width)
                if start <= previous_start or (previous_start < 0 and start != 0) or start > limit:
                    self.set_fault(5, pos)  # row starts do not ascend
                    return
                previous_start = start
                row_start[row] = start
                pos += width
                info = self.data[pos]
                if not word_size_known(info):
                    self.set_fault(3, pos)  # unknown data word size
                    return
                row_at[row - base] = pos
                pos += 1 + words_size(info)
                if pos > self.fres_end:
                    self.set_fault(4, pos)  # FRE reaches past the end
                    return

    @cython.locals(
        attribute="const unsigned char[::1]", first_row="const unsigned int[::1]", row_at="const unsigned int[::1]",
        kind="unsigned short[::1]", row_rule="unsigned int[::1]", slot_bytes="unsigned char[::1]", slot_type="unsigned char[::1]",
        slot_rule="unsigned int[::1]",
    )  # fmt: skip
    def number_all(self) -> None:
        """Fill the columns with the numbers of kinds and rules, after `read_rows`."""
        function: cython.Py_ssize_t
        row: cython.Py_ssize_t
        at: cython.Py_ssize_t
        info: cython.int
        fde_type: cython.int
        key: cython.int
        end: cython.Py_ssize_t
        i: cython.Py_ssize_t
        slot: cython.Py_ssize_t = 0
        slot_at: cython.Py_ssize_t = 0
        is_cacheable: cython.bint
        row_hash: cython.longlong
        first: cython.Py_ssize_t = self.first
        base: cython.Py_ssize_t = self.first_row
        rule_key: bytes
        view = self.view
        numbering = self.numbering
        kinds: dict[int, int] = numbering.kinds
        rules: dict[bytes, int] = numbering.rules
        type_bytes = FDE_TYPES
        attribute = self.attribute
        first_row = self.columns.first_row
        row_at = self.row_at
        kind = self.columns.kind
        row_rule = self.columns.row_rule
        slot_bytes = self.slot_bytes
        slot_type = self.slot_type
        slot_rule = self.slot_rule
        for function in range(self.functions):
            fde_type = fde_type_of(attribute[function * 3 + 1])
            key = without_fre_type(attribute[function * 3]) << 16 | attribute[function * 3 + 1] << 8 | attribute[function * 3 + 2]
            number = kinds.get(key)
            if number is None:
                number = kinds[key] = numbering.new_kind(key, self.block_at[function])
            kind[first + function] = number
            for row in range(first_row[first + function], first_row[first + function + 1]):
                at = row_at[row - base]
                info = self.data[at]
                end = at + 1 + words_size(info)
                is_cacheable = cython.compiled and end - at <= 16  # the bytes of a slot
                if is_cacheable:
                    row_hash = fde_type
                    for i in range(at, end):
                        row_hash = ((row_hash ^ self.data[i]) * 0x10193) & 0x7FFFFFFF
                    slot = (row_hash ^ (row_hash >> 12)) & self.slot_mask
                    if slot_type[slot] == fde_type + 1:
                        slot_at = slot * 16
                        i = at
                        while i < end and slot_bytes[slot_at] == self.data[i]:
                            slot_at += 1
                            i += 1
                        if i == end:  # equal info bytes mean equal lengths
                            row_rule[row] = slot_rule[slot]
                            continue
                rule_key = type_bytes[fde_type] + bytes(view[at:end])
                number = rules.get(rule_key)
                if number is None:
                    number = rules[rule_key] = numbering.new_rule(fde_type, at)
                row_rule[row] = number
                if is_cacheable:
                    slot_type[slot] = fde_type + 1
                    slot_rule[slot] = number
                    for i in range(end - at):
                        slot_bytes[slot * 16 + i] = self.data[at + i]
