"""A range of code, decoded: its instructions, and those among them that touch the stack or the flow of control."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from sframegen.code.effects import Flow, Lose, Point, Register

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cfi.columns import Bytes
    from sframegen.code.isa import Isa

LOST_SP = (Lose(Register.SP),)
CHUNK = 1 << 14  # bytes: capstone keeps 250 bytes for each instruction of a call


Instruction: TypeAlias = tuple[int, int, str, str]  # (address, size, mnemonic, operands), as capstone gives them


class Piece(NamedTuple):
    """[start, end) decoded from its first byte on. `addresses`: of the instructions; `code_end`: where padding begins."""

    start: int
    end: int
    instructions: list[Instruction]
    addresses: list[int]
    points: list[Point]
    point_addresses: list[int]
    code_end: int
    code: Bytes

    def instruction_at(self, address: int) -> Instruction:
        """The instruction that an address of the piece is in."""
        return self.instructions[bisect_right(self.addresses, address) - 1]

    def begins(self, address: int) -> bool:
        """Whether an instruction begins there."""
        number = bisect_left(self.addresses, address)
        return number < len(self.addresses) and self.addresses[number] == address

    def behind_padding(self, address: int, isa: Isa) -> int:
        """The first instruction from there on that does not pad; the end without one."""
        for instruction in islice(self.instructions, bisect_left(self.addresses, address), None):
            if not isa.pads(*instruction[2:]):
                return instruction[0]
        return self.end


@cache
def _disassembler(capstone_names: tuple[str, str]) -> Any:  # noqa: ANN401 - capstone has no types
    import capstone  # noqa: PLC0415 - only those who disassemble need it

    architecture, mode = (getattr(capstone, name) for name in capstone_names)
    disassembler = capstone.Cs(architecture, mode)
    disassembler.skipdata = True  # what is no instruction comes as `.byte`
    return disassembler


def _instructions(code: Bytes, address: int, isa: Isa) -> Iterator[Instruction]:
    """All, one after the other; in chunks, whose last instruction may be cut off and is decoded again."""
    disassembler = _disassembler(isa.capstone)
    at = 0
    while at < len(code):
        last = at + CHUNK >= len(code)
        chunk = bytes(code[at : at + CHUNK])
        limit = address + at + len(chunk) - (0 if last else isa.longest)
        at += len(chunk)
        for found in disassembler.disasm_lite(chunk, address + at - len(chunk)):
            if found[0] >= limit:
                at = found[0] - address
                break
            yield found


def decode(code: Bytes, start: int, isa: Isa) -> Piece:
    """The instructions of [start, start + len(code))."""
    instructions = list(_instructions(code, start, isa))
    end = start + len(code)
    decoded = sum(instructions[-1][:2]) if instructions else start
    if decoded < end:  # less than an instruction
        instructions.append((decoded, end - decoded, ".byte", ""))
    points = _points(instructions, code, start, isa)
    code_end = end
    for address, _, mnemonic, operands in reversed(instructions):
        if not isa.pads(mnemonic, operands):
            break
        code_end = address
    return Piece(
        start, end, instructions, [one[0] for one in instructions], points, [point.address for point in points], code_end, code
    )


def _points(instructions: list[Instruction], code: Bytes, start: int, isa: Isa) -> list[Point]:
    points = []
    point_of = isa.point
    for number, (address, size, mnemonic, operands) in enumerate(instructions):
        if mnemonic == ".byte":
            points.append(Point(address, address + size, (), Flow.STOP))
            continue
        point = point_of(address, address + size, mnemonic, operands, code[address - start])
        if point is not None:
            if point.effects == LOST_SP:
                point = point._replace(effects=isa.by_register(instructions, number) or LOST_SP)
            points.append(point)
    return points


def is_alike_from(piece: Piece, address: int, isa: Isa) -> bool:
    """Whether the instruction that an address is inside of does the same from there on: one with a prefix that is jumped over."""
    begin, size, *_ = piece.instruction_at(address)
    whole, part = (
        _points(list(_instructions(code, at, isa)), code, at, isa)
        for at in (begin, address)
        for code in (piece.code[at - piece.start : begin + size - piece.start],)
    )
    return [(point.effects, point.flow) for point in whole] == [(point.effects, point.flow) for point in part] and all(
        point.flow is Flow.NEXT for point in whole
    )
