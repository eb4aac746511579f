"""Executes call frame instructions: takes FDEs and fills the columns of their rows. Compiled.

Rules of rows are interned: equal rules have the same number, so that later steps handle each distinct rule once.
The state of one row is 18 numbers: the return address column; kind, a, b for each of CFA, RA, FP, SP and RA_SIGN_STATE; offset and
size of the CFA's expression. Where RA_SIGN_STATE has no rule, its `a` is the value that DW_CFA_AARCH64_negate_ra_state toggles. A
state with a CFA expression keeps the CFA's former register and offset, because a later DW_CFA_def_cfa_register uses them again.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from cfi.section import MAX_REMEMBERED, MAX_STATES
from sframegen.base.columns import Fdes, Programs, Rows, zeros
from sframegen.base.errors import FormatError

try:
    import cython
except ImportError:
    from sframegen.base import cython_shadow as cython  # type: ignore[no-redef]

if TYPE_CHECKING:
    from collections.abc import Callable

    from cfi.section import FollowedRegisters
    from sframegen.base.columns import Bytes, Column, Entries

if not cython.compiled:  # machine.pxd has the same numbers
    from cfi.opcodes import Action, Operand, RuleKind

    NOP, ADVANCE, SET_LOC, SET_RULE, RESTORE, REMEMBER_STATE, RESTORE_STATE = map(int, [*Action][1:8])
    DEF_CFA, DEF_CFA_REGISTER, DEF_CFA_OFFSET, DEF_CFA_EXPRESSION, NEGATE_RA_STATE, NEGATE_RA_STATE_WITH_PC = map(
        int, [*Action][8:]
    )
    U8, ULEB, SLEB, LOW6, ADDRESS, BLOCK = map(int, [*Operand][4:])
    UNDEFINED, REGISTER, VAL_EXPRESSION = map(int, (RuleKind.UNDEFINED, RuleKind.REGISTER, RuleKind.VAL_EXPRESSION))
    CFA, RA, FP, SP, RA_STATE, EXPRESSION = range(1, 17, 3)  # index of each rule in a state
    CUT_OFF, UNKNOWN_INSTRUCTION, UNKNOWN_ENCODING, BAD_INDIRECTION = range(1, 5)  # indexes of RUN_FAULTS
    NOTHING_REMEMBERED, TOO_MANY_REMEMBERED, BACKWARDS, TOO_MANY_RULES = range(5, 9)

COMPILED: bool = cython.compiled

WIDTH = 18  # numbers in a state
STEPS = 8192  # slots of the hash table of steps: the next state for a state and an instruction


@cython.cclass
class Cursor:
    """Reads a section's bytes. Each read is checked against `end`; if it fails, it sets `fault` and returns 0."""

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
        """`address`: the address of data[0]; `big`: big-endian. The bases and `memory` are as in CfiSection."""
        self.data = data
        self.pos = 0
        self.end = len(data)
        self.fault = 0
        self.address_size = 8
        self.big = big
        # In an expression, a literal of more than 31 bits becomes a Python object; an attribute is a C number.
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
            self.fault = CUT_OFF
            return 0
        for i in range(width):
            value = value * 256 + self.data[self.pos + (i if self.big else width - 1 - i)]
        self.pos += width
        return value

    @cython.cfunc
    @cython.exceptval(-1)
    def uleb(self) -> cython.longlong:
        """Read a ULEB128 number. Values of more than 56 bits become 2 ** 62: offsets and register numbers are smaller."""
        value: cython.longlong = 0
        shift: cython.int = 0
        byte: cython.longlong = 0x80
        while byte & 0x80:
            if self.pos >= self.end:
                self.fault = CUT_OFF
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
        """Read an SLEB128 number. Values of more than 56 bits become 2 ** 62 with their sign."""
        value: cython.longlong = 0
        shift: cython.int = 0
        byte: cython.longlong = 0x80
        one: cython.longlong = 1
        zeros: cython.bint = True  # all bits from bit 56 on are zeros
        ones: cython.bint = True  # all of them are ones
        while byte & 0x80:
            if self.pos >= self.end:
                self.fault = CUT_OFF
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
        """Read a pointer in a DW_EH_PE encoding. `function`: the address that DW_EH_PE_funcrel is relative to."""
        value: cython.ulonglong = 0
        form: cython.int = encoding & 0x0F
        base: cython.int = encoding & 0x70
        padding: cython.longlong
        field: cython.ulonglong
        if encoding == 0xFF:  # DW_EH_PE_omit
            return 0
        if base == 0x50:  # DW_EH_PE_aligned: to the address size in memory
            padding = -(self.address + self.pos) & (self.address_size - 1)
            if self.end - self.pos < padding:
                self.fault = CUT_OFF
                return 0
            self.pos += padding
        field = (self.address + self.pos) & self.mask
        if form == 0x00 or form == 0x08:  # DW_EH_PE_absptr, DW_EH_PE_signed
            value = self.unsigned(self.address_size)
        elif form == 0x01:  # DW_EH_PE_uleb128
            value = self.uleb()
        elif form == 0x09:  # DW_EH_PE_sleb128
            value = self.sleb() & self.mask
        elif form == 0x02 or form == 0x0A:  # DW_EH_PE_udata2, DW_EH_PE_sdata2
            value = self.unsigned(2)
            if form == 0x0A and value >= 0x8000:
                value = (value - 0x10000) & self.mask
        elif form == 0x03 or form == 0x0B:  # DW_EH_PE_udata4, DW_EH_PE_sdata4
            value = self.unsigned(4)
            if form == 0x0B and value >> 31:
                value = (value | ~self.mask32) & self.mask
        elif form == 0x04 or form == 0x0C:  # DW_EH_PE_udata8, DW_EH_PE_sdata8
            value = self.unsigned(8)
        else:
            self.fault = UNKNOWN_ENCODING
            return 0
        if base == 0x10:  # DW_EH_PE_pcrel
            value += field
        elif base == 0x20:  # DW_EH_PE_textrel
            value += self.text_base
        elif base == 0x30:  # DW_EH_PE_datarel
            value += self.data_base
        elif base == 0x40:  # DW_EH_PE_funcrel
            value += function
        elif base > 0x50:
            self.fault = UNKNOWN_ENCODING
            return 0
        value &= self.mask
        if encoding & 0x80:  # DW_EH_PE_indirect
            value = self.follow_pointer(value)
        return value

    def follow_pointer(self, address: int) -> int:
        """Return the pointer stored at `address`, as DW_EH_PE_indirect requires."""
        if self.memory is not None:
            try:
                return self.memory(address)  # type: ignore[no-any-return]
            except FormatError:  # nothing is loaded at that address
                pass
        self.fault = BAD_INDIRECTION
        return 0

    def read_unsigned(self, width: int) -> int:  # Python code calls this method and the next three
        return self.unsigned(width)

    def read_uleb(self) -> int:
        return self.uleb()

    def read_sleb(self) -> int:
        return self.sleb()

    def read_pointer(self, encoding: int) -> int:
        return self.encoded(encoding, 0)

    @cython.locals(shapes="const unsigned char[::1]")
    def read_ranges(self, entries: Entries, shapes: Bytes, fdes: Fdes, programs: Programs) -> int:
        """Fill in each FDE's address range and the start of its instructions; return the size in bytes of the longest program.

        `programs.start` may be the same column as `entries.body`. `shapes`: four bytes for each CIE: FDE pointer encoding, whether
        FDEs have augmentation data, address size, segment selector size.
        """
        fde: cython.Py_ssize_t
        shape: cython.Py_ssize_t
        encoding: cython.int
        length: cython.longlong
        longest: cython.Py_ssize_t = 0
        for fde in range(len(entries.body)):
            shape = 4 * fdes.cie[fde]
            encoding = shapes[shape]
            self.pos = entries.body[fde]
            self.end = entries.end[fde]
            self.address_size = shapes[shape + 2]
            self.unsigned(shapes[shape + 3])
            fdes.start[fde] = self.encoded(encoding, 0)
            if self.fault == BAD_INDIRECTION:
                self.fault = 0
                fdes.start[fde] = self.mask - 1  # UNKNOWN_START
            fdes.size[fde] = self.encoded(encoding & 0x07, 0)  # an unsigned number of the pointer's width, without a base
            if shapes[shape + 1] and self.fault == 0:
                length = self.uleb()
                if length > self.end - self.pos:
                    self.fault = CUT_OFF
                self.pos += length if self.fault == 0 else 0
            if self.fault:
                break
            programs.start[fde] = self.pos
            longest = max(longest, self.end - self.pos)
        return longest


@cython.final
@cython.cclass
class CfiMachine(Cursor):
    """Runs the instructions of FDEs, and adds the 18 numbers of each distinct state that has a row, as bytes, to `rule_numbers`.

    The loop over instructions handles only the numbers of states: for a state and an instruction, it looks up the next state in a
    hash table. Only a step that is not in the table is computed on the 18 numbers.
    """

    rule_numbers: dict[bytes, int]  # state with a row, as bytes -> number of its rule, ascending
    state_numbers: dict[bytes, int]  # state, as bytes -> its number in this section
    state_bytes: list[bytes]  # by number
    scratch: array[int]  # the memory of `state`
    opcodes = cython.declare("const unsigned char[::1]")
    state = cython.declare("long long[::1]")  # a state that is being computed
    states = cython.declare("long long[::1]")  # all states by number
    cies = cython.declare("const long long[::1]")
    initial = cython.declare("int[::1]")  # by CIE: the number of the state after its initial instructions
    remembered = cython.declare("int[::1]")  # the stack of DW_CFA_remember_state
    rule_of = cython.declare("int[::1]")  # by state: 1 + the number of its rule, or 0
    slots = cython.declare("unsigned char[::1]")  # by register below 64: what find_slot returns for the current CIE
    step_from = cython.declare("long long[::1]")  # the hash table of steps, by column: state * 256 + opcode, a, b, next state
    step_a = cython.declare("long long[::1]")
    step_b = cython.declare("long long[::1]")
    step_to = cython.declare("int[::1]")
    fp = cython.declare("long long")
    sp = cython.declare("long long")
    ra_state = cython.declare("long long")
    ra = cython.declare("long long")
    code_factor = cython.declare("long long")
    data_factor = cython.declare("long long")
    encoding = cython.declare("int")
    block_base = cython.declare("long long")
    block = cython.declare("long long")
    final_state = cython.declare("long long")  # the state at the end of the last program

    def start(
        self, opcodes: Bytes, registers: FollowedRegisters, block_base: int, cies: Column, rule_numbers: dict[bytes, int]
    ) -> None:
        """Run the initial instructions of all CIEs. They give the state that FDEs start in and that DW_CFA_restore restores.

        `opcodes`: cfi.opcodes.PACKED_INSTRUCTIONS. `cies`: seven numbers each: offset of the instructions, their end, return
        address column, code and data alignment factors, pointer encoding, address size. All sections of a file share
        `rule_numbers`, and the offsets of expressions, which begin at `block_base` in this section.
        """
        cie: cython.Py_ssize_t
        count: cython.Py_ssize_t = len(cies) // 7
        i: cython.Py_ssize_t
        self.opcodes = opcodes
        self.fp, self.sp, self.ra_state = registers
        self.block_base = block_base
        self.cies = cies
        self.rule_numbers = rule_numbers
        self.state_numbers = {}
        self.state_bytes = []
        self.scratch = array("q", bytes(8 * WIDTH))
        self.state = self.scratch  # which shares its memory
        self.states = zeros("q", WIDTH * 512)
        self.initial = zeros("i", count + 1)
        self.remembered = zeros("i", MAX_REMEMBERED)
        self.rule_of = zeros("i", MAX_STATES + 1)
        self.slots = bytearray(64)
        self.step_from = array("q", [-1]) * STEPS
        self.step_a = zeros("q", STEPS)
        self.step_b = zeros("q", STEPS)
        self.step_to = zeros("i", STEPS)
        no_rows = Rows(array("I", [0, 0]), array("I"), array("I"))
        for cie in range(count):
            for i in range(18):
                self.state[i] = 0
            self.state[0] = self.cies[7 * cie + 2]  # return address column; all rules are UNSPECIFIED
            self.initial[cie] = self.intern_state()
            empty = Fdes(array("Q", [0]), array("Q", [0]), array("I", [cie]))
            self.run_fdes(0, empty, Programs(array("Q", [cies[7 * cie]]), array("Q", [cies[7 * cie + 1]])), no_rows, 0)
            if self.fault:
                return
            self.initial[cie] = self.final_state

    @cython.cfunc
    @cython.exceptval(-1)
    def enter_cie(self, cie: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Make a CIE the current one, and return its number."""
        register: cython.Py_ssize_t
        self.ra = self.cies[7 * cie + 2]
        self.code_factor = self.cies[7 * cie + 3]
        self.data_factor = self.cies[7 * cie + 4]
        self.encoding = self.cies[7 * cie + 5]
        self.address_size = self.cies[7 * cie + 6]
        for register in range(64):
            self.slots[register] = self.find_slot(register)
        return cie

    @cython.locals(
        data="const unsigned char[::1]", opcodes="const unsigned char[::1]", slots="const unsigned char[::1]",
        rule_of="const int[::1]", remembered="int[::1]", step_from="long long[::1]", step_a="long long[::1]",
        step_b="long long[::1]", step_to="int[::1]",
    )  # fmt: skip
    def run_fdes(self, fde: cython.Py_ssize_t, fdes: Fdes, programs: Programs, rows: Rows, used: cython.Py_ssize_t) -> int:
        """Run FDEs from `fde` on, as long as `rows` has room for their rows. Return the first FDE that was not run, or has a fault.

        `used`: the number of rows that are filled already; FDE f sets rows.first_row[f + 1]. An FDE makes at most one row for each
        byte of its instructions, and one more; it makes none if it is empty, or too large for SFrame's 32-bit sizes.
        """
        data = self.data
        opcodes = self.opcodes
        slots = self.slots
        rule_of = self.rule_of
        remembered = self.remembered
        step_from = self.step_from
        step_a = self.step_a
        step_b = self.step_b
        step_to = self.step_to
        row_capacity: cython.Py_ssize_t = len(rows.start)
        current: cython.longlong = -1  # number of the current CIE
        factor: cython.longlong = 0
        state: cython.longlong = 0
        fde_size: cython.ulonglong  # the FDE's size in bytes; 0 if it makes no rows
        position: cython.ulonglong  # the start of the current row, in bytes from the FDE's start
        target: cython.ulonglong
        previous_rule: cython.longlong  # number of the previous row's rule
        rule: cython.longlong
        depth: cython.Py_ssize_t
        pos: cython.Py_ssize_t
        program_end: cython.Py_ssize_t
        byte: cython.int
        entry: cython.Py_ssize_t
        action: cython.int
        a: cython.longlong
        b: cython.longlong
        step: cython.Py_ssize_t
        while fde < len(fdes.start):
            pos = programs.start[fde]
            program_end = programs.end[fde]
            fde_size = 0 if fdes.size[fde] >> 32 else fdes.size[fde]
            if fde_size and used + program_end - pos + 1 > row_capacity:
                break
            self.end = program_end
            if fdes.cie[fde] != current:
                current = fdes.cie[fde]
                self.enter_cie(current)
                factor = self.code_factor
            state = self.initial[current]
            position = 0
            previous_rule = -1
            depth = 0
            while pos < program_end:
                byte = data[pos]
                pos += 1
                if 0x40 <= byte < 0x80:  # DW_CFA_advance_loc
                    target = position + (byte & 0x3F) * factor
                elif byte >= 0x80 and slots[byte & 0x3F] == 0:  # DW_CFA_offset or DW_CFA_restore of a register that is not followed
                    if byte < 0xC0 and pos < program_end and data[pos] < 0x80:
                        pos += 1
                    elif byte < 0xC0:
                        self.pos = pos
                        self.uleb()
                        if self.fault:
                            return fde
                        pos = self.pos
                    continue
                else:
                    entry = 5 * (byte & 0xC0 if byte & 0xC0 else byte)  # the two high bits, if set, are the opcode
                    action = opcodes[entry]
                    if action == SET_LOC:
                        self.pos = pos
                        target = (self.encoded(self.encoding, fdes.start[fde]) - fdes.start[fde]) & self.mask
                        if self.fault:
                            return fde
                        pos = self.pos
                    else:
                        a = 0
                        b = 0
                        if opcodes[entry + 1] == LOW6:
                            a = byte & 0x3F
                        elif opcodes[entry + 1]:
                            self.pos = pos
                            a = self.read_operand(opcodes[entry + 1])
                            pos = self.pos
                        if opcodes[entry + 2] == ULEB and pos < program_end and data[pos] < 0x80:
                            b = data[pos]
                            pos += 1
                        elif opcodes[entry + 2]:
                            self.pos = pos
                            b = self.read_operand(opcodes[entry + 2])
                            pos = self.pos
                        if self.fault:
                            return fde
                        if action == ADVANCE:
                            # At most 2 ** 32 * 2 ** 24, which is past the end of any function that SFrame can describe.
                            target = position + (self.mask32 if a >> 32 else a) * factor
                        elif action == REMEMBER_STATE:
                            if depth == 64:  # MAX_REMEMBERED
                                self.pos = pos
                                self.fault = TOO_MANY_REMEMBERED
                                return fde
                            remembered[depth] = state
                            depth += 1
                            continue
                        elif action == RESTORE_STATE:
                            if depth == 0:
                                self.pos = pos
                                self.fault = NOTHING_REMEMBERED
                                return fde
                            depth -= 1
                            state = remembered[depth]
                            continue
                        elif action == NOP:
                            continue
                        else:
                            if action == RESTORE:
                                b = self.initial[current]
                            elif opcodes[entry + 4] != 1 or b >> 31:
                                b = self.scale_offset(b, opcodes[entry + 4])
                            step = (state * 769 + byte * 31 + a * 97 + b * 13) & 8191  # STEPS - 1
                            if step_from[step] == state * 256 + byte and step_a[step] == a and step_b[step] == b:
                                state = step_to[step]
                                continue
                            self.pos = pos
                            if opcodes[entry + 2] == BLOCK:  # not put into the table, whose keys lack the offset of the block
                                state = self.apply_instruction(state, entry, a, b)
                            else:
                                step_from[step] = state * 256 + byte
                                step_a[step] = a
                                step_b[step] = b
                                state = self.apply_instruction(state, entry, a, b)
                                step_to[step] = state
                            if self.fault:
                                step_from[step] = -1  # so that the next FDE with this instruction has the fault, too
                                return fde
                            continue
                # The location has advanced to `target`.
                if fde_size == 0 or target == position:
                    continue
                if target < position or target >> 63:
                    self.pos = pos
                    self.fault = BACKWARDS
                    return fde
                rule = rule_of[state] - 1
                if rule < 0:
                    rule = self.number_rule(state)
                if rule != previous_rule:
                    rows.start[used] = position
                    rows.rule[used] = rule
                    used += 1
                    previous_rule = rule
                position = target
                if position >= fde_size:
                    break
            if position < fde_size:
                rule = rule_of[state] - 1
                if rule < 0:
                    rule = self.number_rule(state)
                if rule != previous_rule:
                    rows.start[used] = position
                    rows.rule[used] = rule
                    used += 1
            if self.fault:
                return fde
            rows.first_row[fde + 1] = used
            fde += 1
        self.final_state = state
        return fde

    @cython.cfunc
    @cython.exceptval(-1)
    def read_operand(self, kind: cython.int) -> cython.longlong:
        value: cython.ulonglong
        length: cython.longlong
        if kind == ULEB:
            return self.uleb()
        if kind == SLEB:
            return self.sleb()
        if kind <= U8:
            value = self.unsigned(kind)
            return self.large if value >> 62 else value
        length = self.uleb()  # BLOCK
        if length > self.end - self.pos:
            self.fault = CUT_OFF
            return 0
        self.block = self.block_base + self.pos
        self.pos += length
        return length

    @cython.cfunc
    @cython.exceptval(-1)
    def scale_offset(self, value: cython.longlong, factor: cython.int) -> cython.longlong:
        """Return an offset operand in bytes; 2 ** 62 if it exceeds 32 bits, scaled or not. `factor`: CfiInstruction.factor + 1."""
        if value >> 31 != 0 and value >> 31 != -1:
            return self.large  # type: ignore[no-any-return]
        if factor != 1:
            value *= self.data_factor * (factor - 1)
        return self.large if value >> 31 != 0 and value >> 31 != -1 else value

    @cython.cfunc
    @cython.exceptval(-1)
    def find_slot(self, register: cython.longlong) -> cython.Py_ssize_t:
        """Return the index in a state of a register's rule; 0 for a register that is not followed."""
        if register == self.ra:
            return RA
        if register == self.fp:
            return FP
        if register == self.sp:
            return SP
        if register == self.ra_state:
            return RA_STATE
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def apply_instruction(
        self, number: cython.longlong, entry: cython.Py_ssize_t, a: cython.longlong, b: cython.longlong
    ) -> cython.longlong:
        """Return the state after an instruction with operands `a` and `b`. `b`: in bytes, or the state that RESTORE reads."""
        action: cython.int = self.opcodes[entry]
        i: cython.Py_ssize_t
        at: cython.Py_ssize_t
        for i in range(18):
            self.state[i] = self.states[18 * number + i]
        if action == SET_RULE:
            at = self.find_slot(a)
            if at:
                self.state[at] = self.opcodes[entry + 3]  # the rule's kind
                if self.opcodes[entry + 2] == BLOCK:
                    self.state[at + 1] = self.block
                    self.state[at + 2] = b
                else:
                    self.state[at + 1] = b
                    self.state[at + 2] = 0
        elif action == RESTORE:
            at = self.find_slot(a)
            if at:
                for i in range(at, at + 3):
                    self.state[i] = self.states[18 * b + i]
        elif action == DEF_CFA:
            self.state[CFA] = REGISTER
            self.state[CFA + 1] = a
            self.state[CFA + 2] = b
        elif action == DEF_CFA_REGISTER:
            self.state[CFA] = REGISTER
            self.state[CFA + 1] = a
        elif action == DEF_CFA_OFFSET:
            self.state[CFA + 2] = b
        elif action == DEF_CFA_EXPRESSION:
            self.state[CFA] = VAL_EXPRESSION
            self.state[EXPRESSION] = self.block
            self.state[EXPRESSION + 1] = b
        elif self.state[RA_STATE]:  # after a rule for the register, the ABI does not define the next two instructions
            self.state[RA_STATE] = UNDEFINED
        elif action == NEGATE_RA_STATE:
            self.state[RA_STATE + 1] ^= 1
        elif action == NEGATE_RA_STATE_WITH_PC:
            self.state[RA_STATE + 1] ^= 2
        else:
            self.pos -= 1
            self.fault = UNKNOWN_INSTRUCTION
            return number
        return self.intern_state()

    @cython.cfunc
    @cython.exceptval(-1)
    def intern_state(self) -> cython.longlong:
        """Return the number of the state in `self.state`. A new state gets the next number."""
        as_bytes: bytes = self.scratch.tobytes()  # the hash of bytes is keyed: a hostile file cannot make states collide
        number: cython.longlong = self.state_numbers.setdefault(as_bytes, len(self.state_bytes))
        i: cython.Py_ssize_t
        if number < len(self.state_bytes):
            return number
        self.state_bytes.append(as_bytes)
        if 18 * number == len(self.states):
            self.states = array("q", bytes(self.states) + bytes(8 * len(self.states)))
        for i in range(18):
            self.states[18 * number + i] = self.state[i]
        if number >= MAX_STATES - 1:
            self.fault = TOO_MANY_RULES
        return number

    @cython.cfunc
    @cython.exceptval(-1)
    def number_rule(self, state: cython.Py_ssize_t) -> cython.longlong:
        """Return the number of a state's rule, and remember it. Rules are numbered in the order of their first rows."""
        rule: cython.longlong = self.rule_numbers.setdefault(self.state_bytes[state], len(self.rule_numbers))
        self.rule_of[state] = rule + 1
        return rule
