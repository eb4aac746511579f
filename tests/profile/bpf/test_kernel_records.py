"""Records that the kernel program sends."""

from __future__ import annotations

import struct

from sframegen.profile.bpf.kernel_records import RECORD_AREA, NewArea, decode_record, without_repeated_areas

OTHER = struct.pack("=I", RECORD_AREA + 1)


def area(time: int, pid: int, start: int) -> bytes:
    return struct.pack("=IIQQQ", RECORD_AREA, pid, time, start, start + 16)


def test_repeated_areas_are_the_first_and_the_last_one() -> None:
    records = [area(time, 7, 32) for time in range(5)]
    records[2:2] = [OTHER, area(9, 8, 32), area(9, 7, 48), OTHER]
    kept = without_repeated_areas(records)
    assert kept == [records[0], *records[2:6], records[-1]]
    assert [decode_record(record) for record in kept if record != OTHER] == [
        NewArea(0, 7, 32, 48),
        NewArea(9, 8, 32, 48),
        NewArea(9, 7, 48, 64),
        NewArea(4, 7, 32, 48),
    ]
    assert without_repeated_areas(records[:1]) == records[:1]
