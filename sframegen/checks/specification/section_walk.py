"""Walks the functions and FREs of a section, even of a damaged one, and counts the breaches of each rule. Compiled.

The steps, in the order of their calls: each entry of the index by itself, the order of functions, their place in executable code,
and their blocks of FREs. Functions may share a block, so blocks are walked in the order of the section, not of functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    import cython
except ImportError:
    from sframegen.base import cython_shadow as cython  # type: ignore[no-redef]

from sframegen.base.columns import zeros
from sframegen.format.section_bytes import SectionBytes

if not cython.compiled:
    from bisect import bisect_right

    from sframegen.format.fre_bytes import (
        fde_type_known,
        fde_type_of,
        fre_type_known,
        is_masked,
        start_width,
        word_size_known,
        words_size,
    )
if TYPE_CHECKING:
    from sframegen.base.columns import Column
    from sframegen.format.decode import SframeSection

COMPILED: bool = cython.compiled


class SectionWalk(SectionBytes):
    """The walk of one section. It reads shared FREs only once, so its time is linear in the section's size.

    Breaches are counted in `counts` by the rule's index in rule_list.WALKED; for the first `kept` breaches of a rule, `offsets` has
    the offset in the section and `addresses` that of the code. Distinct rules of FREs (FDE type, info byte and data words) are
    recorded with their first FRE: offset of its info byte, FDE type, address, number of such FREs. `rules`: how many are distinct.
    """

    def __init__(self, section: SframeSection, broken: int, kept: int, rules: int) -> None:
        """`broken`: the number of rules of the specification. `rules`: the most distinct rules of FREs that are recorded."""
        SectionBytes.__init__(self, section)
        self.kept = kept
        self.counts = zeros("q", broken)
        self.offsets = zeros("q", broken * kept)
        self.addresses = zeros("Q", broken * kept)
        self.slots = zeros("I", 2 << rules.bit_length())  # a hash table of rule numbers, whose size is a power of two
        self.rule_at = zeros("q", rules)
        self.rule_type = zeros("B", rules)
        self.rule_address = zeros("Q", rules)
        self.rule_uses = zeros("q", rules)
        self.stored = self.claimed = self.without_rows = self.far = self.wrapped = 0
        self.divides_by_zero = self.divides_with_rows = 0
        self.shared = False
        self.rules = self.overflow = 0
        self.last = -1

    def count_breach(self, rule: cython.Py_ssize_t, offset: cython.longlong, address: cython.ulonglong) -> cython.int:
        """Count a breach of the rule with that index, and record where it is while there is room."""
        if self.counts[rule] < self.kept:
            self.offsets[rule * self.kept + self.counts[rule]] = offset
            self.addresses[rule * self.kept + self.counts[rule]] = address & self.mask
        self.counts[rule] += 1
        return 0

    @cython.locals(start="unsigned long long[::1]", size="unsigned int[::1]", keys="unsigned long long[::1]")
    def check_index(self, start: Column, size: Column, keys: Column, default_type: int) -> int:
        """Fill in each function's address and size, and check its index entry. For each function with a readable block, `keys` gets
        the block's offset in the FRE sub-section times 2 ** 32 plus the function's number. Return the number of keys.
        """
        function: cython.longlong
        entry: cython.longlong
        padding: cython.longlong
        key: cython.ulonglong
        readable: cython.bint
        found: cython.Py_ssize_t = 0
        default: cython.int = default_type
        for function in range(self.functions):
            readable = self.read_entry(function)
            entry = self.entry
            start[function] = self.start
            size[function] = self.size
            if ((start[function] - self.address + self.sign) & self.mask) >> 32:  # a distance of more than 32 signed bits
                self.far += 1
            # The distance, taken as a signed number, contradicts which address is lower.
            if (start[function] < self.address) != (((start[function] - self.address) & self.mask) >> 63 != 0):
                self.wrapped += 1
            if size[function] == 0:
                self.count_breach(3, entry, start[function])  # empty-function
            padding = entry + self.fields.padding_at
            if self.fields.padding_at >= 0 and (self.data[padding] | self.data[padding + 1]):
                self.count_breach(10, padding, start[function])  # unused-bits
            if not readable:
                self.count_breach(6, entry, start[function])  # block-outside
                continue
            self.read_attribute()
            self.claimed += self.count
            if (self.info & self.fields.info_unused) | (self.info2 & self.fields.info2_unused):
                self.count_breach(10, self.attribute_at, start[function])  # unused-bits
            if not fde_type_known(self.info2):
                self.count_breach(9, self.attribute_at + 1, start[function])  # fde-type
            if self.count == 0:
                self.without_rows += size[function] > 0
                if default == 0 or fde_type_of(self.info2) != 0:
                    self.count_breach(7, entry, start[function])  # no-rows
            elif not fre_type_known(self.info):
                self.count_breach(8, self.attribute_at, start[function])  # fre-type
            if is_masked(self.info):
                if self.rep_size == 0:
                    self.count_breach(11, self.attribute_at, start[function])  # mask-without-period
                    self.divides_by_zero += size[function] > 0
                    self.divides_with_rows += size[function] > 0 and self.count > 0 and fre_type_known(self.info)
            elif self.rep_size and self.fields.rep_size_at >= 0:
                self.count_breach(12, self.attribute_at, start[function])  # period-without-mask
            key = self.block - self.fres_at
            keys[found] = (key << 32) + function
            found += 1
        return found

    @cython.locals(start="const unsigned long long[::1]", size="const unsigned int[::1]", order="const unsigned int[::1]")
    def check_order(self, start: Column, size: Column, order: Column) -> None:
        """Check the order and overlaps of functions. `order`: the functions by address; empty if the index must be in order."""
        position: cython.longlong
        function: cython.longlong
        entry: cython.longlong
        start_before: cython.ulonglong = 0
        furthest_end: cython.ulonglong = 0
        bytes_: cython.ulonglong
        for position in range(self.functions):
            function = order[position] if len(order) else position
            entry = self.index_at + function * self.fields.index_size
            bytes_ = size[function]
            if position and start[function] < start_before:
                self.count_breach(0, entry, start[function])  # start-order
                furthest_end = 0
            elif position and start[function] == start_before:
                self.count_breach(1, entry, start[function])  # same-start
            elif start[function] < furthest_end:
                self.count_breach(2, entry, start[function])  # overlap
            start_before = start[function]
            if furthest_end < start_before + bytes_:
                furthest_end = start_before + bytes_

    @cython.locals(
        start="const unsigned long long[::1]", size="const unsigned int[::1]", code_start="const unsigned long long[::1]",
        code_end="const unsigned long long[::1]",
    )  # fmt: skip
    def check_executable(self, start: Column, size: Column, code_start: Column, code_end: Column) -> None:
        """Check that functions lie in the executable ranges, which ascend."""
        function: cython.longlong
        range_after: cython.Py_ssize_t
        for function in range(self.functions):
            range_after = bisect_right(code_start, start[function], 0, len(code_start))
            if range_after == 0 or start[function] >= code_end[range_after - 1]:
                self.count_breach(4, self.index_at + function * self.fields.index_size, start[function])  # start-outside-code
            elif size[function] > code_end[range_after - 1] - start[function]:
                self.count_breach(5, self.index_at + function * self.fields.index_size, start[function])  # end-outside-code

    @cython.locals(keys="const unsigned long long[::1]", start="const unsigned long long[::1]", size="const unsigned int[::1]")
    def walk_blocks(self, keys: Column, start: Column, size: Column) -> None:
        """Walk the blocks of FREs that `keys` has, in ascending order, without reading the index entries a second time."""
        number: cython.Py_ssize_t
        key: cython.ulonglong
        function: cython.longlong
        masked: cython.bint
        is_same_block: cython.bint
        block_before: cython.longlong = -1
        count_before: cython.longlong = 0
        info_before: cython.int = 0
        rep_size_before: cython.int = 0
        at: cython.longlong
        end_before: cython.longlong = self.fres_at  # -1 if damage hides it
        for number in range(len(keys)):
            key = keys[number]
            function = key - ((key >> 32) << 32)  # the lower 32 bits
            self.set_entry(function, start[function], size[function], self.fres_at + (key >> 32))
            self.read_attribute()
            if self.count == 0 and self.fields.attribute_size == 0:
                continue
            masked = is_masked(self.info)
            is_same_block = self.block == block_before and self.count == count_before
            if is_same_block and self.info == info_before and self.rep_size == rep_size_before:
                if self.last > size[function]:
                    self.count_breach(22 if masked else 20, self.block, self.start + self.last)  # row-beyond-masked, -function
                elif self.last == size[function] and self.last and not masked:
                    self.count_breach(19, self.block, self.start + self.last)  # row-at-end
                self.shared = True
                continue
            if end_before >= 0 and self.block < end_before:
                self.count_breach(13, self.block, self.start)  # blocks-overlap
            elif end_before >= 0 and self.block > end_before:
                self.count_breach(14, end_before, 0)  # unused-bytes
            block_before = self.block
            count_before = self.count
            info_before = self.info
            rep_size_before = self.rep_size
            end_before = self.walk_rows()
        if end_before >= 0:  # the remaining bytes may be padding
            for at in range(end_before, self.fres_end):
                if self.data[at]:
                    self.count_breach(14, at, 0)  # unused-bytes
                    break

    def walk_rows(self) -> cython.longlong:
        """Walk the FREs of the current function; return the offset of their end, -1 if damage hides it."""
        pos: cython.longlong = self.rows_at
        start: cython.ulonglong = self.start
        size: cython.longlong = self.size
        row: cython.longlong
        width: cython.longlong
        offset: cython.longlong
        offset_before: cython.longlong = -1
        info: cython.int
        words_end: cython.longlong
        masked: cython.bint = is_masked(self.info)
        self.last = -1
        if self.count and not fre_type_known(self.info):
            return -1
        width = start_width(self.info)
        for row in range(self.count):
            if pos + width + 1 > self.fres_end:
                self.count_breach(15, pos, start)  # row-cut-off
                return -1
            offset = self.data[pos] if width == 1 else self.number(pos, width)
            if row == 0 and offset != 0:
                self.count_breach(17, pos, start)  # first-row
            elif offset <= offset_before:
                self.count_breach(18, pos, start + offset)  # row-order
            if masked:
                if self.rep_size and offset >= self.rep_size:
                    self.count_breach(21, pos, start + offset)  # row-beyond-period
                if offset > size:
                    self.count_breach(22, pos, start + offset)  # row-beyond-masked
            elif offset > size:
                self.count_breach(20, pos, start + offset)  # row-beyond-function
            elif offset == size and size:
                self.count_breach(19, pos, start + offset)  # row-at-end
            offset_before = offset
            if self.last < offset:
                self.last = offset
            pos += width
            info = self.data[pos]
            if not word_size_known(info):
                self.count_breach(16, pos, start + offset)  # word-size
                return -1
            words_end = pos + 1 + words_size(info)
            if words_end > self.fres_end:
                self.count_breach(15, pos, start + offset)  # row-cut-off
                return -1
            self.stored += 1
            if words_end == pos + 1:
                if not self.fields.outermost:
                    self.count_breach(23, pos, start + offset)  # row-without-words
            else:
                self.record_rule(pos, words_end, start + offset)
            pos = words_end
        return pos

    def record_rule(self, at: cython.Py_ssize_t, end: cython.Py_ssize_t, address: cython.ulonglong) -> cython.int:
        """Record the rule whose info byte and data words are data[at : end], or count one more use of it."""
        fde_type: cython.int = fde_type_of(self.info2)
        mask: cython.longlong = len(self.slots) - 1
        hash_value: cython.longlong = fde_type
        slot: cython.Py_ssize_t
        rule: cython.Py_ssize_t
        length: cython.Py_ssize_t
        place: cython.Py_ssize_t
        recorded: cython.Py_ssize_t
        for place in range(at, end):  # a step like FNV-1a's, then a multiplication that mixes the upper bits
            hash_value = ((hash_value ^ self.data[place]) * 0x10193) & 0x7FFFFFFF
        slot = ((hash_value * 0x45D9F3B) >> 24) & mask
        for _ in range(64):  # slots that are tried, one after the other
            if self.slots[slot] == 0:
                if self.rules == len(self.rule_at):
                    break
                rule = self.rules
                self.slots[slot] = rule + 1
                self.rule_at[rule] = at
                self.rule_type[rule] = fde_type
                self.rule_address[rule] = address & self.mask
                self.rule_uses[rule] = 1
                self.rules += 1
                return 0
            rule = self.slots[slot] - 1
            if self.rule_type[rule] == fde_type:
                recorded = self.rule_at[rule]
                length = 0
                while at + length < end and self.data[recorded + length] == self.data[at + length]:
                    length += 1
                if at + length == end:  # both rules end here, because equal info bytes mean equal lengths
                    self.rule_uses[rule] += 1
                    return 0
            slot = (slot + 1) & mask
        self.overflow += 1
        return 0
