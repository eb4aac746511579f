"""One step of a walk: finds the caller's registers from a frame's registers, the rule of its code, and memory. Compiled.

A rule comes in as numbers (CallerRule), which say how CFA, return address and FP follow from registers and memory. The caller's SP
is the CFA plus a constant of the machine, and must be above the frame's SP. After a signal frame, all registers come from the
context that the kernel saved. Functions return an End as a number, or -1 if the stack goes on. All walks in user space use this
module, of live processes and of copied stacks; the BPF program has its own version (sframegen/profile/bpf/walker.bpf.c).
"""

from __future__ import annotations

from enum import IntFlag
from typing import TYPE_CHECKING, Protocol

from sframegen.base.columns import zeros
from sframegen.format.model import Rule, Where
from sframegen.stack.walking.frames import ADDRESS_MASK, End

try:
    import cython
except ImportError:
    from sframegen.base import cython_shadow as cython  # type: ignore[no-redef]

if TYPE_CHECKING:
    from sframegen.base.columns import Bytes, Column

COMPILED: bool = cython.compiled

REGISTERS = 32  # DWARF numbers of registers that walks follow are lower
OTHER_STACK = Rule(None, None, Where(None, 0))  # like OUTERMOST, but the caller is on another stack; no section has this rule
GUESS_REACH = 1 << 16  # bytes; a frame pointer to a frame farther up may lead to another stack


class RuleFlag(IntFlag):
    """How a rule finds CFA, RA and FP by DWARF numbers. Without their *_REGISTER flags, RA and FP are relative to the CFA."""

    CFA_DEREF = 1  # cfa = *(register + offset); without RA_REGISTER, ra_register is added, which no section can express
    RA_REGISTER = 2  # ra = register + offset
    RA_DEREF = 4  # ra = *(...)
    FP = 8  # the rule recovers FP; without this flag FP is unchanged
    FP_REGISTER = 0x10
    FP_DEREF = 0x20
    OUTERMOST = 0x40  # with CFA_DEREF: the caller is on another stack
    SIGNAL = 0x80  # a signal frame: all registers come from the saved context, and the caller's PC is exact


if not cython.compiled:
    END_OUTERMOST, END_NO_RETURN, END_GUESS_FAILED = End.OUTERMOST, End.NO_RETURN, End.GUESS_FAILED
    END_UNREADABLE, END_NOT_ASCENDING, END_UNKNOWN_REGISTER = End.UNREADABLE, End.NOT_ASCENDING, End.UNKNOWN_REGISTER
    END_COPY_TOO_SHORT, END_OTHER_STACK, END_NO_STACK, END_LOOP = End.COPY_TOO_SHORT, End.OTHER_STACK, End.NO_STACK, End.LOOP
    RULE_CFA_DEREF, RULE_RA_REGISTER, RULE_RA_DEREF, RULE_FP = map(int, list(RuleFlag)[:4])
    RULE_FP_REGISTER, RULE_FP_DEREF, RULE_OUTERMOST, RULE_SIGNAL = map(int, list(RuleFlag)[4:])


class CallerRule:
    """A rule to find a caller, in numbers. `flags`: RuleFlag. `guess`: it trusts a frame pointer, which may hold anything.

    `cfa_register`: -1 if the CFA has no base register. `sp_is_cfa`: the caller's SP follows from the CFA.
    """

    def __init__(
        self, cfa_offset: int, ra_offset: int, fp_offset: int, cfa_register: int, ra_register: int, fp_register: int, flags: int
    ) -> None:
        self.cfa_offset = cfa_offset & ADDRESS_MASK
        self.ra_offset = ra_offset & ADDRESS_MASK
        self.fp_offset = fp_offset & ADDRESS_MASK
        self.cfa_register = cfa_register
        self.ra_register = ra_register
        self.fp_register = fp_register
        self.flags = flags
        self.guess = False
        self.sp_is_cfa = True


def caller_rule(rule: Rule, ra: int, *, signal: bool = False) -> CallerRule:
    """Return the rule in numbers. `ra`: the register that has the return address if the rule does not name a place for it."""
    cfa_offset, ra_offset, fp_offset, *registers, flags = numbers_of(rule, ra, signal=signal)
    cfa_register, ra_register, fp_register = (min(register, REGISTERS) for register in registers)  # REGISTERS: never known
    return CallerRule(cfa_offset, ra_offset, fp_offset, cfa_register, ra_register, fp_register, flags)


def numbers_of(rule: Rule, ra: int, *, signal: bool = False) -> tuple[int, int, int, int, int, int, int]:
    """Return the numbers of a rule in the order of CallerRule's arguments, which is also that of decoded tables."""
    flags = RuleFlag.SIGNAL if signal else RuleFlag(0)
    cfa = rule.cfa
    if cfa is None:
        return 0, 0, 0, 0, 0, 0, int(flags | RuleFlag.OUTERMOST | RuleFlag.CFA_DEREF * (rule == OTHER_STACK))
    flags |= RuleFlag.CFA_DEREF * cfa.deref
    ra_offset, ra_register = 0, ra
    if rule.ra is None:
        flags |= RuleFlag.RA_REGISTER
    else:
        ra_offset, ra_register = rule.ra.offset, rule.ra.register or 0
        flags |= RuleFlag.RA_REGISTER * (rule.ra.register is not None) | RuleFlag.RA_DEREF * rule.ra.deref
    fp_offset = fp_register = 0
    if rule.fp is not None:
        fp_offset, fp_register = rule.fp.offset, rule.fp.register or 0
        flags |= RuleFlag.FP | RuleFlag.FP_REGISTER * (rule.fp.register is not None) | RuleFlag.FP_DEREF * rule.fp.deref
    cfa_register = -1 if cfa.register is None else cfa.register
    # Cython 3.1 takes no subclass of int for an int.
    return cfa.offset, ra_offset, fp_offset, cfa_register, ra_register, fp_register, int(flags)


class WalkedMachine:
    """The stack conventions of an ABI, in numbers, filled by stack/abi/machines.py. Registers are DWARF numbers.

    `guess`: the rule of a frame record; None without frame pointers. `signal`: the rule of code that a signal handler returns to.
    `returning`: the rule of code outside of files that only returns, or None. `context_pc`: for each form of the context that the
    kernel saves, the offset of the PC from SP in that code. `context_places`: the same for 32 registers; -1 if one is not saved.
    """

    def __init__(
        self, sp: int, fp: int, sp_offset: int, little: bool, guess: CallerRule | None, signal: CallerRule, context_pc: Column,
        context_places: Column,
    ) -> None:  # fmt: skip
        self.sp = sp
        self.fp = fp
        self.sp_offset = sp_offset & ADDRESS_MASK
        self.little = little
        self.guess = guess
        self.signal = signal
        self.returning: CallerRule | None = None
        self.context_pc = context_pc
        self.context_places = context_places


class StackMemory(Protocol):
    """The memory of a process, as walks read it."""

    def word(self, address: int) -> int | None:
        """Return 8 bytes of memory; None if they cannot be read."""

    def window(self, address: int) -> tuple[int, Bytes]:
        """Return (start, bytes) of some memory around the address, so that further reads there need no call; it may be empty."""


class StackCursor:
    """The current frame of a walk. `find_caller` and then `go_to_caller` make its caller the current frame.

    `values`: registers by DWARF number; `known`: a bit for each register whose value is known. `exact`: `pc` is the next
    instruction; if False, a call ends there. The caller's SP must not be below `lowest`, the frame's SP, nor above `stack_end`,
    where the walk ends with `past_end`. `on_other_stack`: this frame is not on the copied stack. `holes`: a bit for each page of
    the window, from the first one on, that could not be read. `word`: a second result, the 8 bytes that `read` has read.
    `find_caller` sets the frame's `cfa`, and of the caller `ra` (its PC), `sp`, and `fp`, which is known if `keeps_fp`.
    """

    def __init__(self, machine: WalkedMachine, ra_mask: int, memory: StackMemory | None, past_end: int) -> None:
        """`ra_mask`: the bits of a return address that are not its signature. `memory`: None to read only from the window."""
        self.machine = machine
        self.memory = memory
        self.ra_mask = ra_mask & ADDRESS_MASK
        self.past_end = past_end
        self.values = zeros("Q", REGISTERS)
        self.saved = zeros("Q", REGISTERS)
        self.known = self.pc = self.lowest = self.stack_end = self.holes = 0
        self.exact = self.has_stack = True
        self.on_other_stack = False
        self.window: Bytes = b""
        self.window_start = self.window_size = self.word = 0
        self.cfa = self.ra = self.sp = self.fp = 0
        self.keeps_fp = False
        # Attributes because Cython makes a literal of more than 31 bits in an expression a Python object.
        self.mask = ADDRESS_MASK
        self.guess_reach = GUESS_REACH

    def set_window(self, start: int, window: Bytes) -> None:
        """Let reads use `window` first, the bytes of memory from `start` on."""
        self.window_start = start
        self.window = window
        self.window_size = len(window)

    def is_known(self, register: cython.Py_ssize_t) -> cython.bint:
        return register < 32 and self.known >> register & 1 != 0

    def find_caller(self, rule: CallerRule) -> cython.int:
        """Find the caller's CFA, PC, FP and SP in this order, but do not go to the caller yet; return the End, or -1."""
        flags: cython.int = rule.flags
        end: cython.int
        cfa: cython.ulonglong = rule.cfa_offset
        ra: cython.ulonglong
        fp: cython.ulonglong = self.values[self.machine.fp]
        sp: cython.ulonglong
        self.keeps_fp = self.is_known(self.machine.fp)
        if flags & RULE_OUTERMOST:
            return END_OTHER_STACK if flags & RULE_CFA_DEREF else END_OUTERMOST
        if not self.has_stack:
            return END_NO_STACK
        if rule.cfa_register >= 0:  # the CFA is a register plus an offset, or the word there
            if not self.is_known(rule.cfa_register):
                return END_UNKNOWN_REGISTER
            cfa = (self.values[rule.cfa_register] + cfa) & self.mask
        if rule.guess and (cfa - self.lowest) & self.mask > self.guess_reach:  # it is below the frame, or on another stack
            return END_GUESS_FAILED
        if rule.guess and self.holes and self.has_hole(self.lowest, cfa):  # the hole may be the end of the stack
            return END_GUESS_FAILED
        if flags & RULE_CFA_DEREF:
            end = self.read(cfa)
            if end >= 0:
                return end
            cfa = (self.word + (0 if flags & RULE_RA_REGISTER else rule.ra_register)) & self.mask
        ra = (cfa + rule.ra_offset) & self.mask  # the return address is the CFA plus an offset, or the word there, or in a register
        if flags & RULE_RA_REGISTER:
            if not self.is_known(rule.ra_register):
                return END_UNKNOWN_REGISTER
            ra = (self.values[rule.ra_register] + rule.ra_offset) & self.mask
        if flags & RULE_RA_DEREF:
            end = self.read(ra)
            if end >= 0:
                return end
            ra = self.word
        ra &= self.ra_mask
        sp = (cfa + self.machine.sp_offset) & self.mask  # whatever the rule is
        if flags & RULE_FP:  # FP is lost if it is in an unknown register, which matters to few frames
            self.keeps_fp = not flags & RULE_FP_REGISTER or self.is_known(rule.fp_register)
            fp = (cfa + rule.fp_offset) & self.mask
            if flags & RULE_FP_REGISTER and self.keeps_fp:
                fp = (self.values[rule.fp_register] + rule.fp_offset) & self.mask
            if flags & RULE_FP_DEREF and self.keeps_fp:
                end = self.read(fp)
                if end == END_COPY_TOO_SHORT:
                    return end
                self.keeps_fp = end < 0  # it may have been restored from below SP already, where copies have nothing
                fp = self.word
        if not flags & RULE_SIGNAL:  # after a signal, the interrupted code may be on another stack
            if sp < self.lowest or (sp == self.lowest and not self.exact):
                return END_NOT_ASCENDING
            if sp > self.stack_end:
                return self.past_end
        self.cfa = cfa
        self.ra = ra
        self.sp = sp
        self.fp = fp
        if rule.guess:  # a return address of 0 does not prove the end of the stack, as the register may hold anything
            return END_GUESS_FAILED if ra == 0 or cfa & 7 else -1  # a real CFA is a multiple of 8
        return END_NO_RETURN if ra == 0 else -1

    def go_to_caller(self, rule: CallerRule) -> cython.int:
        """Make the caller that `find_caller` found with this rule the current frame; return -1."""
        known: cython.ulonglong = 0  # a bit for each register
        one: cython.ulonglong = 1  # typed, because a literal would be shifted as 32 bits
        sp: cython.ulonglong = self.sp
        if rule.flags & RULE_SIGNAL:
            known = self.restore_interrupted_registers()
        if not known >> self.machine.fp & 1 and self.keeps_fp:
            self.values[self.machine.fp] = self.fp
            known |= one << self.machine.fp
        if known >> self.machine.sp & 1:
            sp = self.values[self.machine.sp]
        elif rule.sp_is_cfa:
            self.values[self.machine.sp] = sp
            known |= one << self.machine.sp
        self.known = known
        self.lowest = sp
        self.pc = self.ra
        self.exact = rule.flags & RULE_SIGNAL != 0
        return -1

    def restore_interrupted_registers(self) -> cython.ulonglong:
        """Set all registers that the kernel saved for a signal handler, and return a bit for each of them.

        They are in a context, of which there may be several forms: the right one has the caller's PC where the form has the PC.
        """
        known: cython.ulonglong = 0
        one: cython.ulonglong = 1  # typed, because a literal would be shifted as 32 bits
        sp: cython.ulonglong = self.values[self.machine.sp]
        form: cython.Py_ssize_t
        place: cython.longlong
        i: cython.Py_ssize_t
        if not self.is_known(self.machine.sp):
            return 0
        for form in range(len(self.machine.context_pc)):
            if self.read((sp + self.machine.context_pc[form]) & self.mask) < 0 and self.word & self.ra_mask == self.ra:
                for i in range(32):
                    place = self.machine.context_places[32 * form + i]
                    if place >= 0 and self.read((sp + place) & self.mask) < 0:
                        self.saved[i] = self.word
                        known |= one << i
                break
        for i in range(32):
            if known >> i & 1:
                self.values[i] = self.saved[i]
        return known

    def is_hole(self, address: cython.ulonglong) -> cython.bint:
        """Return True if the address is in a page of the window that could not be read."""
        page: cython.ulonglong = (address >> 12) - (self.window_start >> 12) & self.mask  # its number in the window
        return page < 64 and self.holes >> page & 1 != 0

    def has_hole(self, start: cython.ulonglong, end: cython.ulonglong) -> cython.bint:
        """Return True if a page from `start` to `end`, which are not far apart, could not be read."""
        while start < end:
            if self.is_hole(start):
                return True
            start = (start & ~0xFFF) + 0x1000 & self.mask
        return False

    def read(self, address: cython.ulonglong) -> cython.int:
        """Set `word` to the 8 bytes at the address; return the End, or -1."""
        at: cython.ulonglong = (address - self.window_start) & self.mask
        value: cython.ulonglong = 0
        i: cython.Py_ssize_t
        if self.window_size < 8 or at > self.window_size - 8:
            if self.memory is None:
                if self.on_other_stack:
                    return END_OTHER_STACK
                return END_UNREADABLE if address < self.window_start else END_COPY_TOO_SHORT
            start, window = self.memory.window(address)
            self.set_window(start, window)
            at = (address - self.window_start) & self.mask
            if self.window_size < 8 or at > self.window_size - 8:
                word = self.memory.word(address)
                if word is None:
                    return END_UNREADABLE
                self.word = word
                return -1
        if self.holes and (self.is_hole(address) or self.is_hole((address + 7) & self.mask)):
            return END_UNREADABLE
        for i in range(8):
            value |= self.byte(at + i) << (8 * i if self.machine.little else 56 - 8 * i)
        self.word = value
        return -1

    def byte(self, at: cython.Py_ssize_t) -> cython.ulonglong:
        return self.window[at]
