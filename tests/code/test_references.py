"""Numbers in code that are distances to other code."""

from __future__ import annotations

from array import array

from sframegen.code.context.function_starts import find_distances_into

ADDRESS = 0x5000
CALL = b"\xe8"


def test_distances_lead_to_aligned_addresses_in_the_ranges() -> None:
    starts, ends = array("Q", [0x1000, 0x8000]), array("Q", [0x3000, 0x7FFF0000])
    targets = [0x1000, 0xFF0, 0x2FF0, 0x1008, 0x3000, 0x8010, 0x7FFE0000, 0x7FFF0000, -16]
    calls = [(target - ADDRESS - 5 * number - 5).to_bytes(4, "little", signed=True) for number, target in enumerate(targets)]
    code = b"".join(CALL + distance for distance in calls)
    found = {after for after in find_distances_into(code, ADDRESS, starts, ends, 16) if after % 5 == 0}
    assert {targets[after // 5 - 1] for after in found} == {0x1000, 0x2FF0, 0x8010, 0x7FFE0000}
    assert find_distances_into(b"\0\0\0", ADDRESS, starts, ends, 16) == []
