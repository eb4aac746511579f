"""x86-64: registers, signal frames, frame pointers and calls."""

from __future__ import annotations

import re

from sframegen.format.model import Rule, Where
from sframegen.stack.abi.machines import UCONTEXT_REGISTERS, Context, Conventions, FrameRecord, ReadCode, RegisterSet, Returning

# By DWARF number, the index in struct user_regs_struct: R15-R12 RBP RBX R11-R8 RAX RCX RDX RSI RDI, orig_rax, RIP CS EFLAGS RSP.
_USER_REGS = {number: at for at, number in enumerate((15, 14, 13, 12, 6, 3, 11, 10, 9, 8, 0, 2, 1, 4, 5))}
# SP points to struct ucontext, which has R8 to R15, RDI, RSI, RBP, RBX, RDX, RAX, RCX, RSP and RIP: their DWARF numbers.
_CONTEXT_REGISTERS = (*range(8, 16), 5, 4, 6, 3, 1, 0, 2, 7)
_CONTEXT = Context(
    UCONTEXT_REGISTERS + 8 * len(_CONTEXT_REGISTERS),
    {number: UCONTEXT_REGISTERS + 8 * at for at, number in enumerate(_CONTEXT_REGISTERS)},
    bytes.fromhex("48c7c00f0000000f05"),  # mov $15,%rax; syscall
    (0, 7),
)

# By DWARF number, the bit in enum perf_event_x86_regs: RAX RBX RCX RDX RSI RDI RBP RSP RIP, flags and segments, R8 to R15.
_PERF_REGISTERS = {number: at for at, number in enumerate((0, 3, 2, 1, 4, 5, 6, 7))} | {
    number: 8 + number for number in range(8, 16)
}

LONGEST_CALL = 7  # bytes of a call without prefixes
# A no-op, E8, or FF /2 with ModRM, perhaps SIB, and perhaps a displacement, which SIB base 5 has even if ModRM has none.
_SIB_BASE_5 = b"".join(b"\\x%02x" % number for number in range(5, 256, 8))
ENDS_CALL = re.compile(
    rb"(?:\x90|\xe8.{4}|\xff(?:[\xd0-\xd7\x10-\x13\x16\x17]|\x14(?:[%b].{4}|[^%b])|\x15.{4}"
    rb"|[\x50-\x53\x55-\x57].|\x54..|[\x90-\x93\x95-\x97].{4}|\x94.{5}))\Z" % (_SIB_BASE_5, _SIB_BASE_5),
    re.DOTALL,
)
# mov $clone or $clone3, %eax; syscall; test %rax,%rax, or Go's cmp $0,%rax
CLONE_CODE = re.compile(rb"\xb8(?:\x38\x00|\xb3\x01)\x00\x00\x0f\x05\x48(?:\x85\xc0|\x83\xf8)", re.DOTALL)
AFTER_SYSCALL, CLONE_BYTES = 7, 10  # offset of the code after the system call, and bytes of the whole code


def ends_call(code: ReadCode, pc: int) -> bool:
    """Return True if a call or a no-op ends at `pc`."""
    readable = filter(None, (code(pc - size, size) for size in range(LONGEST_CALL, 0, -1)))  # less where the mapping begins
    return ENDS_CALL.search(next(readable, b"")) is not None


def starts_thread(code: ReadCode, pc: int) -> bool:
    """Return True shortly after the system call in `clone` or `clone3` that begins a thread; `fork` has other code."""
    return any(CLONE_CODE.match(code(pc - before, CLONE_BYTES)) for before in range(AFTER_SYSCALL, AFTER_SYSCALL + CLONE_BYTES))


CONVENTIONS = Conventions(
    general=RegisterSet(27, 16, _USER_REGS | {7: 19}),  # PC is RIP, and 7 is RSP
    contexts=(_CONTEXT,),
    frame_record=FrameRecord(6, sp_is_cfa=True),
    ends_call=ends_call,
    starts_thread=starts_thread,
    # add $8,%rsp; ret: (cfa, ra) = (rsp + 16, *(cfa - 8))
    returning=Returning(bytes.fromhex("4883c408c3"), Rule(Where(7, 16), Where(None, -8, deref=True))),
    sampled=RegisterSet(24, 8, _PERF_REGISTERS),
)
