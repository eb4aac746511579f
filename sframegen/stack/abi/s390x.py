"""s390x: general and floating-point registers, and signal frames. There are no frame pointers, and calls are not recognised."""

from __future__ import annotations

from sframegen.stack.abi.machines import UCONTEXT_REGISTERS, Context, Conventions, RegisterSet

# F0 to F15 in the order of their DWARF numbers, which begin with 16.
_FLOATS = (0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15)


def _context(psw: int, code: bytes) -> Context:
    """Return the context at `psw`: PSW (mask, address), R0 to R15, access registers, FPC and padding, F0 to F15."""
    general = {number: psw + 16 + 8 * number for number in range(16)}
    return Context(psw + 8, general | {16 + at: psw + 216 + 8 * number for at, number in enumerate(_FLOATS)}, code)


CONVENTIONS = Conventions(
    # s390_regs: PSW (mask, address), R0 to R15, access registers, the original R2
    general=RegisterSet(27, 1, {number: 2 + number for number in range(16)}),
    contexts=(
        _context(168 + 128 + UCONTEXT_REGISTERS, b"\x0a\xad"),  # 160 bytes of the ABI, the code, siginfo, ucontext; svc 173
        _context(160 + 16, b"\x0a\x77"),  # without siginfo: 160 bytes, the signal mask, a pointer; svc 119
    ),
    # struct _s390_fp_regs: FPC, padding, F0 to F15
    floating=RegisterSet(17, 0, {16 + at: 1 + number for at, number in enumerate(_FLOATS)}),
)
