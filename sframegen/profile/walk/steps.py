"""Walks one copied stack from frame to frame, as the kernel program walks a stack in place. Compiled.

Numbers that a walk returns are those of packed_frames.End; -1: not at the end yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from cfi.columns import zeros
from sframegen.stack.walking.frames import GUESS_REACH

try:
    import cython
except ImportError:
    from cfi import cython_shadow as cython  # type: ignore[no-redef]

if TYPE_CHECKING:
    from array import array

    from cfi.columns import Bytes, Column
    from sframegen.profile.walk.columns import MachineColumns, SpanColumns, TableColumns

COMPILED: bool = cython.compiled

REGISTERS = 32
RETURNS, RETURNS_FROM_SIGNAL = 1, 2


class Code(Protocol):
    """The bytes of code, which a walk asks for where no rule applies."""

    def kind(self, file: int, address: int) -> int:
        """RETURNS if a call may end at that link-time address; RETURNS_FROM_SIGNAL if it is in such code; or both, or 0."""


class Steps:
    """One walk: where it is, and the frames so far, packed: the first `depth` of `frames`.

    `values` and `known`: registers by DWARF number, and a bit for each that is known. Set all of it, then call `run`.
    `missing`: the file without a table, after NO_TABLE.
    """

    def __init__(self, machine: MachineColumns, ra_mask: int, frames: array[int], code: Code) -> None:
        """`ra_mask`: the bits of a return address that are not its signature."""
        self.machine = machine
        self.ra_mask = ra_mask
        self.frames = frames
        self.code = code
        self.tables: list[TableColumns | None] = []
        self.values = zeros("Q", REGISTERS)
        self.saved = zeros("Q", REGISTERS)
        self.known = self.pc = self.lowest = self.stack_start = self.word = 0
        self.exact = self.guessed = self.elsewhere = False
        self.stack: Bytes = b""
        self.depth = self.span = self.missing = self.flags = 0
        self.cfa_offset = self.ra_offset = self.fp_offset = 0
        self.cfa_register = self.ra_register = self.fp_register = 0
        # Numbers of more than 31 bits are Python objects where they stand in an expression; as attributes they are C's.
        self.mask = 0xFFFFFFFFFFFFFFFF
        self.address_mask = (1 << 48) - 1
        self.guess_reach = GUESS_REACH

    def add_table(self, number: int, table: TableColumns | None) -> None:
        """`number`: the file's. A table without pages: nothing is known of its code. None: not ready yet."""
        self.tables.extend([None] * (number + 1 - len(self.tables)))
        self.tables[number] = table

    def begin(self, pc: int, exact: bool, guessed: bool, stack_start: int, stack: Bytes) -> None:
        """Set where the walk begins. `values`, `known` and `depth` are the caller's to set, before this."""
        self.pc = pc
        self.exact = exact
        self.guessed = guessed
        self.stack_start = stack_start
        self.stack = stack
        self.elsewhere = False
        self.span = 0
        self.lowest = self.values[self.machine.sp] if self.known >> self.machine.sp & 1 else stack_start

    def run(self, spans: SpanColumns) -> int:
        """Append all frames from here to the end of the walk; return the end."""
        end: cython.int = -1
        while end < 0:
            end = self.frame(spans)
        return end

    def frame(self, spans: SpanColumns) -> cython.int:
        """Append the frame and go to its caller."""
        address: cython.ulonglong = self.pc if self.exact else (self.pc - 1) & self.mask
        file: cython.ulonglong = 0
        bias: cython.ulonglong = 0
        high: cython.ulonglong = self.guessed
        rule: cython.Py_ssize_t = 0
        end: cython.int
        if not self.find_span(spans, address):
            if self.exact and self.depth < len(self.frames):
                self.frames[self.depth] = high << 63 | address & self.address_mask
                self.depth += 1
            return 3  # NO_MAPPING
        if self.depth == len(self.frames):
            return 10  # TOO_DEEP
        file = spans.file[self.span]
        bias = spans.bias[self.span]
        self.frames[self.depth] = high << 63 | file << 48 | ((address - bias) & self.address_mask)
        self.depth += 1
        self.guessed = False
        if file:
            rule = self.find_rule(file, (address - bias) & self.mask)
        if rule < 0:
            return 4 if rule == -1 else 11 if rule == -2 else 5  # NO_TABLE, DAMAGED_TABLE, NO_RULE
        if rule:
            end = self.step(spans, False)
            if end != 9:  # UNKNOWN_REGISTER
                return end
            self.set_rule(self.machine.guess)
            return -1 if self.step(spans, True) < 0 else 9
        if file and self.code.kind(file, (self.pc - bias) & self.mask) & 2:
            self.set_rule(self.machine.signal)
            return self.step(spans, False)
        if not self.known >> self.machine.fp & 1:
            return 5  # NO_RULE
        self.set_rule(self.machine.guess)
        end = self.step(spans, True)
        # How a false frame pointer fails says nothing.
        return end if end < 0 or end == 1 or end == 13 else 6  # NO_RETURN, COPY_TOO_SHORT; GUESS_FAILED

    def find_span(self, spans: SpanColumns, address: cython.ulonglong) -> cython.bint:
        """Set `span` to the number of the span with that address; false if there is none."""
        low: cython.Py_ssize_t = 0
        high: cython.Py_ssize_t = len(spans.start)
        middle: cython.Py_ssize_t
        if self.span < high and spans.start[self.span] <= address < spans.end[self.span]:
            return True
        while low < high:
            middle = (low + high) >> 1
            if spans.start[middle] <= address:
                low = middle + 1
            else:
                high = middle
        if low == 0 or address >= spans.end[low - 1]:
            return False
        self.span = low - 1
        return True

    def find_rule(self, file: cython.ulonglong, address: cython.ulonglong) -> cython.Py_ssize_t:
        """Set the rule of a link-time address, return its number; 0: no rule, -1: no table, -2: the table is damaged.

        -3: no rule, and none may be guessed.
        """
        table: TableColumns
        offset: cython.ulonglong
        low: cython.ulonglong
        high: cython.ulonglong
        middle: cython.ulonglong
        first: cython.ulonglong
        rule: cython.ulonglong
        if file >= len(self.tables) or self.tables[file] is None:
            self.missing = file
            return -1
        table = self.tables[file]  # type: ignore[assignment] # tested above
        offset = (address - table.base) & self.mask
        first = offset >> 8
        if first >= table.pages:
            return 0 if table.guessed else -3
        low = table.words[table.index_at + first]
        high = table.words[table.index_at + first + 1]
        if low > high or high > table.rows:
            return -2
        offset &= 0xFF
        while low < high:  # the number of rows that begin at or before the address
            middle = (low + high) >> 1
            if table.words[table.rows_at + middle] & 0xFF <= offset:
                low = middle + 1
            else:
                high = middle
        if low == 0:
            return 0 if table.guessed else -3
        rule = table.words[table.rows_at + low - 1] >> 16
        if rule >= table.rules:
            return -2
        first = table.rules_at + 4 * rule
        if rule:
            self.set_rule(table.words[first : first + 4])
        elif not table.guessed:
            return -3
        return rule

    def set_rule(self, words: Column) -> cython.int:
        """Take a rule of four words: three offsets with signs; registers of CFA, RA and FP, and flags, a byte each."""
        registers: cython.longlong = words[3]
        self.cfa_offset = self.extended(words[0])
        self.ra_offset = self.extended(words[1])
        self.fp_offset = self.extended(words[2])
        self.cfa_register = registers & 0xFF
        self.ra_register = registers >> 8 & 0xFF
        self.fp_register = registers >> 16 & 0xFF
        self.flags = registers >> 24
        return 0

    def extended(self, word: cython.Py_ssize_t) -> cython.Py_ssize_t:
        return word - ((word >> 31) << 32)

    def is_known(self, register: cython.int) -> cython.bint:
        return register < 32 and self.known >> register & 1 != 0

    def read(self, address: cython.ulonglong) -> cython.int:
        """Set `word` to the 8 bytes at that address."""
        at: cython.ulonglong = (address - self.stack_start) & self.mask
        value: cython.ulonglong = 0
        i: cython.Py_ssize_t
        size: cython.ulonglong = len(self.stack)
        if address < self.stack_start:
            return 13 if self.elsewhere else 7  # COPY_TOO_SHORT, UNREADABLE
        if size < 8 or at > size - 8:
            return 13
        for i in range(8):
            value |= self.byte(at + i) << (8 * i)
        self.word = value
        return -1

    def byte(self, at: cython.Py_ssize_t) -> cython.ulonglong:
        return self.stack[at]

    def is_elsewhere(self, sp: cython.ulonglong) -> cython.bint:
        size: cython.ulonglong = len(self.stack)
        return sp < self.stack_start or sp - self.stack_start > size

    def step(self, spans: SpanColumns, guess: cython.bint) -> cython.int:
        """Go to the caller with the rule that is set; nothing changes if that fails."""
        flags: cython.int = self.flags
        known: cython.ulonglong = 0
        cfa: cython.ulonglong
        ra: cython.ulonglong
        fp: cython.ulonglong = self.values[self.machine.fp]
        sp: cython.ulonglong
        one: cython.ulonglong = 1
        fp_known: cython.bint = self.is_known(self.machine.fp)
        end: cython.int
        if flags & 0x40:  # OUTERMOST
            return 0
        if not self.is_known(self.cfa_register):
            return 9  # UNKNOWN_REGISTER
        cfa = (self.values[self.cfa_register] + self.cfa_offset) & self.mask
        if guess and (cfa - self.lowest) & self.mask > self.guess_reach:  # below or on another stack
            return 6  # GUESS_FAILED
        if flags & 1:  # CFA_DEREF
            end = self.read(cfa)
            if end >= 0:
                return end
            cfa = self.word
        ra = (cfa + self.ra_offset) & self.mask
        if flags & 2:  # RA_REGISTER
            if not self.is_known(self.ra_register):
                return 9
            ra = (self.values[self.ra_register] + self.ra_offset) & self.mask
        if flags & 4:  # RA_DEREF
            end = self.read(ra)
            if end >= 0:
                return end
            ra = self.word
        ra &= self.ra_mask
        sp = (cfa + self.machine.sp_offset) & self.mask
        if flags & 8:  # FP
            fp_known = not flags & 0x10 or self.is_known(self.fp_register)  # else it is lost, which few frames notice
            fp = (cfa + self.fp_offset) & self.mask
            if flags & 0x10 and fp_known:  # FP_REGISTER
                fp = (self.values[self.fp_register] + self.fp_offset) & self.mask
            if flags & 0x20 and fp_known:  # FP_DEREF
                end = self.read(fp)
                if end == 13:  # COPY_TOO_SHORT
                    return end
                fp_known = end < 0  # below SP, which copies begin with, values of registers that are restored already may remain
                fp = self.word
        if not flags & 0x80 and (sp < self.lowest or (sp == self.lowest and not self.exact)):
            return 8  # NOT_ASCENDING
        if not flags & 0x80 and not self.elsewhere and self.is_elsewhere(sp):
            return 13  # COPY_TOO_SHORT
        if ra == 0:
            return 1  # NO_RETURN
        if guess and (cfa & 7 or not self.returns_to(spans, ra)):
            return 6  # GUESS_FAILED
        if flags & 0x80:  # SIGNAL
            known = self.interrupted(ra)
        if not known >> self.machine.fp & 1 and fp_known:
            self.values[self.machine.fp] = fp
            known |= one << self.machine.fp
        if known >> self.machine.sp & 1:
            sp = self.values[self.machine.sp]
        elif self.machine.sp_is_cfa or not guess:
            self.values[self.machine.sp] = sp
            known |= one << self.machine.sp
        if flags & 0x80:  # the interrupted code may be on another stack
            self.elsewhere = self.is_elsewhere(sp)
        self.known = known
        self.lowest = sp
        self.pc = ra
        self.exact = flags & 0x80 != 0
        self.guessed = guess
        return -1

    def returns_to(self, spans: SpanColumns, pc: cython.ulonglong) -> cython.bint:
        """True if code may return to `pc`. Code without a file is taken at its word: interpreters push addresses themselves."""
        file: cython.ulonglong
        if not self.find_span(spans, (pc - 1) & self.mask):
            return False
        file = spans.file[self.span]
        return file == 0 or self.code.kind(file, (pc - spans.bias[self.span]) & self.mask) != 0

    def interrupted(self, pc: cython.ulonglong) -> cython.ulonglong:
        """Set all registers that the kernel saved with that PC; return which: none if it saved another one."""
        known: cython.ulonglong = 0
        one: cython.ulonglong = 1
        sp: cython.ulonglong = self.values[self.machine.sp]
        i: cython.Py_ssize_t
        if self.machine.context_pc < 0 or not self.is_known(self.machine.sp):
            return 0
        if self.read((sp + self.machine.context_pc) & self.mask) >= 0 or self.word & self.ra_mask != pc:
            return 0
        for i in range(32):
            if self.machine.context_place[i] >= 0 and self.read((sp + self.machine.context_place[i]) & self.mask) < 0:
                self.saved[i] = self.word
                known |= one << i
        for i in range(32):
            if known >> i & 1:
                self.values[i] = self.saved[i]
        return known
