"""Made-up call frame information, in which any instruction follows any other: for two readers that are to agree on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sframegen.format.abi import AARCH64, AARCH64_BE, AMD64, S390X
from tests.support.inputs.cfi_writer import Frames, sleb, uleb

if TYPE_CHECKING:
    from random import Random

    from sframegen.format.abi import Abi

ABIS = (AMD64, AARCH64, AARCH64_BE, S390X)
FUNCTION_BYTES = 32
REGISTERS = {
    3: (6, 7, 16, 10),
    2: (29, 31, 30, 9),
    1: (29, 31, 30, 9),
    4: (11, 15, 14, 17),
}  # by sframe_id: FP, SP, RA, another one
NEAR = (0, 8, 16, 24, 160, 168, 176)
FAR = (1 << 15, (1 << 31) - 8, 1 << 31, 1 << 32, 1 << 33, 1 << 62)
NOT_IN_A_CIE = (0x06, 0x0A, 0x0B)  # and 0xC0 to 0xFF: restore, remember_state, restore_state
RA_STATES = ((b"\x2d",), (b"\x16\x22\x01\x30", b"\x16\x22\x01\x31"))  # a program negates RA_SIGN_STATE, or has rules for it
DEREF, CONSTS, DUP, DROP, SWAP, AND, MINUS, PLUS, PLUS_UCONST, LIT15 = 0x06, 0x11, 0x12, 0x13, 0x16, 0x1A, 0x1C, 0x22, 0x23, 0x3F


class Writer:
    """Writes programs for one ABI."""

    def __init__(self, abi: Abi, random: Random) -> None:
        self.abi = abi
        self.random = random
        self.ra_states: tuple[bytes, ...] = RA_STATES[0]

    def offset(self) -> int:
        return self.random.choice(NEAR if self.random.random() < 0.95 else FAR) * self.random.choice((1, 1, -1))

    def register(self) -> int:
        fp, sp, ra, other = REGISTERS[self.abi.sframe_id]
        return self.random.choice((fp, fp, sp, ra, other, self.random.randrange(40)))

    def expression(self) -> bytes:
        return b"".join([self.base(), *(self.operation() for _ in range(self.random.randrange(3)))])

    def operation(self) -> bytes:
        number = bytes([CONSTS]) + sleb(self.offset())
        return self.random.choice(
            (
                bytes([DEREF]),
                bytes([PLUS_UCONST]) + uleb(abs(self.offset())),
                number + bytes([PLUS]),
                number + bytes([MINUS]),
                bytes([DUP, DROP]),
                self.base() + bytes([DROP]),
                self.base() + bytes([SWAP, DROP]),
                self.base() + bytes([PLUS]),
                bytes([LIT15, AND]),
            )
        )

    def base(self) -> bytes:
        register = self.register()
        if register < 32 and self.random.random() < 0.8:
            return bytes([0x70 + register]) + sleb(self.offset())
        return bytes([0x92]) + uleb(register) + sleb(self.offset())

    def instruction(self, *, depth: int) -> tuple[bytes, int]:
        """An instruction that makes no row, and the number of remembered states after it."""
        random, register = self.random, self.register()
        slot = random.randrange(8)
        block = self.expression()
        written = random.choice(
            (
                b"\x0c" + uleb(register) + uleb(abs(self.offset())),
                b"\x0d" + uleb(register),
                b"\x0e" + uleb(abs(self.offset())),
                b"\x0f" + uleb(len(block)) + block,
                b"\x10" + uleb(register) + uleb(len(block)) + block,
                b"\x16" + uleb(register) + uleb(len(block)) + block,
                bytes([0x80 + register % 64]) + uleb(slot),
                b"\x05" + uleb(register) + uleb(slot),
                b"\x11" + uleb(register) + sleb(slot - 4),
                b"\x14" + uleb(register) + uleb(slot),
                b"\x15" + uleb(register) + sleb(slot - 4),
                b"\x13" + sleb(slot - 4),
                b"\x06" + uleb(register),
                bytes([0xC0 + register % 64]),
                b"\x07" + uleb(register),
                b"\x08" + uleb(register),
                b"\x09" + uleb(register) + uleb(self.register()),
                b"\x2e" + uleb(slot),
                b"\x0a",
                b"\x0b",
                *(self.ra_states if self.abi.ra_is_signed else ()),
            )
        )
        if written == b"\x0b" and not depth:
            return b"\0", 0
        return written, depth + {b"\x0a": 1, b"\x0b": -1}.get(written, 0)

    def program(self) -> bytes:
        parts, depth = [], 0
        self.ra_states = self.random.choice(RA_STATES)
        for _ in range(self.random.randrange(1, 8)):
            for _ in range(self.random.randrange(3)):
                part, depth = self.instruction(depth=depth)
                parts.append(part)
            parts.append(self.random.choice((b"\x41", b"\x42", b"\x02\x03", b"\x03" + (4).to_bytes(2, self.abi.byte_order))))
        return b"".join(parts)

    def initial(self) -> bytes:
        fp, sp, ra, _ = REGISTERS[self.abi.sframe_id]
        usual = b"\x0c" + uleb(sp) + uleb(8 if self.abi.ra == AMD64.ra else 160 if self.abi.ra == S390X.ra else 0)
        if self.abi.ra == AMD64.ra:
            usual += bytes([0x80 + ra, 1])
        if self.random.random() < 0.2:
            usual += bytes([0x80 + fp, 2])
        if self.random.random() < 0.1:
            more, _ = self.instruction(depth=1)
            usual += more if more[0] not in NOT_IN_A_CIE and more[0] < 0xC0 else b""
        return usual


def made_frames(abi: Abi, random: Random, start: int, functions: int, *, eh: bool) -> Frames:
    writer = Writer(abi, random)
    frames = Frames(eh=eh, big=abi.byte_order == "big")
    for number in range(functions):
        augmentation = random.choice(("zR", "zR", "zRS", *(["zRB"] if abi.ra_is_signed else []))) if eh else ""
        cie = frames.cie(writer.initial(), augmentation=augmentation, data=b"\0" * eh, ra=abi.ra)
        frames.fde(cie, frames.number(start + FUNCTION_BYTES * number, 8), frames.number(FUNCTION_BYTES, 8), writer.program())
    return frames
