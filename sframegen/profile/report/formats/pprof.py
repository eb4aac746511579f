"""pprof's format: google/pprof/proto/profile.proto, compressed with gzip."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING, NamedTuple

from sframegen.profile.report.formats.frame_numbers import TableNumbers
from sframegen.profile.report.table import totals

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sframegen.profile.report.named import Named, NamedFrame, NamedStack

NANOSECONDS = 1_000_000_000
# Protocol buffers, as far as the schema needs them: messages of integers, texts and messages.
VARINT, BYTES = 0, 2
UNSIGNED = 0xFFFFFFFFFFFFFFFF
CLOCKS = ("cpu-clock", "task-clock")  # each sample stands for a time


class _Location(NamedTuple):
    address: int
    path: str
    label: str


class _Function(NamedTuple):
    label: str
    path: str


def pprof(named: Named) -> bytes:
    """Return the file. Values are samples, and nanoseconds of CPU time if a clock was sampled."""
    return gzip.compress(_Profile(named).encoded(), mtime=0)


class _Profile:
    def __init__(self, named: Named) -> None:
        self._named = named
        self._strings: TableNumbers[str] = TableNumbers("")
        self._mappings: TableNumbers[str] = TableNumbers(start=1)
        self._locations: TableNumbers[_Location] = TableNumbers(start=1)
        self._functions: TableNumbers[_Function] = TableNumbers(start=1)
        is_clock = named.event in CLOCKS and named.frequency > 0
        self._period = NANOSECONDS // named.frequency if is_clock else 0

    def encoded(self) -> bytes:
        named = self._named
        samples = b"".join(message(2, self._sample(stack)) for stack in named.stacks)
        types, period = message(1, self._type("samples", "count")), b""
        if self._period:
            cpu = self._type("cpu", "nanoseconds")
            types, period = types + message(1, cpu), message(11, cpu) + integer(12, self._period)
        locations = b"".join(message(4, self._location(*item)) for item in enumerate(self._locations.items, 1))
        functions = b"".join(message(5, self._function(*item)) for item in enumerate(self._functions.items, 1))
        mappings = b"".join(message(3, self._mapping(*item)) for item in enumerate(self._mappings.items, 1))
        comments = packed_numbers(13, [self._strings.of(line) for line in totals(named) if line])
        times = integer(9, int(named.started * NANOSECONDS)) + integer(10, int(named.seconds * NANOSECONDS))
        default = integer(14, self._strings.of("samples"))
        strings = b"".join(text_field(6, string) for string in self._strings.items)
        return types + samples + mappings + locations + functions + strings + times + period + comments + default

    def _type(self, kind: str, unit: str) -> bytes:
        return integer(1, self._strings.of(kind)) + integer(2, self._strings.of(unit))

    def _sample(self, stack: NamedStack) -> bytes:
        values = [stack.count] + ([stack.count * self._period] if self._period else [])
        labels = {"comm": stack.thread, "process": stack.process, "end": "" if stack.complete else stack.end}
        numbers = {"pid": stack.pid, "tid": stack.tid}
        if self._named.by not in (*labels, *numbers):
            labels[self._named.by] = stack.group
        return b"".join(
            (
                packed_numbers(1, map(self._location_number, reversed(stack.frames))),
                packed_numbers(2, values),
                *(message(3, self._key(key) + integer(2, self._strings.of(value))) for key, value in labels.items() if value),
                *(message(3, self._key(key) + integer(3, value)) for key, value in numbers.items() if value),
            )
        )

    def _key(self, key: str) -> bytes:
        return integer(1, self._strings.of(key))

    def _location_number(self, frame: NamedFrame) -> int:
        location = _Location(frame.address or 0, frame.path, frame.label)
        return self._locations.of(location)

    def _location(self, number: int, location: _Location) -> bytes:
        mapping = self._mappings.of(location.path) if location.path else 0
        line = integer(1, self._functions.of(_Function(location.label, location.path)))
        return integer(1, number) + integer(2, mapping) + integer(3, location.address) + message(4, line)

    def _function(self, number: int, function: _Function) -> bytes:
        name = self._strings.of(function.label)
        return integer(1, number) + integer(2, name) + integer(3, name) + integer(4, self._strings.of(function.path))

    def _mapping(self, number: int, path: str) -> bytes:
        build_id = self._named.build_ids.get(path, "")
        file, identity, has_functions = self._strings.of(path), self._strings.of(build_id), 1
        return integer(1, number) + integer(5, file) + integer(6, identity) + integer(7, has_functions)


def varint(number: int) -> bytes:
    """`number`: 64 bits; negative ones are their two's complement."""
    number &= UNSIGNED
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def integer(field: int, number: int) -> bytes:
    """Return a field; nothing for 0, which readers assume."""
    return varint(field << 3 | VARINT) + varint(number) if number else b""


def message(field: int, data: bytes) -> bytes:
    return varint(field << 3 | BYTES) + varint(len(data)) + data


def text_field(field: int, characters: str) -> bytes:
    return message(field, characters.encode(errors="replace"))


def packed_numbers(field: int, numbers: Iterable[int]) -> bytes:
    return message(field, b"".join(map(varint, numbers)))
