"""Encodes a profile in pprof's format: the protocol buffers of google/pprof/proto/profile.proto, compressed with gzip."""

from __future__ import annotations

import zlib
from array import array
from typing import TYPE_CHECKING, NamedTuple

from sframegen.base.columns import zeros
from sframegen.profile.collected import Unit
from sframegen.profile.events.names import CLOCKS
from sframegen.profile.report.formats.path_bytes import (
    LocationWriter,
    NumberedBytes,
    SampleWriter,
    integer_field,
    message_field,
    packed_field,
    text_field,
)
from sframegen.profile.report.formats.row_kinds import NumberedItems, RowKind, split_rows_by_kind
from sframegen.profile.report.table import format_totals
from sframegen.stack.walking.frames import COMPLETE, End

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sframegen.profile.report.named import NamedFrame, NamedProfile

NANOSECONDS = 1_000_000_000
GZIP_WINDOW_BITS, LEVEL = 31, 3
BLOCK_SIZE = 1 << 16  # bytes that are compressed at a time
VALUE_TYPES = {Unit.SAMPLES: ("samples", "count"), Unit.MICROSECONDS: ("time", "microseconds")}

# Field numbers in profile.proto: of the messages Profile and Sample, then of ValueType, Label, Mapping, Location, Line, Function.
SAMPLE_TYPE, SAMPLE, MAPPING, LOCATION, FUNCTION, STRING_TABLE = range(1, 7)
TIME_NANOS, DURATION_NANOS, PERIOD_TYPE, PERIOD, COMMENT, DEFAULT_SAMPLE_TYPE = range(9, 15)
SAMPLE_LABEL = 3
TYPE_NAME, TYPE_UNIT = 1, 2
LABEL_KEY, LABEL_TEXT, LABEL_NUMBER = 1, 2, 3
MAPPING_ID, MAPPING_FILE, MAPPING_BUILD_ID, HAS_FUNCTIONS, HAS_FILE_NAMES, HAS_LINE_NUMBERS, HAS_INLINED = 1, 5, 6, 7, 8, 9, 10
LOCATION_MAPPING, LOCATION_LINE = 2, 4
LINE_FUNCTION, LINE_NUMBER = 1, 2
FUNCTION_ID, FUNCTION_NAME, FUNCTION_SYSTEM_NAME, FUNCTION_FILE = 1, 2, 3, 4


class _Function(NamedTuple):
    label: str
    path: str


def encode_pprof(named: NamedProfile) -> Iterator[bytes]:
    """Yield the compressed file in parts. Values are samples, and nanoseconds of CPU time if a clock was sampled."""
    compressor = zlib.compressobj(LEVEL, wbits=GZIP_WINDOW_BITS)  # without a time stamp, so that equal profiles are equal files
    block = bytearray()
    for part in _Profile(named).encode():
        block += part
        if len(block) >= BLOCK_SIZE:
            yield compressor.compress(block)
            block.clear()
    yield compressor.compress(block) + compressor.flush()


class _Profile:
    """Encodes a profile as pprof messages. The id of a location is the location's number plus one, because 0 is no id in pprof."""

    def __init__(self, named: NamedProfile) -> None:
        self._named = named
        self._strings: NumberedItems[str] = NumberedItems("")
        self._mappings: NumberedItems[str] = NumberedItems(start=1)
        if program := named.main_program:
            self._mappings.number_of(program)  # pprof takes the first mapping for the program, and names the profile after it
        self._functions: NumberedItems[_Function] = NumberedItems(start=1)
        self._with_lines = {site.path for site in named.locations.sites if site.line}
        self._with_inlined = {site.path for site in named.locations.sites if site.inlined}
        is_clock = named.event in CLOCKS and named.frequency > 0
        self._period = NANOSECONDS // named.frequency if is_clock else 0

    def encode(self) -> Iterator[bytes]:
        """Yield the messages. The tables of functions, mappings and strings come last: encoding the others fills them."""
        yield from self._encode_samples()
        yield from self._encode_locations()
        yield b"".join(message_field(FUNCTION, self._encode_function(*item)) for item in enumerate(self._functions.items, 1))
        yield b"".join(message_field(MAPPING, self._encode_mapping(*item)) for item in enumerate(self._mappings.items, 1))
        yield self._encode_header()
        yield b"".join(text_field(STRING_TABLE, string) for string in self._strings.items)

    def _string_field(self, field: int, string: str) -> bytes:
        """Return a field that refers to a string by its number in the string table."""
        return integer_field(field, self._strings.number_of(string))

    def _encode_header(self) -> bytes:
        named = self._named
        kind, unit = VALUE_TYPES[named.unit]
        types, period = message_field(SAMPLE_TYPE, self._encode_value_type(kind, unit)), b""
        if self._period:
            cpu = self._encode_value_type("cpu", "nanoseconds")
            types += message_field(SAMPLE_TYPE, cpu)
            period = message_field(PERIOD_TYPE, cpu) + integer_field(PERIOD, self._period)
        lines = [line for line in (*format_totals(named), *named.notes) if line]
        comments = packed_field(COMMENT, map(self._strings.number_of, lines))
        started = integer_field(TIME_NANOS, int(named.started * NANOSECONDS))
        duration = integer_field(DURATION_NANOS, int(named.seconds * NANOSECONDS))
        return types + started + duration + period + comments + self._string_field(DEFAULT_SAMPLE_TYPE, kind)

    def _encode_value_type(self, kind: str, unit: str) -> bytes:
        return self._string_field(TYPE_NAME, kind) + self._string_field(TYPE_UNIT, unit)

    def _encode_samples(self) -> Iterator[bytes]:
        tree, locations = self._named.tree, self._named.locations
        inlined = bytes(locations.sites[site].inlined for site in locations.numbered.second[: len(locations)])
        ids = array("I", range(1, len(locations) + 1))
        writer = SampleWriter(tree, ids, max_depth=self._named.max_depth, inlined=inlined, period=self._period)
        for first, kind_of, kinds in split_rows_by_kind(self._named):
            labels, done = NumberedBytes(map(self._encode_labels, kinds)), 0
            while done < len(kind_of):
                done = writer.put_samples(first, done, kind_of, labels)
                yield writer.block.take()

    def _encode_locations(self) -> Iterator[bytes]:
        locations = self._named.locations
        sites = [self._encode_site(site) for site in locations.sites]
        mappings, lines = (NumberedBytes(site[field] for site in sites) for field in range(2))
        outer = zeros("I", len(locations))
        for location, into in locations.outer.items():
            outer[location] = into + 1
        writer, done = LocationWriter(locations.numbered, mappings, lines, outer), 0
        while done < len(locations):
            done = writer.put_locations(done)
            yield writer.block.take()

    def _encode_labels(self, kind: RowKind) -> bytes:
        """Return the labels that all samples of a kind of rows have. Empty texts and zeros are left out."""
        pid, tid, process, thread = self._named.tasks[kind.task]
        texts = {"comm": thread or process, "process": process, "end": "" if kind.end in COMPLETE else End(kind.end).words}
        numbers = {"pid": pid, "tid": tid}
        if self._named.by not in (*texts, *numbers):
            texts[self._named.by] = self._named.groups[kind.group]
        labels = [self._string_field(LABEL_KEY, key) + self._string_field(LABEL_TEXT, text) for key, text in texts.items() if text]
        labels += [
            self._string_field(LABEL_KEY, key) + integer_field(LABEL_NUMBER, number) for key, number in numbers.items() if number
        ]
        return b"".join(message_field(SAMPLE_LABEL, label) for label in labels)

    def _encode_site(self, site: NamedFrame) -> tuple[bytes, bytes]:
        """Return two fields that all locations of a site share: its mapping, and its line."""
        mapping = self._mappings.number_of(site.path) if site.path else 0
        function = self._functions.number_of(_Function(site.name, site.source or site.path))
        line = integer_field(LINE_FUNCTION, function) + integer_field(LINE_NUMBER, site.line)
        return integer_field(LOCATION_MAPPING, mapping), message_field(LOCATION_LINE, line)

    def _encode_function(self, number: int, function: _Function) -> bytes:
        names = (self._string_field(field, function.label) for field in (FUNCTION_NAME, FUNCTION_SYSTEM_NAME))
        return integer_field(FUNCTION_ID, number) + b"".join(names) + self._string_field(FUNCTION_FILE, function.path)

    def _encode_mapping(self, number: int, path: str) -> bytes:
        has_lines = path in self._with_lines
        flags = {
            HAS_FUNCTIONS: True,
            HAS_FILE_NAMES: has_lines,
            HAS_LINE_NUMBERS: has_lines,
            HAS_INLINED: path in self._with_inlined,
        }
        file = self._string_field(MAPPING_FILE, path) + self._string_field(MAPPING_BUILD_ID, self._named.build_ids.get(path, ""))
        return integer_field(MAPPING_ID, number) + file + b"".join(integer_field(*flag) for flag in flags.items())
