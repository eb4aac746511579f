"""The stack conventions of ABIs and kernels: the types of the tables that each machine's file in this folder fills.

The conventions say where the kernel puts registers (of a stopped thread, of code that a signal interrupted, in samples of perf
events), how a frame pointer leads to the caller, and which bytes of code end a call, begin a thread or return from a signal
handler. `walked_machine` gives them to walks as numbers.
"""

from __future__ import annotations

from array import array
from importlib import import_module
from struct import unpack_from
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from sframegen.elf.records import MACHINE_NAMES, STRUCT_BYTE_ORDERS
from sframegen.format.abi import ABIS, Abi
from sframegen.format.model import Rule, Where
from sframegen.stack.walking.frames import ADDRESS_MASK
from sframegen.stack.walking.step import REGISTERS, WalkedMachine, caller_rule

if TYPE_CHECKING:
    from collections.abc import Callable

UCONTEXT_REGISTERS = 40  # offset in struct ucontext: after uc_flags, uc_link, uc_stack
NT_PRSTATUS, NT_PRFPREG = 1, 2
PAC_MASK_BYTES = 16  # a mask for data, and one for instructions
NO_OFFSET = -1  # of a register that a context does not save

ReadCode: TypeAlias = "Callable[[int, int], bytes]"  # (address, size): the bytes there; none if they cannot be read


class RegisterSet(NamedTuple):
    """A block of `words` 64-bit words with registers. `pc`: the index of the PC; `places`: indexes of others by DWARF number."""

    words: int
    pc: int
    places: dict[int, int]


class Context(NamedTuple):
    """Registers that the kernel saves for a signal handler, as offsets from SP in the code that the handler returns to."""

    pc: int
    places: dict[int, int]  # of the other registers, by DWARF number
    code: bytes  # the code that the handler returns to
    instructions: tuple[int, ...] = (0,)  # the offset of each instruction in it

    def rule(self, sp: int, fp: int) -> Rule:
        """Return the same offsets as a rule, for C libraries that have no rule for this code."""
        cfa, ra, caller_fp = (Where(sp, place, deref=True) for place in (self.places[sp], self.pc, self.places[fp]))
        return Rule(cfa, ra, caller_fp)


class Returning(NamedTuple):
    """Code outside of files that only returns, such as CPython's -X perf trampolines: its bytes from the PC on, and its rule."""

    code: bytes
    rule: Rule


class FrameRecord(NamedTuple):
    """The caller's FP and PC in memory, which register `fp` points to if code keeps frame pointers.

    `sp_is_cfa`: the caller's SP is the CFA, which is the address after the record.
    """

    fp: int
    sp_is_cfa: bool

    @property
    def rule(self) -> Rule:
        return Rule(Where(self.fp, 16), Where(None, -8, deref=True), Where(None, -16, deref=True))


class Conventions(NamedTuple):
    general: RegisterSet  #: NT_PRSTATUS
    contexts: tuple[Context, ...]  #: those of signal handlers
    frame_record: FrameRecord | None = None  #: None if the ABI has no frame pointers
    ends_call: Callable[[ReadCode, int], bool] = lambda _code, _pc: True
    #: (code, pc): True if a call ends at `pc`, or a no-op, which runtimes such as Go's put before an address that they push
    starts_thread: Callable[[ReadCode, int], bool] = lambda _code, _pc: False
    #: (code, pc): True just after the system call that creates a thread, where the new thread begins and its creator goes on
    returning: Returning | None = None  #: None if such code keeps frame records
    floating: RegisterSet | None = None  #: NT_PRFPREG, if flexible rules may name such registers
    ra_mask: int = ADDRESS_MASK  #: the bits of a return address that are not its signature, if the kernel does not say
    ra_mask_set: int | None = None  #: the register set that holds these masks
    sampled: RegisterSet | None = None  #: the registers in samples of perf events, by the kernel's numbers for them

    def context_at(self, code: ReadCode, pc: int) -> Context | None:
        """Return the context that the code at `pc` restores after a signal handler; None for other code."""
        candidates = ((context, offset) for context in self.contexts for offset in context.instructions)
        return next((context for context, offset in candidates if code(pc - offset, len(context.code)) == context.code), None)


# The traced ABI by the machine name of uname. Of a machine with two byte orders, only the first is traced.
HOST_ABIS = {name: next(abi for abi in ABIS if abi.machine == machine) for machine, name in MACHINE_NAMES.items()}
_walked: dict[str, WalkedMachine] = {}


def conventions_of(abi: Abi) -> Conventions:
    conventions: Conventions = import_module(f"sframegen.stack.abi.{MACHINE_NAMES[abi.machine]}").CONVENTIONS
    return conventions


def walked_machine(abi: Abi) -> WalkedMachine:
    """Return the ABI's conventions as numbers, in the form that walks use."""
    if abi.name not in _walked:
        conventions = conventions_of(abi)
        guess = None
        if conventions.frame_record is not None:
            guess = caller_rule(conventions.frame_record.rule, abi.ra)
            guess.guess, guess.sp_is_cfa = True, conventions.frame_record.sp_is_cfa
        contexts = conventions.contexts
        signal = caller_rule(contexts[0].rule(abi.sp, abi.fp), abi.ra, signal=True)
        pcs = array("q", [context.pc for context in contexts])
        places = array("q", [context.places.get(number, NO_OFFSET) for context in contexts for number in range(REGISTERS)])
        machine = WalkedMachine(abi.sp, abi.fp, abi.sp_offset, abi.byte_order == "little", guess, signal, pcs, places)
        machine.returning = caller_rule(conventions.returning.rule, abi.ra) if conventions.returning else None
        _walked[abi.name] = machine
    return _walked[abi.name]


class ThreadRegisters(NamedTuple):
    """A thread's known registers: `values` by DWARF number. `ra_mask`: the bits of a return address that are not its signature."""

    pc: int
    values: dict[int, int]
    ra_mask: int = ADDRESS_MASK


def parse_registers(abi: Abi, general: bytes, floating: bytes = b"", masks: bytes = b"") -> ThreadRegisters | None:
    """Return the registers in NT_PRSTATUS, NT_PRFPREG and the set of signature masks; None for a 32-bit thread."""
    conventions = conventions_of(abi)
    if len(general) != 8 * conventions.general.words:
        return None
    words = _unpack_words(abi, general, conventions.general)
    values = {number: words[at] for number, at in conventions.general.places.items()}
    if conventions.floating and len(floating) >= 8 * conventions.floating.words:
        floating_words = _unpack_words(abi, floating, conventions.floating)
        values |= {number: floating_words[at] for number, at in conventions.floating.places.items()}
    signature_bits = int.from_bytes(masks[8:], abi.byte_order) if len(masks) == PAC_MASK_BYTES else 0
    return ThreadRegisters(words[conventions.general.pc], values, ~signature_bits if signature_bits else conventions.ra_mask)


def _unpack_words(abi: Abi, raw: bytes, registers: RegisterSet) -> tuple[int, ...]:
    return unpack_from(f"{STRUCT_BYTE_ORDERS[abi.byte_order]}{registers.words}Q", raw)
