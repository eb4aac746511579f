from __future__ import annotations

from array import array

from sframegen.base.columns import Fdes
from sframegen.conversion.resolve import IGNORE_REASONS, FdeRanges, resolve_overlaps
from sframegen.elf.columns import Spans


def test_code_in_several_ranges() -> None:
    """Files with more than two executable segments are rare."""
    code = Spans(array("Q", [0x1000, 0x3000, 0x5000, 0x7000]), array("Q", [0x2000, 0x4000, 0x6000, 0x8000]))
    start = array("Q", [0x1000, 0x2000, 0x3FF0, 0x5000, 0x5FF8, 0x7000, 0x7008])
    size = array("Q", [0x10] * len(start))
    fde_ranges = FdeRanges(array("I", bytes(28)), array("Q", bytes(56)), array("Q", bytes(56)))
    reason_counts, ignored_fdes = array("Q", bytes(8 * len(IGNORE_REASONS))), array("I", bytes(28))
    count = resolve_overlaps(array("I"), Fdes(start, size, array("I", bytes(28))), code, fde_ranges, reason_counts, ignored_fdes)
    kept = [*zip(fde_ranges.fde, fde_ranges.start, fde_ranges.end, strict=True)][:count]
    assert kept == [
        (0, 0x1000, 0x1010), (2, 0x3FF0, 0x4000), (3, 0x5000, 0x5010), (5, 0x7000, 0x7008), (6, 0x7008, 0x7018),
    ]  # fmt: skip
    assert dict(zip(IGNORE_REASONS, reason_counts, strict=True)) == dict.fromkeys(IGNORE_REASONS, 0) | {
        "outside of executable segments": 2,
        "cut short by the next one": 1,
    }
    assert [*ignored_fdes[:3]] == [1, 4, 5]
