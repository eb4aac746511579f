"""AArch64: registers, signed return addresses, signal frames, frame pointers and calls."""

from __future__ import annotations

from sframegen.stack.abi.machines import Context, Conventions, FrameRecord, ReadCode, RegisterSet

NT_ARM_PAC_MASK = 0x406  # two words: the masks of data and of instructions

# SP points to siginfo (128 bytes). After it comes ucontext: 176 bytes up to the fault address, then X0 to X30, SP and PC.
_X0_OFFSET = 128 + 176 + 8
_CONTEXT = Context(
    _X0_OFFSET + 8 * 32,
    {number: _X0_OFFSET + 8 * number for number in range(32)},
    bytes.fromhex("681180d2010000d4"),  # mov x8,#139; svc #0
    (0, 4),  # offsets of the instructions
)

# mov x8,#clone or #clone3; svc #0; cmp x0,#0
CLONE_CODES = tuple(number + bytes.fromhex("010000d41f0000f1") for number in (b"\x88\x1b\x80\xd2", b"\x68\x36\x80\xd2"))
AFTER_CLONE = (8, 12)  # offsets of the instructions after svc
NOPS = (0xD503201F, 0xAA0003E0)  # nop; mov x0, x0


def ends_call(code: ReadCode, pc: int) -> bool:
    """Return True if a call or a no-op ends at `pc`."""
    instruction = int.from_bytes(code(pc - 4, 4), "little")
    is_bl, is_blr = instruction >> 26 == 0x25, instruction & 0xFEFFF000 == 0xD63F0000  # also BLRAA, BLRAAZ and the like
    return is_bl or is_blr or instruction in NOPS


def starts_thread(code: ReadCode, pc: int) -> bool:
    """Return True shortly after the system call in `clone` or `clone3` that begins a thread; `fork` has other code."""
    return any(code(pc - offset, len(clone)) == clone for clone in CLONE_CODES for offset in AFTER_CLONE)


CONVENTIONS = Conventions(
    general=RegisterSet(34, 32, {number: number for number in range(32)}),  # X0 to X30, SP, PC, PSTATE
    contexts=(_CONTEXT,),
    frame_record=FrameRecord(29, sp_is_cfa=False),
    ends_call=ends_call,
    starts_thread=starts_thread,
    ra_mask=(1 << 48) - 1,  # an address has 48 bits; the bits above are the signature
    ra_mask_set=NT_ARM_PAC_MASK,
    sampled=RegisterSet(33, 32, {number: number for number in range(32)}),  # X0 to X30, SP, PC
)
