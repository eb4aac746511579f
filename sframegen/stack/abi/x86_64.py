"""x86-64: registers, signal frames, frame pointers and calls."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sframegen.format.model import Rule, Where
from sframegen.stack.abi.machines import UCONTEXT_REGISTERS, Context, Conventions, RegisterSet, Returning, frame_record

if TYPE_CHECKING:
    from sframegen.stack.abi.machines import ReadCode

# struct user_regs_struct: R15 R14 R13 R12 RBP RBX R11 R10 R9 R8 RAX RCX RDX RSI RDI, orig_rax, RIP, CS, EFLAGS, RSP, ...
_USER = {number: at for at, number in enumerate((15, 14, 13, 12, 6, 3, 11, 10, 9, 8, 0, 2, 1, 4, 5))}
# SP is at struct ucontext, with R8 to R15, RDI, RSI, RBP, RBX, RDX, RAX, RCX, RSP, RIP.
_SAVED = (*range(8, 16), 5, 4, 6, 3, 1, 0, 2, 7)
_CONTEXT = Context(
    UCONTEXT_REGISTERS + 8 * len(_SAVED),
    {number: UCONTEXT_REGISTERS + 8 * at for at, number in enumerate(_SAVED)},
    bytes.fromhex("48c7c00f0000000f05"),  # mov $15,%rax; syscall
    (0, 7),
)

# enum perf_event_x86_regs: RAX RBX RCX RDX RSI RDI RBP RSP RIP, flags and segments, R8 to R15.
_SAMPLED = {number: at for at, number in enumerate((0, 3, 2, 1, 4, 5, 6, 7))} | {number: 8 + number for number in range(8, 16)}

LONGEST = 7  # bytes of a call without prefixes
NOP = 0x90
# mov $clone or $clone3, %eax; syscall; test %rax,%rax, or Go's cmp $0,%rax
CLONES = re.compile(rb"\xb8(?:\x38\x00|\xb3\x01)\x00\x00\x0f\x05\x48(?:\x85\xc0|\x83\xf8)", re.DOTALL)
AFTER_CLONE, CLONE_BYTES = 7, 10


def ends_call(code: ReadCode, pc: int) -> bool:
    before = next(filter(None, (code(pc - size, size) for size in range(LONGEST, 0, -1))), b"")
    return before[-5:-4] == b"\xe8" or before[-1:] == bytes([NOP]) or any(map(_is_indirect_call, _tails(before)))


def _tails(data: bytes) -> list[bytes]:
    return [data[at:] for at in range(len(data) - 1)]


def _is_indirect_call(data: bytes) -> bool:
    """True if all of `data` is one: FF /2: opcode, ModRM, perhaps SIB, perhaps a displacement."""
    if data[0] != 0xFF or data[1] >> 3 & 7 != 2:
        return False
    mod, rm = data[1] >> 6, data[1] & 7
    size = 2 + (rm == 4 and mod != 3)
    if mod == 0 and (rm == 5 or (rm == 4 and len(data) > 2 and data[2] & 7 == 5)):
        size += 4
    elif mod in (1, 2):
        size += 1 if mod == 1 else 4
    return len(data) == size


def starts_thread(code: ReadCode, pc: int) -> bool:
    """`fork` tests the result in another way."""
    return any(CLONES.match(code(pc - before, CLONE_BYTES)) for before in range(AFTER_CLONE, AFTER_CLONE + CLONE_BYTES))


CONVENTIONS = Conventions(
    general=RegisterSet(27, 16, _USER | {7: 19}),
    contexts=(_CONTEXT,),
    frame_record=frame_record(6, sp_is_cfa=True),
    ends_call=ends_call,
    starts_thread=starts_thread,
    # add $8,%rsp; ret: (cfa, ra) = (rsp + 16, *(cfa - 8))
    returning=Returning(bytes.fromhex("4883c408c3"), Rule(Where(7, 16), Where(None, -8, deref=True))),
    sampled=RegisterSet(24, 8, _SAMPLED),
)
