"""What functions of code without CFI find around them: calls that do not come back, and jump tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sframegen.code.callees import imports, never_returns
from sframegen.code.jumptables import ReadOnly, Tables
from sframegen.code.pieces import decode
from sframegen.code.stubs import LONGEST, slot_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sframegen.code.effects import Point
    from sframegen.code.isa import Isa
    from sframegen.code.pieces import Piece
    from sframegen.elf import ElfFile


class Outside:
    """Of one file. `stubs`: addresses of PLT entries."""

    def __init__(self, elf: ElfFile, isa: Isa, stubs: set[int]) -> None:
        self.elf = elf
        self.isa = isa
        self.imports = imports(elf)
        self.stubs = stubs
        self.never = {symbol.address for symbol in elf.functions() if never_returns(symbol.name)}
        self.known: dict[int, bool] = {}
        self.read_only = ReadOnly(elf)

    def table(self, piece: Piece, point: Point, begins: Callable[[int], bool]) -> Sequence[int]:
        """All targets of an indirect jump in the piece, each of which `begins` an instruction; none if they are not all known."""
        return Tables(piece, self.read_only.read).targets(point, begins, lambda _: False)

    def returns(self, target: int | None, slot: int | None) -> bool:
        """Whether a call may come back; `slot`: the memory that it reads its target from."""
        if target is None:
            return slot is None or not never_returns(self.imports.get(slot, ""))
        if target not in self.known:
            self.known[target] = target not in self.never and (target not in self.stubs or self._stub_returns(target))
        return self.known[target]

    def _stub_returns(self, target: int) -> bool:
        for size in (LONGEST, 16, 8):
            try:
                slot = slot_of(decode(self.elf.at(target, size), target, self.isa))
            except ValueError:
                continue
            if slot is not None:
                return not never_returns(self.imports.get(slot, ""))
        return True
