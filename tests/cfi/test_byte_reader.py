from __future__ import annotations

import pytest

from sframegen.base.columns import COMPILED, ByteReader
from tests.support.loops import for_each

DATA = bytes([0x81, 2, 0x83, 4, 0x85, 6, 0x87, 8, 0x89, 0x90])


@for_each("width", range(1, 9))
@for_each("big", [False, True])
def test_numbers_of_every_width_at_every_place(width: int, big: bool) -> None:
    if COMPILED:
        return  # then only compiled code can ask
    numbers = ByteReader(DATA, big)
    for pos in range(len(DATA) - width + 1):
        assert numbers.number(pos, width) == int.from_bytes(DATA[pos : pos + width], "big" if big else "little")
    for pos in (-1, len(DATA) - width + 1, 1 << 40):
        with pytest.raises(IndexError):
            numbers.number(pos, width)
