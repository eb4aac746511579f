from __future__ import annotations

from array import array

from sframegen.base.columns import Fdes
from sframegen.conversion.resolve import IGNORED, Pieces, resolve
from sframegen.elf.columns import Spans


def test_code_in_several_ranges() -> None:
    """Files with more than two executable segments are rare."""
    code = Spans(array("Q", [0x1000, 0x3000, 0x5000, 0x7000]), array("Q", [0x2000, 0x4000, 0x6000, 0x8000]))
    start = array("Q", [0x1000, 0x2000, 0x3FF0, 0x5000, 0x5FF8, 0x7000, 0x7008])
    size = array("Q", [0x10] * len(start))
    pieces = Pieces(array("I", bytes(28)), array("Q", bytes(56)), array("Q", bytes(56)))
    ignored, lost = array("Q", bytes(8 * len(IGNORED))), array("I", bytes(28))
    count = resolve(array("I"), Fdes(start, size, array("I", bytes(28))), code, pieces, ignored, lost)
    kept = [*zip(pieces.fde, pieces.start, pieces.end, strict=True)][:count]
    assert kept == [
        (0, 0x1000, 0x1010), (2, 0x3FF0, 0x4000), (3, 0x5000, 0x5010), (5, 0x7000, 0x7008), (6, 0x7008, 0x7018),
    ]  # fmt: skip
    assert dict(zip(IGNORED, ignored, strict=True)) == dict.fromkeys(IGNORED, 0) | {
        "outside of executable segments": 2,
        "cut short by the next one": 1,
    }
    assert [*lost[:3]] == [1, 4, 5]
