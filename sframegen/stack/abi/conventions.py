"""What an ABI and its kernel fix about stacks: the types of the tables in the files of the machines."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from sframegen.format.model import Rule, Where
from sframegen.stack.walking.frames import ADDRESS_MASK

if TYPE_CHECKING:
    from collections.abc import Callable

UCONTEXT_REGISTERS = 40  # in struct ucontext: after uc_flags, uc_link, uc_stack

ReadCode: TypeAlias = "Callable[[int, int], bytes]"  # (address, size): the bytes there; none if they cannot be read


class RegisterSet(NamedTuple):
    """A block of 64-bit words: how many, which of them is the PC, which are the others by DWARF number."""

    words: int
    pc: int
    places: dict[int, int]


class Context(NamedTuple):
    """What the kernel saved on the stack before it called a handler: offsets from SP in the code that the handler returns to."""

    pc: int
    places: dict[int, int]  # of the other registers, by DWARF number
    code: bytes  # that code
    instructions: tuple[int, ...] = (0,)  # where each of its instructions is

    def rule(self, sp: int, fp: int) -> Rule:
        """The same as a rule, for code that nothing else describes."""
        cfa, ra, caller_fp = (Where(sp, place, deref=True) for place in (self.places[sp], self.pc, self.places[fp]))
        return Rule(cfa, ra, caller_fp)


class Returning(NamedTuple):
    """Code in no file that only returns, as CPython's trampolines for -X perf: its bytes from the PC on, and the rule there."""

    code: bytes
    rule: Rule


class FrameRecord(NamedTuple):
    """Where code with frame pointers keeps its caller's; `sp_is_cfa`: the caller's SP is the CFA that the rule gives."""

    rule: Rule
    sp_is_cfa: bool


def frame_record(fp: int, *, sp_is_cfa: bool) -> FrameRecord:
    """(cfa, ra, fp) = (fp + 16, *(cfa - 8), *(cfa - 16))."""
    return FrameRecord(Rule(Where(fp, 16), Where(None, -8, deref=True), Where(None, -16, deref=True)), sp_is_cfa)


class Conventions(NamedTuple):
    """What is known of the stacks of one ABI."""

    host: str  #: what uname calls such a machine; empty if the processes of one are not traced
    general: RegisterSet  #: NT_PRSTATUS
    contexts: tuple[Context, ...]  #: those of signal handlers
    frame_record: FrameRecord | None = None  #: None if frame pointers lead nowhere
    ends_call: Callable[[ReadCode, int], bool] | None = None
    #: (code, pc): true if a call ends at `pc`, or a no-op: runtimes, Go's goexit for one, put one before an address that they push
    starts_thread: Callable[[ReadCode, int], bool] | None = None
    #: (code, pc): true if a new thread begins there, if the system call returned 0, after which its creator goes on
    returning: Returning | None = None  #: None if such code keeps frame records
    floating: RegisterSet | None = None  #: NT_PRFPREG, if flexible rules may name such registers
    ra_mask: int = ADDRESS_MASK  #: the bits of a return address that are not its signature, if the kernel does not say
    ra_mask_set: int | None = None  #: the register set that holds these masks
    sampled: RegisterSet | None = None  #: the registers in samples of perf events, by the kernel's numbers for them
