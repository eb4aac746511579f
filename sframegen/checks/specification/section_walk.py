"""Walks the functions and FREs of a section, however damaged, and counts what breaks which rule. Compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    import cython
except ImportError:
    from cfi import cython_shadow as cython  # type: ignore[no-redef]

if TYPE_CHECKING:
    from cfi.columns import Bytes, Column

COMPILED: bool = cython.compiled


@cython.final
@cython.cclass
class Walk:
    """Reads nothing outside of `data`, and each FRE once, whoever shares it: time is linear in the section's size.

    A broken rule is noted by its number in rules.WALKED: `counts`, and of the first `kept` the offset in the section and the
    address of the code.
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
    kept = cython.declare("long long")
    counts = cython.declare("long long[::1]")
    offsets = cython.declare("long long[::1]")
    addresses = cython.declare("unsigned long long[::1]")
    count = cython.declare("long long")  # of the function that `attribute` has read, as all down to rep_size
    attribute_at = cython.declare("long long")
    info = cython.declare("int")
    info2 = cython.declare("int")
    rep_size = cython.declare("int")
    stored = cython.declare("long long", visibility="public")  # FREs, those of a shared block once
    claimed = cython.declare("long long", visibility="public")  # FREs, as often as functions claim them
    without_rows = cython.declare("long long", visibility="public")  # functions of some bytes
    far = cython.declare("long long", visibility="public")  # functions more than 2 GiB from the section's first byte
    wrapped = cython.declare("long long", visibility="public")  # functions on the other side of the address space's end
    divides = cython.declare("long long", visibility="public")  # functions of some bytes, repeated with a period of nothing
    divides_rows = cython.declare("long long", visibility="public")  # those of them whose FREs can be read
    shared = cython.declare("bint", visibility="public")  # some functions have one block
    rules = cython.declare("long long", visibility="public")  # different ones
    overflow = cython.declare("long long", visibility="public")  # FREs whose rule found no room
    last = cython.declare("long long")  # start of the last FRE of the block that was walked

    def __init__(
        self,
        data: Bytes,
        fields: Column,
        big: bool,
        relative: bool,
        functions: int,
        places: tuple[int, int, int],
        address: int,
        noted: tuple[int, Column, Column, Column],
    ) -> None:
        """`fields`: Layout.fields. `functions`: so many index entries lie in `data`. `places`: the index, the FRE sub-section and
        its end, in `data`. `noted`: kept, counts, offsets, addresses.
        """
        self.data = data
        self.fields = fields
        self.big = big
        self.relative = relative
        self.functions = functions
        self.index_at, self.fres_at, self.fres_end = places
        self.address = address
        self.mask = 0xFFFFFFFFFFFFFFFF
        self.kept, self.counts, self.offsets, self.addresses = noted
        self.count = self.attribute_at = 0
        self.info = self.info2 = self.rep_size = 0
        self.stored = self.claimed = self.without_rows = self.far = self.wrapped = 0
        self.divides = self.divides_rows = 0
        self.shared = False
        self.rules = self.overflow = 0
        self.last = -1

    @cython.cfunc
    @cython.exceptval(-1)
    def note(self, rule: cython.Py_ssize_t, offset: cython.longlong, address: cython.ulonglong) -> cython.int:
        if self.counts[rule] < self.kept:
            self.offsets[rule * self.kept + self.counts[rule]] = offset
            self.addresses[rule * self.kept + self.counts[rule]] = address & self.mask
        self.counts[rule] += 1
        return 0

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
    def read_attribute(self, entry: cython.longlong, block: cython.longlong) -> cython.int:
        """Of the function whose index entry and block are there; both lie in `data`."""
        at: cython.longlong = block if self.fields[4] else entry
        self.attribute_at = at + self.fields[8]
        self.count = self.number(at + self.fields[6], self.fields[7])
        self.info = self.data[at + self.fields[8]]
        self.info2 = self.data[at + self.fields[9]] if self.fields[9] >= 0 else 0
        self.rep_size = self.data[at + self.fields[10]] if self.fields[10] >= 0 else self.fields[12]
        return 0

    @cython.locals(start="unsigned long long[::1]", size="unsigned int[::1]", keys="unsigned long long[::1]")
    def index(self, start: Column, size: Column, keys: Column, default_type: int) -> int:
        """Fills each function's address and size. Those whose block can be read are put into `keys`, the block's place in the FRE
        sub-section times 2 ** 32 and the function's number; the number of them comes back.
        """
        function: cython.longlong
        entry: cython.longlong
        block: cython.longlong
        distance: cython.ulonglong
        origin: cython.ulonglong
        key: cython.ulonglong
        found: cython.Py_ssize_t = 0
        default: cython.int = default_type
        for function in range(self.functions):
            entry = self.index_at + function * self.fields[0]
            distance = self.number(entry, self.fields[1])
            if self.fields[1] == 4 and distance >> 31:
                distance -= self.fields[11]
            origin = self.address + (entry if self.relative else 0)
            start[function] = (origin + distance) & self.mask
            if ((start[function] - self.address + (self.fields[11] >> 1)) & self.mask) >> 32:
                self.far += 1
            if (start[function] < self.address) != (((start[function] - self.address) & self.mask) >> 63 != 0):
                self.wrapped += 1
            size[function] = self.number(entry + self.fields[2], 4)
            if size[function] == 0:
                self.note(3, entry, start[function])  # empty-function
            if self.fields[15] >= 0 and (self.data[entry + self.fields[15]] | self.data[entry + self.fields[15] + 1]):
                self.note(10, entry + self.fields[15], start[function])  # unused-bits
            block = self.number(entry + self.fields[3], 4)
            if self.fres_at + block + self.fields[5] > self.fres_end:
                self.note(6, entry, start[function])  # block-outside
                continue
            self.read_attribute(entry, self.fres_at + block)
            self.claimed += self.count
            if (self.info & self.fields[13]) | (self.info2 & self.fields[14]):
                self.note(10, self.attribute_at, start[function])  # unused-bits
            if self.info2 & 0x1F > 1:
                self.note(9, self.attribute_at + 1, start[function])  # fde-type
            if self.count == 0:
                self.without_rows += size[function] > 0
                if default == 0 or self.info2 & 0x1F:
                    self.note(7, entry, start[function])  # no-rows
            elif self.info & 0x0F > 2:
                self.note(8, self.attribute_at, start[function])  # fre-type
            if self.info & 0x10:
                if self.rep_size == 0:
                    self.note(11, self.attribute_at, start[function])  # mask-without-period
                    self.divides += size[function] > 0
                    self.divides_rows += size[function] > 0 and self.count > 0 and self.info & 0x0F <= 2
            elif self.rep_size and self.fields[10] >= 0:
                self.note(12, self.attribute_at, start[function])  # period-without-mask
            key = block
            keys[found] = (key << 32) + function
            found += 1
        return found

    @cython.locals(start="const unsigned long long[::1]", size="const unsigned int[::1]", order="const unsigned int[::1]")
    def neighbours(self, start: Column, size: Column, order: Column) -> None:
        """`order`: the functions as they are said to ascend; empty: as they stand in the index."""
        place: cython.longlong
        function: cython.longlong
        entry: cython.longlong
        before: cython.ulonglong = 0
        reach: cython.ulonglong = 0
        bytes_: cython.ulonglong
        for place in range(self.functions):
            function = order[place] if len(order) else place
            entry = self.index_at + function * self.fields[0]
            bytes_ = size[function]
            if place and start[function] < before:
                self.note(0, entry, start[function])  # start-order
                reach = 0
            elif place and start[function] == before:
                self.note(1, entry, start[function])  # same-start
            elif start[function] < reach:
                self.note(2, entry, start[function])  # overlap
            before = start[function]
            if reach < before + bytes_:
                reach = before + bytes_

    @cython.locals(
        start="const unsigned long long[::1]",
        size="const unsigned int[::1]",
        code_start="const unsigned long long[::1]",
        code_end="const unsigned long long[::1]",
    )
    def places(self, start: Column, size: Column, code_start: Column, code_end: Column) -> None:
        """The executable ranges ascend."""
        function: cython.longlong
        low: cython.Py_ssize_t
        high: cython.Py_ssize_t
        middle: cython.Py_ssize_t
        for function in range(self.functions):
            low = 0
            high = len(code_start)
            while low < high:
                middle = (low + high) // 2
                if code_start[middle] <= start[function]:
                    low = middle + 1
                else:
                    high = middle
            if low == 0 or start[function] >= code_end[low - 1]:
                self.note(4, self.index_at + function * self.fields[0], start[function])  # start-outside-code
            elif size[function] > code_end[low - 1] - start[function]:
                self.note(5, self.index_at + function * self.fields[0], start[function])  # end-outside-code

    @cython.locals(
        keys="const unsigned long long[::1]",
        start="const unsigned long long[::1]",
        size="const unsigned int[::1]",
        slots="unsigned int[::1]",
        rule_at="long long[::1]",
        rule_type="unsigned char[::1]",
        rule_address="unsigned long long[::1]",
        rule_uses="long long[::1]",
    )
    def blocks(
        self,
        keys: Column,
        start: Column,
        size: Column,
        slots: Column,
        rule_at: Column,
        rule_type: Column,
        rule_address: Column,
        rule_uses: Column,
    ) -> None:
        """Walks the blocks of `keys`, which ascend. Each different rule, which is an FDE type, an info byte and data words, is put
        into the four columns by the first FRE that says it: offset of its info byte, FDE type, address, number of such FREs.
        `slots`: zeros, a power of two of them, which find it again.
        """
        i: cython.Py_ssize_t
        key: cython.ulonglong
        function: cython.longlong
        block: cython.longlong
        previous: cython.longlong = -1
        count: cython.longlong = 0
        info: cython.int = 0
        rep_size: cython.int = 0
        at: cython.longlong
        end: cython.longlong = self.fres_at  # of the block before; -1 where damage hides it
        for i in range(len(keys)):
            key = keys[i]
            block = self.fres_at + (key >> 32)
            function = key - ((key >> 32) << 32)
            self.read_attribute(self.index_at + function * self.fields[0], block)
            if self.count == 0 and self.fields[5] == 0:
                continue
            if block == previous and self.count == count and self.info == info and self.rep_size == rep_size:
                if self.last > size[function]:
                    self.note(22 if self.info & 0x10 else 20, block, start[function] + self.last)  # row-beyond-masked, -function
                elif self.last == size[function] and size[function] and not self.info & 0x10:
                    self.note(19, block, start[function] + self.last)  # row-at-end
                self.shared = True
                continue
            if end >= 0 and block < end:
                self.note(13, block, start[function])  # blocks-overlap
            elif end >= 0 and block > end:
                self.note(14, end, 0)  # unused-bytes
            previous = block
            count = self.count
            info = self.info
            rep_size = self.rep_size
            end = self.rows(
                block + self.fields[5], start[function], size[function], slots, rule_at, rule_type, rule_address, rule_uses
            )
        if end >= 0:  # what follows may be padding
            for at in range(end, self.fres_end):
                if self.data[at]:
                    self.note(14, at, 0)  # unused-bytes
                    break

    @cython.cfunc
    @cython.exceptval(-9)
    @cython.locals(
        slots="unsigned int[::1]",
        rule_at="long long[::1]",
        rule_type="unsigned char[::1]",
        rule_address="unsigned long long[::1]",
        rule_uses="long long[::1]",
    )
    def rows(
        self,
        pos: cython.longlong,
        start: cython.ulonglong,
        size: cython.longlong,
        slots: Column,
        rule_at: Column,
        rule_type: Column,
        rule_address: Column,
        rule_uses: Column,
    ) -> cython.longlong:
        """Walks the FREs of the function whose attribute was read; where they end, -1 where that cannot be known."""
        row: cython.longlong
        width: cython.longlong
        value: cython.longlong
        before: cython.longlong = -1
        info: cython.int
        words_end: cython.longlong
        masked: cython.bint = self.info & 0x10
        self.last = -1
        if self.count and self.info & 0x0F > 2:
            return -1
        width = 1 << (self.info & 0x0F)
        for row in range(self.count):
            if pos + width + 1 > self.fres_end:
                self.note(15, pos, start)  # row-cut-off
                return -1
            value = self.data[pos] if width == 1 else self.number(pos, width)
            if row == 0 and value != 0:
                self.note(17, pos, start)  # first-row
            elif value <= before:
                self.note(18, pos, start + value)  # row-order
            if masked:
                if self.rep_size and value >= self.rep_size:
                    self.note(21, pos, start + value)  # row-beyond-period
                if value > size:
                    self.note(22, pos, start + value)  # row-beyond-masked
            elif value > size:
                self.note(20, pos, start + value)  # row-beyond-function
            elif value == size and size:
                self.note(19, pos, start + value)  # row-at-end
            before = value
            if self.last < value:
                self.last = value
            pos += width
            info = self.data[pos]
            if (info >> 5) & 3 == 3:
                self.note(16, pos, start + value)  # word-size
                return -1
            words_end = pos + 1 + (((info >> 1) & 0x0F) << ((info >> 5) & 3))
            if words_end > self.fres_end:
                self.note(15, pos, start + value)  # row-cut-off
                return -1
            self.stored += 1
            if words_end == pos + 1:
                if self.fields[16] == 0:
                    self.note(23, pos, start + value)  # row-without-words
            else:
                self.remember(pos, words_end, start + value, slots, rule_at, rule_type, rule_address, rule_uses)
            pos = words_end
        return pos

    @cython.cfunc
    @cython.exceptval(-1)
    @cython.locals(
        slots="unsigned int[::1]",
        rule_at="long long[::1]",
        rule_type="unsigned char[::1]",
        rule_address="unsigned long long[::1]",
        rule_uses="long long[::1]",
    )
    def remember(
        self,
        at: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        address: cython.ulonglong,
        slots: Column,
        rule_at: Column,
        rule_type: Column,
        rule_address: Column,
        rule_uses: Column,
    ) -> cython.int:
        """Counts one more use of the rule in data[at : end]."""
        fde_type: cython.int = self.info2 & 0x1F
        mask: cython.longlong = len(slots) - 1
        key: cython.longlong = fde_type
        slot: cython.Py_ssize_t
        rule: cython.Py_ssize_t
        i: cython.Py_ssize_t
        other: cython.Py_ssize_t
        for i in range(at, end):
            key = ((key ^ self.data[i]) * 0x10193) & 0x7FFFFFFF
        slot = ((key * 0x45D9F3B) >> 24) & mask
        for _ in range(64):
            if slots[slot] == 0:
                if self.rules == len(rule_at):
                    break
                rule = self.rules
                slots[slot] = rule + 1
                rule_at[rule] = at
                rule_type[rule] = fde_type
                rule_address[rule] = address & self.mask
                rule_uses[rule] = 1
                self.rules += 1
                return 0
            rule = slots[slot] - 1
            if rule_type[rule] == fde_type:
                other = rule_at[rule]
                i = 0
                while at + i < end and self.data[other + i] == self.data[at + i]:
                    i += 1
                if at + i == end:  # the info byte is the same, so that the words are as many
                    rule_uses[rule] += 1
                    return 0
            slot = (slot + 1) & mask
        self.overflow += 1
        return 0
