"""Executes call frame instructions: FDEs in, row columns out. Compiled.

A row's rules are interned: equal rules have one number, so that everything behind this looks at each distinct rule once.
The state of one row is 16 numbers: the return address column; kind, a, b for each of CFA, RA, FP, SP; the RA-signing state; offset
and size of the CFA's expression. Register and offset of the CFA outlast an expression: DW_CFA_def_cfa_register comes back to them.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from cfi.faults import MAX_REMEMBERED, MAX_RULES

try:
    import cython
except ImportError:
    from cfi import cython_shadow as cython  # type: ignore[no-redef]

if TYPE_CHECKING:
    from collections.abc import Callable

    from cfi.columns import Bytes, Column

COMPILED: bool = cython.compiled

WIDTH = 16  # numbers in a state
CACHE = 4096  # states remembered for quick recognition, by hash; so too are steps from one rule to another by a CFA offset


@cython.cclass
class Cursor:
    """Reads a section's bytes; each read is checked against `end`. A failed one sets `fault` and returns 0."""

    data = cython.declare("const unsigned char[::1]")
    pos = cython.declare("Py_ssize_t", visibility="public")
    end = cython.declare("Py_ssize_t", visibility="public")
    fault = cython.declare("int", visibility="public")
    address_size = cython.declare("int", visibility="public")
    big = cython.declare("bint")
    mask = cython.declare("unsigned long long")
    mask32 = cython.declare("unsigned long long")
    large = cython.declare("long long")
    address = cython.declare("unsigned long long")
    text_base = cython.declare("unsigned long long")
    data_base = cython.declare("unsigned long long")
    memory = cython.declare("object")

    def __init__(
        self, data: Bytes, address: int, big: bool, text_base: int, data_base: int, memory: Callable[[int], int] | None
    ) -> None:
        """`address`: where data[0] is loaded; the bases and `memory` as in CfiSection."""
        self.data = data
        self.pos = 0
        self.end = len(data)
        self.fault = 0
        self.address_size = 8
        self.big = big
        # Numbers of more than 31 bits are Python objects where they stand in an expression; as attributes they are C's.
        self.mask = 0xFFFFFFFFFFFFFFFF
        self.mask32 = 0xFFFFFFFF
        self.large = 1 << 62
        self.address = address
        self.text_base = text_base
        self.data_base = data_base
        self.memory = memory

    @cython.cfunc
    @cython.exceptval(-1)
    def unsigned(self, width: cython.int) -> cython.ulonglong:
        value: cython.ulonglong = 0
        i: cython.Py_ssize_t
        if self.end - self.pos < width:
            self.fault = 1
            return 0
        for i in range(width):
            value = value * 256 + self.data[self.pos + (i if self.big else width - 1 - i)]
        self.pos += width
        return value

    @cython.cfunc
    @cython.exceptval(-1)
    def uleb(self) -> cython.longlong:
        """Values of 56 bits and more come back as 2 ** 62: no offset or register number is that large."""
        value: cython.longlong = 0
        shift: cython.int = 0
        byte: cython.longlong = 0x80
        while byte & 0x80:
            if self.pos >= self.end:
                self.fault = 1
                return 0
            byte = self.data[self.pos]
            self.pos += 1
            if shift < 56:
                value |= (byte & 0x7F) << shift
                shift += 7
            elif byte & 0x7F:
                value = self.large
        return value

    @cython.cfunc
    @cython.exceptval(-1)
    def sleb(self) -> cython.longlong:
        """Values that need more than 56 bits come back as 2 ** 62 with their sign."""
        value: cython.longlong = 0
        shift: cython.int = 0
        byte: cython.longlong = 0x80
        one: cython.longlong = 1
        zeros: cython.bint = True  # so far behind bit 55: nothing but padding with zeros, or with ones
        ones: cython.bint = True
        while byte & 0x80:
            if self.pos >= self.end:
                self.fault = 1
                return 0
            byte = self.data[self.pos]
            self.pos += 1
            if shift < 56:
                value |= (byte & 0x7F) << shift
                shift += 7
            else:
                zeros = zeros and (byte & 0x7F) == 0
                ones = ones and (byte & 0x7F) == 0x7F
        if not (zeros or ones):
            return -self.large if byte & 0x40 else self.large  # type: ignore[no-any-return]
        return value - (one << shift) if byte & 0x40 else value

    @cython.cfunc
    @cython.exceptval(-1)
    def encoded(self, encoding: cython.int, function: cython.ulonglong) -> cython.ulonglong:
        """A pointer in a DW_EH_PE encoding; `function`: what DW_EH_PE_funcrel is relative to."""
        value: cython.ulonglong = 0
        form: cython.int = encoding & 0x0F
        base: cython.int = encoding & 0x70
        padding: cython.longlong
        field: cython.ulonglong
        if encoding == 0xFF:  # omitted
            return 0
        if base == 0x50:  # aligned: to the address size, in memory
            padding = -(self.address + self.pos) & (self.address_size - 1)
            if self.end - self.pos < padding:
                self.fault = 1
                return 0
            self.pos += padding
        field = (self.address + self.pos) & self.mask
        if form == 0x00 or form == 0x08:
            value = self.unsigned(self.address_size)
        elif form == 0x01:
            value = self.uleb()
        elif form == 0x09:
            value = self.sleb() & self.mask
        elif form == 0x02 or form == 0x0A:
            value = self.unsigned(2)
            if form == 0x0A and value >= 0x8000:
                value = (value - 0x10000) & self.mask
        elif form == 0x03 or form == 0x0B:
            value = self.unsigned(4)
            if form == 0x0B and value >> 31:
                value = (value | ~self.mask32) & self.mask
        elif form == 0x04 or form == 0x0C:
            value = self.unsigned(8)
        else:
            self.fault = 3
            return 0
        if base == 0x10:
            value += field
        elif base == 0x20:
            value += self.text_base
        elif base == 0x30:
            value += self.data_base
        elif base == 0x40:
            value += function
        elif base > 0x50:
            self.fault = 3
            return 0
        value &= self.mask
        if encoding & 0x80:
            value = self.follow(value)
        return value

    def follow(self, address: int) -> int:
        """What an indirect pointer at `address` points to."""
        if self.memory is not None:
            try:
                return self.memory(address)  # type: ignore[no-any-return]
            except ValueError:  # nothing there
                pass
        self.fault = 4
        return 0

    def read_unsigned(self, width: int) -> int:  # this and the next three: for callers in Python
        return self.unsigned(width)

    def read_uleb(self) -> int:
        return self.uleb()

    def read_sleb(self) -> int:
        return self.sleb()

    def read_pointer(self, encoding: int) -> int:
        return self.encoded(encoding, 0)

    @cython.locals(
        body="const unsigned long long[::1]",
        end="const unsigned long long[::1]",
        cie="const unsigned int[::1]",
        shapes="const unsigned char[::1]",
        start="unsigned long long[::1]",
        size="unsigned long long[::1]",
        program="unsigned long long[::1]",
    )
    def ranges(self, body: Column, end: Column, cie: Column, shapes: Bytes, start: Column, size: Column, program: Column) -> None:
        """Reads each FDE's address range, and where its instructions begin.

        `shapes`: four bytes a CIE: FDE pointer encoding, whether FDEs have augmentation data, address size, segment selector size.
        """
        fde: cython.Py_ssize_t
        shape: cython.Py_ssize_t
        encoding: cython.int
        length: cython.longlong
        for fde in range(len(body)):
            shape = 4 * cie[fde]
            encoding = shapes[shape]
            self.pos = body[fde]
            self.end = end[fde]
            self.address_size = shapes[shape + 2]
            self.unsigned(shapes[shape + 3])
            start[fde] = self.encoded(encoding, 0)
            size[fde] = self.encoded(encoding & 0x07, 0)  # the same width, unsigned, no base
            if shapes[shape + 1] and self.fault == 0:
                length = self.uleb()
                if length > self.end - self.pos:
                    self.fault = 1
                self.pos += length if self.fault == 0 else 0
            if self.fault:
                return
            program[fde] = self.pos


@cython.final
@cython.cclass
class Machine(Cursor):
    """Runs FDEs one after the other; `rules` grows by the distinct states met, 16 numbers each."""

    rules: list[tuple[int, ...]]
    numbers: dict[bytes, int]
    key: array[int]
    no_rows: array[int]
    opcodes = cython.declare("const unsigned char[::1]")
    state = cython.declare("long long[::1]")
    cies = cython.declare("const long long[::1]")
    initial = cython.declare("long long[::1]")
    initial_at = cython.declare("Py_ssize_t")
    remembered = cython.declare("long long[::1]")
    cached_state = cython.declare("long long[::1]")
    cached_rule = cython.declare("int[::1]")
    step_from = cython.declare("int[::1]")
    step_offset = cython.declare("long long[::1]")
    step_to = cython.declare("int[::1]")
    fp = cython.declare("long long")
    sp = cython.declare("long long")
    ra = cython.declare("long long")
    code_factor = cython.declare("long long")
    data_factor = cython.declare("long long")
    encoding = cython.declare("int")
    block_base = cython.declare("long long")
    block = cython.declare("long long")

    def start(
        self,
        opcodes: Bytes,
        fp: int,
        sp: int,
        block_base: int,
        cies: Column,
        rules: list[tuple[int, ...]],
        numbers: dict[bytes, int],
    ) -> None:
        """Runs all CIEs' initial instructions: what their FDEs begin with and DW_CFA_restore goes back to.

        `opcodes`: cfi.opcodes.PROGRAM. `cies`: seven numbers each: offset of the instructions, their end, return address column,
        code and data alignment factors, pointer encoding, address size. `rules` and `numbers` are shared by all sections of a file,
        as are expression offsets, which count from `block_base` for this section.
        """
        cie: cython.Py_ssize_t
        count: cython.Py_ssize_t = len(cies) // 7
        i: cython.Py_ssize_t
        self.opcodes = opcodes
        self.fp = fp
        self.sp = sp
        self.block_base = block_base
        self.cies = cies
        self.rules = rules
        self.numbers = numbers
        self.key = array("q", bytes(8 * WIDTH))
        self.no_rows = array("I")
        self.state = self.key
        self.initial = array("q", bytes(8 * WIDTH * (count + 1)))
        self.remembered = array("q", bytes(8 * WIDTH * MAX_REMEMBERED))
        self.cached_state = array("q", bytes(8 * WIDTH * CACHE))
        self.cached_rule = array("i", [-1]) * CACHE
        self.step_from = array("i", [-1]) * CACHE
        self.step_offset = array("q", bytes(8 * CACHE))
        self.step_to = array("i", bytes(4 * CACHE))
        for cie in range(count):
            self.enter(cie)
            self.pos = self.cies[7 * cie]
            self.end = self.cies[7 * cie + 1]
            self.state[0] = self.ra
            self.execute(0, 0, self.no_rows, self.no_rows, 0)
            if self.fault:
                return
            for i in range(16):
                self.initial[self.initial_at + i] = self.state[i]

    @cython.cfunc
    @cython.exceptval(-1)
    def enter(self, cie: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Makes a CIE the current one and its initial state the state."""
        i: cython.Py_ssize_t
        self.ra = self.cies[7 * cie + 2]
        self.code_factor = self.cies[7 * cie + 3]
        self.data_factor = self.cies[7 * cie + 4]
        self.encoding = self.cies[7 * cie + 5]
        self.address_size = self.cies[7 * cie + 6]
        self.initial_at = 16 * cie
        for i in range(16):
            self.state[i] = self.initial[self.initial_at + i]
        return cie

    @cython.locals(
        start="const unsigned long long[::1]",
        size="const unsigned long long[::1]",
        program="const unsigned long long[::1]",
        end="const unsigned long long[::1]",
        cie="const unsigned int[::1]",
        first_row="unsigned int[::1]",
        row_start="unsigned int[::1]",
        row_rule="unsigned int[::1]",
    )
    def run(
        self,
        fde: cython.Py_ssize_t,
        start: Column,
        size: Column,
        program: Column,
        end: Column,
        cie: Column,
        first_row: Column,
        row_start: Column,
        row_rule: Column,
        rows: cython.longlong,
    ) -> int:
        """Runs FDEs from `fde` on while their rows fit into `row_start` and `row_rule`; returns the first FDE not run, or faulty.

        first_row[f + 1] is where the rows of FDE f end, counted from `rows`, the number of those before this call. An FDE makes at
        most one row a byte, and one; none if it is empty or too large for SFrame's 32-bit sizes.
        """
        room: cython.Py_ssize_t = len(row_start)
        used: cython.Py_ssize_t = 0
        limit: cython.ulonglong
        while fde < len(start):
            self.pos = program[fde]
            self.end = end[fde]
            if used + self.end - self.pos + 1 > room:
                break
            self.enter(cie[fde])
            limit = 0 if size[fde] >> 32 else size[fde]
            used = self.execute(start[fde], limit, row_start, row_rule, used)
            if self.fault:
                break
            first_row[fde + 1] = rows + used
            fde += 1
        return fde

    @cython.cfunc
    @cython.exceptval(-1)
    def operand(self, kind: cython.int, low: cython.longlong) -> cython.longlong:
        value: cython.ulonglong
        length: cython.longlong
        if kind == 0:  # NONE
            return 0
        if kind == 11:  # LOW6
            return low
        if kind == 9:  # ULEB
            return self.uleb()
        if kind == 10:  # SLEB
            return self.sleb()
        if kind <= 8:  # U1 U2 U4 U8
            value = self.unsigned(kind)
            return self.large if value >> 62 else value
        length = self.uleb()  # BLOCK
        if length > self.end - self.pos:
            self.fault = 1
            return 0
        self.block = self.block_base + self.pos
        self.pos += length
        return length

    @cython.cfunc
    @cython.exceptval(-1)
    def scaled(self, value: cython.longlong, factor: cython.int) -> cython.longlong:
        """An offset operand in bytes; what is beyond 32 bits before or after the scaling comes back as 2 ** 62."""
        if value >> 31 != 0 and value >> 31 != -1:
            return self.large  # type: ignore[no-any-return]
        if factor != 1:  # stored as factor + 1
            value *= self.data_factor * (factor - 1)
        return self.large if value >> 31 != 0 and value >> 31 != -1 else value

    @cython.cfunc
    @cython.exceptval(-1)
    def slot(self, register: cython.longlong) -> cython.Py_ssize_t:
        """Where a register's rule stands in the state; 0 for those that are dropped."""
        if register == self.ra:
            return 4
        if register == self.fp:
            return 7
        if register == self.sp:
            return 10
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    @cython.locals(row_start="unsigned int[::1]", row_rule="unsigned int[::1]")
    def execute(
        self, start: cython.ulonglong, size: cython.ulonglong, row_start: Column, row_rule: Column, rows: cython.Py_ssize_t
    ) -> cython.Py_ssize_t:
        """Runs instructions pos .. end and writes the rows of [start, start + size); nothing is written where size is 0 (a CIE)."""
        first: cython.Py_ssize_t = rows
        here: cython.ulonglong = 0  # the row in the making holds from start + here
        target: cython.ulonglong
        byte: cython.int
        low: cython.longlong
        entry: cython.Py_ssize_t
        action: cython.int
        a: cython.longlong
        b: cython.longlong
        at: cython.Py_ssize_t
        i: cython.Py_ssize_t
        depth: cython.Py_ssize_t = 0
        rule: cython.longlong
        known: cython.longlong = -1  # the state's rule number, while it has not changed
        step: cython.Py_ssize_t = -1  # the place of a step to be remembered: since rule `before` only the CFA's offset has changed
        before: cython.longlong = 0
        while self.pos < self.end:
            byte = self.data[self.pos]
            self.pos += 1
            low = byte & 0x3F
            if byte >= 0x80 and self.slot(low) == 0:  # DW_CFA_offset and DW_CFA_restore of registers that nobody asks for: most
                if byte < 0xC0:
                    if self.pos < self.end and self.data[self.pos] < 0x80:
                        self.pos += 1
                    else:
                        self.uleb()
                        if self.fault:
                            return rows
                continue
            entry = 5 * (byte & 0xC0 if byte & 0xC0 else byte)
            action = self.opcodes[entry]
            if action == 3:  # SET_LOC
                target = (self.encoded(self.encoding, start) - start) & self.mask
                a = 0
                b = 0
            else:
                target = here
                a = self.operand(self.opcodes[entry + 1], low)
                b = self.operand(self.opcodes[entry + 2], low)
            if self.fault:
                return rows
            if action == 2:  # ADVANCE
                # At most 2 ** 32 * 2 ** 24; further is past the end of any function that SFrame can describe.
                target = here + (self.mask32 if a >> 32 else a) * self.code_factor
            if action == 2 or action == 3:
                if size == 0:
                    continue
                if target < here or target >> 63:
                    self.fault = 7
                    return rows
                if target == here:
                    continue
                rule = known if known >= 0 else self.intern()
                known = rule
                if step >= 0:
                    self.step_from[step] = before
                    self.step_offset[step] = self.state[3]
                    self.step_to[step] = rule
                    step = -1
                if rows == first or row_rule[rows - 1] != rule:
                    row_start[rows] = here
                    row_rule[rows] = rule
                    rows += 1
                here = target
                if here >= size:
                    return rows
                continue
            if action == 1:  # NOP
                continue
            if action == 10 and self.state[1] == 5 and known >= 0:  # DEF_CFA_OFFSET alone
                self.state[3] = self.scaled(b, self.opcodes[entry + 4])
                step = (known * 31 + self.state[3]) & 4095
                if self.step_from[step] == known and self.step_offset[step] == self.state[3]:
                    known = self.step_to[step]
                    step = -1
                else:
                    before = known
                    known = -1
                continue
            known = -1
            step = -1
            if action == 4:  # SET_RULE
                at = self.slot(a)
                if at:
                    self.state[at] = self.opcodes[entry + 3]
                    if self.opcodes[entry + 2] == 13:  # a block
                        self.state[at + 1] = self.block
                        self.state[at + 2] = b
                    else:
                        self.state[at + 1] = self.scaled(b, self.opcodes[entry + 4])
                        self.state[at + 2] = 0
            elif action == 5:  # RESTORE
                at = self.slot(a)
                if at:
                    for i in range(at, at + 3):
                        self.state[i] = self.initial[self.initial_at + i]
            elif action == 6:  # REMEMBER_STATE
                if depth == 64:
                    self.fault = 6
                    return rows
                for i in range(16):
                    self.remembered[depth * 16 + i] = self.state[i]
                depth += 1
            elif action == 7:  # RESTORE_STATE
                if depth == 0:
                    self.fault = 5
                    return rows
                depth -= 1
                for i in range(16):
                    self.state[i] = self.remembered[depth * 16 + i]
            elif action == 8:  # DEF_CFA
                self.state[1] = 5
                self.state[2] = a
                self.state[3] = self.scaled(b, self.opcodes[entry + 4])
            elif action == 9:  # DEF_CFA_REGISTER
                self.state[1] = 5
                self.state[2] = a
            elif action == 10:  # DEF_CFA_OFFSET
                self.state[3] = self.scaled(b, self.opcodes[entry + 4])
            elif action == 11:  # DEF_CFA_EXPRESSION
                self.state[1] = 7
                self.state[14] = self.block
                self.state[15] = b
            elif action == 12:  # NEGATE_RA_STATE
                self.state[13] ^= 1
            elif action == 13:  # NEGATE_RA_STATE_WITH_PC
                self.state[13] ^= 2
            else:
                self.pos -= 1
                self.fault = 2
                return rows
        if here < size:
            rule = known if known >= 0 else self.intern()
            if rows == first or row_rule[rows - 1] != rule:
                row_start[rows] = here
                row_rule[rows] = rule
                rows += 1
        return rows

    @cython.cfunc
    @cython.exceptval(-1)
    def intern(self) -> cython.longlong:
        """The number of the rule that the state is."""
        key: cython.longlong = 0
        i: cython.Py_ssize_t
        slot: cython.Py_ssize_t
        for i in range(16):
            key = ((key ^ (self.state[i] & 0x7FFFFFFF)) * 0x1000193) & 0x7FFFFFFF
        slot = (key ^ (key >> 16)) & 4095
        if self.cached_rule[slot] >= 0:
            i = 0
            while i < 16 and self.cached_state[slot * 16 + i] == self.state[i]:
                i += 1
            if i == 16:
                return self.cached_rule[slot]  # type: ignore[no-any-return]
        rule: cython.longlong = self.register()
        self.cached_rule[slot] = rule
        for i in range(16):
            self.cached_state[slot * 16 + i] = self.state[i]
        return rule

    def register(self) -> int:
        """The same, by the dictionary of all rules: where the cache does not know it."""
        key = self.key.tobytes()  # bytes: their hash is keyed, hostile states cannot be made to collide
        number = self.numbers.get(key)
        if number is None:
            number = len(self.rules)
            self.numbers[key] = number
            self.rules.append(tuple(self.key))
            if number >= MAX_RULES:
                self.fault = 8
        return number
