"""What an ABI and its kernel fix about frames: the registers that a signal interrupted, how its handler returns, frame records."""

from __future__ import annotations

from typing import NamedTuple

from sframegen.elf.records import EM_AARCH64, EM_S390, EM_X86_64
from sframegen.format.model import Rule, Where


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


class FrameRecord(NamedTuple):
    """Where code with frame pointers keeps its caller's; `sp_is_cfa`: the caller's SP is the CFA that the rule gives."""

    rule: Rule
    sp_is_cfa: bool


UCONTEXT_REGISTERS = 40  # in struct ucontext: behind uc_flags, uc_link, uc_stack


def _x86_64() -> Context:
    """SP is at struct ucontext: R8 to R15, RDI, RSI, RBP, RBX, RDX, RAX, RCX, RSP, RIP."""
    order = (*range(8, 16), 5, 4, 6, 3, 1, 0, 2, 7)
    code = bytes.fromhex("48c7c00f0000000f05")  # mov $15,%rax; syscall
    return Context(
        UCONTEXT_REGISTERS + 8 * 16, {number: UCONTEXT_REGISTERS + 8 * at for at, number in enumerate(order)}, code, (0, 7)
    )


def _aarch64() -> Context:
    """SP is at siginfo (128 bytes), then ucontext, whose signal mask has 128; 16-byte aligned fault address, X0 to X30, SP, PC."""
    first = 128 + 176 + 8
    code = bytes.fromhex("681180d2010000d4")  # mov x8,#139; svc #0
    return Context(first + 8 * 32, {number: first + 8 * number for number in range(32)}, code, (0, 4))


def _s390x(psw: int, code: bytes) -> Context:
    """PSW (mask, address), R0 to R15, access registers, FPC and padding, F0 to F15 in DWARF's order of them."""
    floats = (0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15)
    general = {number: psw + 16 + 8 * number for number in range(16)}
    return Context(psw + 8, general | {16 + at: psw + 216 + 8 * number for at, number in enumerate(floats)}, code)


# By e_machine.
CONTEXTS: dict[int, tuple[Context, ...]] = {
    EM_X86_64: (_x86_64(),),
    EM_AARCH64: (_aarch64(),),
    EM_S390: (
        _s390x(168 + 128 + UCONTEXT_REGISTERS, b"\x0a\xad"),  # 160 bytes of the ABI's, the instruction, siginfo, ucontext; svc 173
        _s390x(160 + 16, b"\x0a\x77"),  # without siginfo: 160 bytes, the signal mask, a pointer; svc 119
    ),
}

_SAVED = (Where(None, -8, deref=True), Where(None, -16, deref=True))  # RA, FP
FRAME_RECORDS: dict[int, FrameRecord] = {
    EM_X86_64: FrameRecord(Rule(Where(6, 16), *_SAVED), sp_is_cfa=True),
    EM_AARCH64: FrameRecord(Rule(Where(29, 16), *_SAVED), sp_is_cfa=False),
}
