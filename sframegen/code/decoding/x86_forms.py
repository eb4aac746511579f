"""What was said of x86-64 instructions, by their forms: capstone is asked once, not for each of a form. Compiled.

The form of an instruction is all of it but displacement and immediate: prefixes, opcode, ModRM, SIB. It determines the length and
the registers. Forms of common instructions are taken for one if they differ only in registers other than SP and FP, which nobody
follows. What is kept was always said by capstone: this module reads only as much of an instruction as shows where its form ends,
and what it does not know, or knows another length of, is not kept.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

try:
    import cython
except ImportError:
    from cfi import cython_shadow as cython  # type: ignore[no-redef]

if TYPE_CHECKING:
    from cfi.columns import Bytes

COMPILED: bool = cython.compiled

WAYS = 4  # instructions whose keys lead to the same place; one more takes the place of another
PLACES = 1 << 15

# What is kept of a form. The form, which names the registers, says alone whether an instruction has effects at all; which they are
# may depend on all bytes. The `number` of a kind is a distance from the end of the instruction, or a constant.
UNKNOWN = 0
PLAIN = 1  #: nothing that matters
BY_BYTES = 2  #: all bytes determine what it does
EXACT = 3  #: kept by all bytes that matter
TARGET = 4  #: its immediate leads to the target
SLOT = 5  #: its displacement leads to the slot
RELATIVE = 6  #: takes the address that its displacement leads to
CONSTANT = 7  #: takes its immediate

# What follows an opcode: ModRM (16), and an immediate.
BYTE, FULL, TARGET_4, LONG, WORD, ENTER, TEST_BYTE, TEST_FULL = 1, 2, 3, 4, 5, 6, 7, 8
MODRM = 16
NOT_READ = 255

# Registers that are not SP or FP do not matter: those in ModRM and SIB; but where ModRM's `reg` belongs to the opcode; and where
# ModRM's `rm` may, if it names a register.
ALL, BUT_REG, IN_MEMORY = 1, 2, 3


def _table(*rows: tuple[int, str]) -> bytes:
    """Return a table of 256 opcodes. A row has what follows, and ranges of opcodes."""
    return _marked(NOT_READ, *rows)


def _marked(others: int, *rows: tuple[int, str]) -> bytes:
    table = bytearray([others]) * 256
    for follows, ranges in rows:
        for part in ranges.split():
            first, _, last = part.partition("-")
            for opcode in range(int(first, 16), int(last or first, 16) + 1):
                table[opcode] = follows
    return bytes(table)


ARITHMETIC = range(0, 0x40, 8)  # eight instructions in six encodings each
ONE_BYTE = _table(
    (MODRM, " ".join(f"{first:x}-{first + 3:x}" for first in ARITHMETIC) + " 63 84-8f d0-d3 d8-df fe ff"),
    (BYTE, " ".join(f"{first + 4:x}" for first in ARITHMETIC) + " 6a 70-7f a8 b0-b7 cd e0-e7 eb"),
    (FULL, " ".join(f"{first + 5:x}" for first in ARITHMETIC) + " 68 a9"),
    (MODRM | BYTE, "6b 80 83 c0 c1 c6"),
    (MODRM | FULL, "69 81 c7"),
    (0, "50-5f 6c-6f 90-99 9b-9f a4-a7 aa-af c3 c9 cb cc cf d7 ec-ef f1 f4 f5 f8-fd"),
    (LONG, "b8-bf"),
    (WORD, "c2 ca"),
    (ENTER, "c8"),
    (TARGET_4, "e8 e9"),
    (MODRM | TEST_BYTE, "f6"),
    (MODRM | TEST_FULL, "f7"),
)
AFTER_0F = _table(
    (MODRM, "0-3 d 10-1f 28-2f 40-6f 74-76 7c-7f 90-9f a3 a5 ab ad-b9 bb-c1 c3 c7 d0-fe"),
    (MODRM | BYTE, "70-73 a4 ac ba c2 c4-c6"),
    (0, "5-9 b 30-35 37 77 a0-a2 a8-aa c8-cf"),
    (TARGET_4, "80-8f"),
)
ALIKE = _marked(
    0,
    (ALL, " ".join(f"{first:x}-{first + 3:x}" for first in ARITHMETIC) + " 63 69 6b 84-85 88-8b 8d"),
    (BUT_REG, "80-81 83 c0-c1 d0-d3 f6-f7"),
    (IN_MEMORY, "c6-c7"),
)
ALIKE_AFTER_0F = _marked(0, (ALL, "10-17 28-2f 40-6f 70 74-76 7e-7f a3-a5 ab-ad af b3 b6-b8 bb-bf c2-c6 d0-fe"), (BUT_REG, "90-9f"))


class Said:
    """What was said of an instruction, as the numbers of Reader.

    `take`: how such an instruction may take an address or a constant, as in Take, and
    `took`: this one took `value`, which is also the target or the slot; `distance`: from the end of the instruction to `value`.
    """

    def __init__(self) -> None:
        self.what = self.value = self.distance = 0
        self.took = False
        self.take = 0


class Forms:
    """What was said, by forms. x86_forms.pxd has the types.

    After `find`: `size` in bytes, `what`, and the `number` of some kinds.
    """

    def __init__(self) -> None:
        self.data: Bytes = b""
        self.length = 0
        self.one_byte = ONE_BYTE
        self.after_0f = AFTER_0F
        self.low = array("Q", bytes(8 * PLACES))
        self.high = array("Q", bytes(8 * PLACES))
        self.whats = array("I", bytes(4 * PLACES))
        self.kinds = bytearray(PLACES)
        self.mask = 0xFFFFFFFFFFFFFFFF
        self.spread = 0x9E3779B97F4A7C15
        self.alike = ALIKE
        self.alike_after_0f = ALIKE_AFTER_0F
        self.key_low = self.key_high = self.left_out_low = self.left_out_high = 0
        self.rex = self.rex_at = self.registers = self.exact_size = 0
        self.base = self.turn = self.form_size = self.immediate = 0
        self.by_pointer = self.in_memory = self.is_wide = self.is_narrow = self.has_many = False
        self.size = 0
        self.what = self.number = 0

    def begin(self, data: Bytes) -> int:
        """Instructions are in these bytes from now on."""
        self.data = data
        self.length = len(data)
        return 0

    def find(self, pos: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.int:
        """The kind of the instruction at `pos`, UNKNOWN if that is not known. `end`: after the bytes that may be its own."""
        place: cython.Py_ssize_t
        kind: cython.int
        if not self.parse(pos, end):
            return 0
        place = self.place(pos, self.form_size, 1)
        if place >= 0 and self.kinds[place] == 2:  # BY_BYTES
            place = self.place(pos, self.exact_size, 2)
        if place < 0:
            return 0
        kind = self.kinds[place]
        self.what = self.whats[place]
        if kind == 4:  # TARGET
            self.number = self.displacement(pos + self.size, self.immediate)
        elif kind == 5 or kind == 6:  # SLOT, RELATIVE
            self.number = self.displacement(pos + self.size, 4)
            if self.number == 0:  # `[rip]` is another text
                return 0
        elif kind == 7:  # CONSTANT
            self.number = self.constant(pos + self.size)
        return kind

    def keep(self, pos: cython.Py_ssize_t, end: cython.Py_ssize_t, size: cython.Py_ssize_t, said: Said) -> cython.int:
        """Keep what was said of the instruction of `size` bytes at `pos`."""
        if not self.parse(pos, end) or self.size != size:
            return 0
        after: cython.Py_ssize_t = pos + size
        if said.what & 8:  # DIRECT
            if self.immediate and not self.is_narrow and self.displacement(after, self.immediate) == said.distance:
                self.put_form(pos, 4, said.what)  # TARGET
        elif said.what & 16:  # SLOT
            if self.by_pointer and not self.immediate and self.displacement(after, 4) == said.distance:
                self.put_form(pos, 5, said.what)  # SLOT
        elif said.took and self.by_pointer:
            if not said.what & 63 and not self.immediate and self.displacement(after, 4) == said.distance:
                self.put_form(pos, 6, said.what)  # RELATIVE
        elif said.took:
            if not said.what & 63 and self.immediate and not self.in_memory and self.constant(after) == said.value:
                self.put_form(pos, 7, said.what)  # CONSTANT
        elif said.what:
            self.put_bytes(pos, said.what)
        elif self.by_pointer if said.take == 1 else said.take == 2 and self.immediate and not self.in_memory:
            return 0  # others of that form may take something
        elif self.has_many:
            self.put_bytes(pos, said.what)
        else:
            self.put_form(pos, 1, said.what)  # PLAIN
        return 0

    def put_form(self, pos: cython.Py_ssize_t, kind: cython.int, what: cython.ulonglong) -> cython.int:
        """Keep it for all of the form."""
        self.place(pos, self.form_size, 1)
        return self.put(kind, what)

    def put_bytes(self, pos: cython.Py_ssize_t, what: cython.ulonglong) -> cython.int:
        """Keep it for these bytes."""
        place: cython.Py_ssize_t = self.place(pos, self.form_size, 1)
        if place >= 0 and self.kinds[place] != 2:  # BY_BYTES
            return 0
        self.put(2, 0)  # BY_BYTES
        self.place(pos, self.exact_size, 2)
        return self.put(3, what)  # EXACT

    def put(self, kind: cython.int, what: cython.ulonglong) -> cython.int:
        """Keep it for the key."""
        place: cython.Py_ssize_t = self.base + self.turn  # if none is free
        way: cython.Py_ssize_t
        self.turn = self.turn + 1 & 3  # WAYS
        for way in range(4):  # WAYS
            if self.kinds[self.base + way] == 0 or (
                self.low[self.base + way] == self.key_low and self.high[self.base + way] == self.key_high
            ):
                place = self.base + way
                break
        self.low[place] = self.key_low
        self.high[place] = self.key_high
        self.kinds[place] = kind
        self.whats[place] = what
        return 0

    @cython.boundscheck(False)
    def place(self, pos: cython.Py_ssize_t, size: cython.Py_ssize_t, tag: cython.ulonglong) -> cython.Py_ssize_t:
        """Where something is kept for these bytes, which parse() has read; -1 if nothing is. `base`: where it may be."""
        low: cython.ulonglong = 0
        high: cython.ulonglong = tag << 56
        byte: cython.ulonglong
        number: cython.Py_ssize_t
        way: cython.Py_ssize_t
        for number in range(min(size, 8)):
            byte = self.data[pos + number]
            low |= byte << 8 * number
        for number in range(8, size):
            byte = self.data[pos + number]
            high |= byte << 8 * (number - 8)
        low &= ~self.left_out_low
        high &= ~self.left_out_high
        self.key_low = low
        self.key_high = high
        byte = (low ^ high ^ (high >> 29)) * self.spread & self.mask
        self.base = byte >> 51 << 2  # of 2**13: PLACES // WAYS
        for way in range(4):  # WAYS
            if self.low[self.base + way] == low and self.high[self.base + way] == high:
                return self.base + way
        return -1

    # -- where a form ends

    @cython.boundscheck(False)
    def parse(self, pos: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.int:
        """True if the instruction at `pos` is read, and not longer than to `end`: `size`, `form_size`, and more are known."""
        at: cython.Py_ssize_t = pos
        byte: cython.int = 0
        operands: cython.int
        if end > pos + 15:
            end = pos + 15
        if end > self.length or pos < 0:  # everything else is within `end`
            return 0
        self.is_narrow = self.is_wide = self.has_many = False
        self.rex = self.registers = 0
        while at < end:
            byte = self.data[at]
            if byte == 0x66:
                self.is_narrow = True
            elif not (byte == 0xF2 or byte == 0xF3 or byte == 0xF0 or byte == 0x2E or byte == 0x3E or byte == 0x64 or byte == 0x65):
                break
            at += 1
        if at < end and byte & 0xF0 == 0x40:  # REX
            self.is_wide = byte & 8 != 0
            self.rex = byte
            self.rex_at = at - pos
            at += 1
            byte = self.data[at] if at < end else 0
        if at >= end:
            return 0
        if byte == 0x0F:
            at += 1
            if at >= end:
                return 0
            byte = self.data[at]
            operands = self.after_0f[byte]
            self.registers = self.alike_after_0f[byte]
            if byte == 0x38 or byte == 0x3A:
                at += 1
                operands = 16 if byte == 0x38 else 17
            self.has_many = operands & 15 == 1
        elif at == pos and (byte == 0xC4 or byte == 0xC5 or byte == 0x62) and at + (5 if byte == 0x62 else 3) < end:  # VEX, EVEX
            operands = 1 if byte == 0xC5 else self.data[at + 1] & (31 if byte == 0xC4 else 7)
            at += 2 if byte == 0xC5 else 3 if byte == 0xC4 else 4
            if operands == 2 or operands == 3:
                operands += 14
            else:
                operands = self.after_0f[self.data[at]] if operands == 1 else 255
            self.has_many = operands & 15 == 1
        else:
            operands = self.one_byte[byte]
            self.registers = self.alike[byte]
            if byte == 0x8F and (at + 1 >= end or self.data[at + 1] & 0x38):  # XOP
                return 0
        return self.after_opcode(pos, at + 1, end, operands)

    @cython.boundscheck(False)
    def after_opcode(
        self, pos: cython.Py_ssize_t, at: cython.Py_ssize_t, end: cython.Py_ssize_t, operands: cython.int
    ) -> cython.int:
        """Read what follows an opcode, from `at` on."""
        displacement: cython.Py_ssize_t = 0
        mode: cython.int = 3
        byte: cython.int = 0
        full: cython.Py_ssize_t = 2 if self.is_narrow and not self.is_wide else 4
        self.by_pointer = False
        self.left_out_low = self.left_out_high = 0
        if operands == 255:  # NOT_READ
            return 0
        if operands & 16:  # MODRM
            if at >= end:
                return 0
            byte = self.data[at]
            mode = byte >> 6
            if self.registers:
                self.leave_out_registers(pos, at, mode)
            at += 1
            if mode != 3 and byte & 7 == 4:  # SIB
                if at >= end:
                    return 0
                if mode == 0 and self.data[at] & 7 == 5:
                    displacement = 4
                at += 1
            elif mode == 0 and byte & 7 == 5:
                self.by_pointer = True
                displacement = 4
            if mode == 1:
                displacement = 1
            elif mode == 2:
                displacement = 4
        self.in_memory = mode != 3
        operands &= 15
        if operands == 7 or operands == 8:  # TEST_BYTE, TEST_FULL
            operands = operands - 6 if byte & 0x30 == 0 else 0
        if operands == 0:
            self.immediate = 0
        elif operands == 1:  # BYTE
            self.immediate = 1
        elif operands == 2:  # FULL
            self.immediate = full
        elif operands == 3:  # TARGET_4
            self.immediate = 4
        elif operands == 4:  # LONG
            self.immediate = 8 if self.is_wide else full
        else:  # WORD, ENTER
            self.immediate = operands - 3
        self.form_size = at - pos
        self.size = self.form_size + displacement + self.immediate
        self.exact_size = self.size
        if self.registers and self.in_memory and not self.has_many:  # such an immediate is not a place
            self.exact_size -= self.immediate
        return pos + self.size <= end

    # -- registers that do not matter

    @cython.boundscheck(False)
    def leave_out_registers(self, pos: cython.Py_ssize_t, at: cython.Py_ssize_t, mode: cython.int) -> cython.int:
        """Leave the registers in the ModRM byte at `at`, and in the SIB byte after it, out of the key."""
        byte: cython.int = self.data[at]
        if self.registers == 3 and mode == 3:  # IN_MEMORY
            return 0
        if self.registers == 1:  # ALL
            self.leave_out_register(at - pos, byte, 3, 4)
        if mode != 3 and byte & 7 == 4:  # SIB
            at += 1
            if at == self.length:
                return 0
            byte = self.data[at]
            self.leave_out_register(at - pos, byte, 3, 2)
        if mode != 0 or byte & 7 != 5:  # no register
            self.leave_out_register(at - pos, byte, 0, 1)
        return 0

    def leave_out_register(self, at: cython.Py_ssize_t, byte: cython.int, shift: cython.int, in_rex: cython.int) -> cython.int:
        """Leave out a register, if it is not SP or FP: three bits of the byte `at` bytes from the begin, and one of REX."""
        register: cython.int = byte >> shift & 7
        if self.rex & in_rex:
            register += 8
        if register != 4 and register != 5:  # SP, FP
            self.leave_out(at, 7 << shift)
            if self.rex:
                self.leave_out(self.rex_at, in_rex)
        return 0

    def leave_out(self, at: cython.Py_ssize_t, bits: cython.ulonglong) -> cython.int:
        if at < 8:
            self.left_out_low |= bits << 8 * at
        else:
            self.left_out_high |= bits << 8 * (at - 8)
        return 0

    # -- numbers

    def displacement(self, after: cython.Py_ssize_t, width: cython.Py_ssize_t) -> cython.ulonglong:
        """The signed number of `width` bytes that end before `after`, modulo 2**64."""
        number: cython.ulonglong = 0
        byte: cython.ulonglong
        at: cython.Py_ssize_t
        for at in range(width):
            byte = self.data[after - width + at]
            number |= byte << 8 * at
        if self.data[after - 1] & 0x80 and width < 8:
            number |= self.mask << 8 * width & self.mask
        return number

    def constant(self, after: cython.Py_ssize_t) -> cython.ulonglong:
        """The immediate, as capstone writes it: with a sign only where 4 bytes become 8."""
        number: cython.ulonglong = self.displacement(after, self.immediate)
        if self.immediate < 4 or (self.immediate == 4 and not self.is_wide):
            number &= ~(self.mask << 8 * self.immediate)
        return number
