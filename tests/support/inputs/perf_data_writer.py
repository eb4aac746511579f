"""perf.data files that a test writes record by record, as perf writes them to files and to pipes."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from sframegen.profile.events.attributes import EventAttributes, EventFlag, SampleType

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

SAMPLED = SampleType.IDENTIFIER | SampleType.TID | SampleType.TIME | SampleType.REGS_USER | SampleType.STACK_USER
MMAP2, COMM, EXIT, FORK, SAMPLE, LOST = 10, 3, 4, 7, 9, 2
ATTRIBUTE, FEATURE, COMPRESSED = 64, 80, 81
BUILD_IDS, ARCHITECTURE, EVENT_NAMES = 2, 6, 12
EVENT_ID = 77
USER = 2
PROT_EXEC = 5


def attributes(registers: int, sampled: int = SAMPLED) -> EventAttributes:
    flags = EventFlag.SAMPLE_ID_ALL | EventFlag.FREQUENCY
    return EventAttributes(1, period=99, sample_type=sampled, flags=flags, user_registers=registers, user_stack=65528)


def record(kind: int, body: bytes, misc: int = 0) -> bytes:
    body += bytes(-len(body) % 8)
    return struct.pack("<IHH", kind, misc, 8 + len(body)) + body


def suffixed(kind: int, body: bytes, pid: int, time: int, misc: int = 0) -> bytes:
    """With the fields that every record but a sample ends with."""
    body += bytes(-len(body) % 8)
    return record(kind, body + struct.pack("<IIQQ", pid, pid, time, EVENT_ID), misc)


def text(string: str) -> bytes:
    return string.encode() + b"\0"


class Place(NamedTuple):
    start: int
    size: int
    offset: int


def mapped(pid: int, place: Place, path: str, time: int = 0) -> bytes:
    body = struct.pack("<II3QIIQQII", pid, pid, *place, 8, 1, 4711, 0, PROT_EXEC, 2) + text(path)
    return suffixed(MMAP2, body, pid, time)


def named(pid: int, name: str, time: int = 0, *, by_exec: bool = False) -> bytes:
    return suffixed(COMM, struct.pack("<II", pid, pid) + text(name), pid, time, by_exec << 13)


def forked(pid: int, parent: int, time: int) -> bytes:
    return suffixed(FORK, struct.pack("<IIIIQ", pid, parent, pid, parent, time), pid, time)


def lost(count: int, time: int) -> bytes:
    return suffixed(LOST, struct.pack("<QQ", EVENT_ID, count), 0, time)


def sample(pid: int, time: int, registers: Sequence[int], stack: bytes, *, abi: int = 2) -> bytes:
    stack += bytes(-len(stack) % 8)
    words = struct.pack(f"<Q{len(registers)}Q", abi, *registers) if abi else bytes(8)
    size = struct.pack("<Q", len(stack))
    return record(SAMPLE, struct.pack("<QIIQ", EVENT_ID, pid, pid, time) + words + size + stack + size, USER)


def architecture(name: str) -> tuple[int, bytes]:
    return ARCHITECTURE, struct.pack("<I", 64) + text(name).ljust(64, b"\0")


def build_ids(known: dict[str, bytes]) -> tuple[int, bytes]:
    bodies = [
        struct.pack("<i20s4B", -1, build_id, len(build_id), 0, 0, 0) + text(path) for path, build_id in known.items()
    ]  # fmt: skip
    return BUILD_IDS, b"".join(record(67, body, 1 << 15) for body in bodies)


def event_name(name: str, event: EventAttributes) -> tuple[int, bytes]:
    packed = event.packed()
    named = struct.pack("<II", 1, 64) + text(name).ljust(64, b"\0") + bytes(8)
    return EVENT_NAMES, struct.pack("<II", 1, len(packed)) + packed + named


def perf_data(event: EventAttributes, records: Iterable[bytes], features: Iterable[tuple[int, bytes]]) -> bytes:
    return perf_data_of({EVENT_ID: event}, records, features)


def perf_data_of(events: dict[int, EventAttributes], records: Iterable[bytes], features: Iterable[tuple[int, bytes]] = ()) -> bytes:
    """`events`: by identifier."""
    data = b"".join(records)
    ids_at = 104
    attribute_at = ids_at + 8 * len(events)
    packed = b"".join(event.packed() + struct.pack("<QQ", ids_at + 8 * at, 8) for at, event in enumerate(events.values()))
    data_at = attribute_at + len(packed)
    features = sorted(features)
    bits = [0] * 4
    for number, _ in features:
        bits[number // 64] |= 1 << number % 64
    head = struct.pack(
        "<8s12Q", b"PERFILE2", 104, len(packed) // len(events), attribute_at, len(packed), data_at, len(data), 0, 0, *bits
    )  # fmt: skip
    places, contents = b"", b""
    at = data_at + len(data) + 16 * len(features)
    for _, content in features:
        places += struct.pack("<QQ", at + len(contents), len(content))
        contents += content
    return head + struct.pack(f"<{len(events)}Q", *events) + packed + data + places + contents


def piped(event: EventAttributes, records: Iterable[bytes], features: Iterable[tuple[int, bytes]]) -> bytes:
    return piped_of({EVENT_ID: event}, records, features)


def piped_of(events: dict[int, EventAttributes], records: Iterable[bytes], features: Iterable[tuple[int, bytes]] = ()) -> bytes:
    known = [record(ATTRIBUTE, event.packed() + struct.pack("<Q", number)) for number, event in events.items()]
    head = struct.pack("<8sQ", b"PERFILE2", 16) + b"".join(known)
    added = b"".join(record(FEATURE, struct.pack("<Q", number) + content) for number, content in features)
    return head + added + b"".join(records)
