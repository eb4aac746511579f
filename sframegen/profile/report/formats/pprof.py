"""pprof's format: google/pprof/proto/profile.proto, compressed with gzip."""

from __future__ import annotations

import zlib
from array import array
from typing import TYPE_CHECKING, NamedTuple

from sframegen.base.columns import zeros
from sframegen.profile.collected import Unit
from sframegen.profile.events.names import CLOCKS
from sframegen.profile.report.formats.path_bytes import (
    NumberedBytes,
    PathNumbers,
    PlaceBytes,
    integer,
    message,
    packed_numbers,
    text_field,
)
from sframegen.profile.report.formats.row_kinds import RowKind, TableNumbers, rows_in_parts
from sframegen.profile.report.table import totals
from sframegen.stack.walking.frames import COMPLETE, End

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sframegen.profile.report.named import Named, NamedFrame

NANOSECONDS = 1_000_000_000
GZIP, LEVEL = 31, 3
BLOCK = 1 << 16  # bytes that are compressed at a time
KINDS = {Unit.SAMPLES: ("samples", "count"), Unit.MICROSECONDS: ("time", "microseconds")}


class _Function(NamedTuple):
    label: str
    path: str


def pprof(named: Named) -> Iterator[bytes]:
    """Yield the compressed file in parts. Values are samples, and nanoseconds of CPU time if a clock was sampled."""
    compressor = zlib.compressobj(LEVEL, wbits=GZIP)  # without a time: equal profiles are equal files
    block = bytearray()
    for part in _Profile(named).parts():
        block += part
        if len(block) >= BLOCK:
            yield compressor.compress(block)
            block.clear()
    yield compressor.compress(block) + compressor.flush()


class _Profile:
    """Encodes a profile as pprof messages. The location of a place has the place's number plus one."""

    def __init__(self, named: Named) -> None:
        self._named = named
        self._strings: TableNumbers[str] = TableNumbers("")
        self._mappings: TableNumbers[str] = TableNumbers(start=1)
        if program := named.main_program:
            self._mappings.of(program)  # pprof takes the first mapping for the program, and calls the profile so
        self._functions: TableNumbers[_Function] = TableNumbers(start=1)
        self._with_lines = {site.path for site in named.places.sites if site.line}
        self._with_inlined = {site.path for site in named.places.sites if site.inlined}
        is_clock = named.event in CLOCKS and named.frequency > 0
        self._period = NANOSECONDS // named.frequency if is_clock else 0

    def parts(self) -> Iterator[bytes]:
        yield from self._samples()
        yield from self._places()
        yield b"".join(message(5, self._function(*item)) for item in enumerate(self._functions.items, 1))
        yield b"".join(message(3, self._mapping(*item)) for item in enumerate(self._mappings.items, 1))
        yield self._about()
        yield b"".join(text_field(6, string) for string in self._strings.items)

    def _about(self) -> bytes:
        named = self._named
        kind = KINDS[named.unit]
        types, period = message(1, self._type(*kind)), b""
        if self._period:
            cpu = self._type("cpu", "nanoseconds")
            types, period = types + message(1, cpu), message(11, cpu) + integer(12, self._period)
        comments = packed_numbers(13, [self._strings.of(line) for line in (*totals(named), *named.notes) if line])
        times = integer(9, int(named.started * NANOSECONDS)) + integer(10, int(named.seconds * NANOSECONDS))
        return types + times + period + comments + integer(14, self._strings.of(kind[0]))

    def _type(self, kind: str, unit: str) -> bytes:
        return integer(1, self._strings.of(kind)) + integer(2, self._strings.of(unit))

    def _samples(self) -> Iterator[bytes]:
        tree = self._named.tree
        sites, places = self._named.places.sites, self._named.places.numbered
        inlined = bytes(sites[site].inlined for site in places.second[: places.count])
        paths = PathNumbers(tree, array("I", range(1, len(self._named.places) + 1)), self._named.max_depth, inlined, self._period)
        for first, kind_of, kinds in rows_in_parts(self._named):
            labels, done = NumberedBytes(map(self._labels, kinds)), 0
            while done < len(kind_of):
                done = paths.put_samples(first, done, kind_of, labels)
                yield paths.block.taken()

    def _places(self) -> Iterator[bytes]:
        places = self._named.places
        sites = [self._site(site) for site in places.sites]
        mappings, lines = (NumberedBytes(site[field] for site in sites) for field in range(2))
        outer = zeros("I", len(places))
        for place, into in places.outer.items():
            outer[place] = into + 1
        out, done = PlaceBytes(places.numbered, mappings, lines, outer), 0
        while done < len(places):
            done = out.put(done)
            yield out.block.taken()

    def _labels(self, kind: RowKind) -> bytes:
        pid, tid, process, thread = self._named.tasks[kind.task]
        labels = {"comm": thread or process, "process": process, "end": "" if kind.end in COMPLETE else End(kind.end).words}
        numbers = {"pid": pid, "tid": tid}
        if self._named.by not in (*labels, *numbers):
            labels[self._named.by] = self._named.groups[kind.group]
        return b"".join(
            (
                *(message(3, self._key(key) + integer(2, self._strings.of(value))) for key, value in labels.items() if value),
                *(message(3, self._key(key) + integer(3, value)) for key, value in numbers.items() if value),
            )
        )

    def _key(self, key: str) -> bytes:
        return integer(1, self._strings.of(key))

    def _site(self, site: NamedFrame) -> tuple[bytes, bytes]:
        """Return two fields that all locations of a site share: its mapping, and its line."""
        mapping = self._mappings.of(site.path) if site.path else 0
        line = integer(1, self._functions.of(_Function(site.name, site.source or site.path))) + integer(2, site.line)
        return integer(2, mapping), message(4, line)

    def _function(self, number: int, function: _Function) -> bytes:
        name = self._strings.of(function.label)
        return integer(1, number) + integer(2, name) + integer(3, name) + integer(4, self._strings.of(function.path))

    def _mapping(self, number: int, path: str) -> bytes:
        build_id = self._named.build_ids.get(path, "")
        file, identity, has_functions = self._strings.of(path), self._strings.of(build_id), 1
        has_lines, has_inlined = path in self._with_lines, path in self._with_inlined
        known = integer(7, has_functions) + integer(8, has_lines) + integer(9, has_lines) + integer(10, has_inlined)
        return integer(1, number) + integer(5, file) + integer(6, identity) + known
