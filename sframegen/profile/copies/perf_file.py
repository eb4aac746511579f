"""The perf.data format: header, events, features, and records in the order of their times; from a file or what was a pipe."""

from __future__ import annotations

import os
from array import array
from struct import Struct
from struct import error as TooShortError  # noqa: N812 - an exception
from typing import TYPE_CHECKING, Any, NamedTuple

from cfi.errors import FormatError, naming
from sframegen.elf.compressed import GET_ZSTD, zstd_library
from sframegen.elf.opening import map_file
from sframegen.profile.copies.recorded_events import RecordedEvent, RecordedEvents
from sframegen.profile.events.attributes import EventAttributes
from sframegen.profile.events.event_records import HEADER, MAX_BUILD_ID, EventRecord, RecordKind
from sframegen.profile.events.names import EVENTS
from sframegen.profile.machines import PROFILED

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cfi.columns import Bytes

MAGIC, SWAPPED_MAGIC = b"PERFILE2", b"2ELIFREP"
FILE_HEADER = Struct("<8s12Q")  # magic, size, attribute size, three places (offset, size), four words of feature bits
PLACE, WORD, HALF = Struct("<QQ"), Struct("<Q"), Struct("<I")
PIPE_HEADER_SIZE = 16
ATTRIBUTE, TRACING_DATA, BUILD_ID, AUXTRACE, FEATURE, COMPRESSED, COMPRESSED_2 = 64, 66, 67, 71, 80, 81, 83  # kinds of records
WITH_PAYLOAD = {TRACING_DATA: HALF, AUXTRACE: WORD}  # bytes follow the record: how many is its first number
BUILD_IDS, ARCHITECTURE, EVENT_NAMES = 2, 6, 12  # numbers of features
FEATURES = 256
BUILD_ID_AT, BUILD_ID_SIZE_AT, BUILD_ID_PATH_AT = 4, 24, 28  # in the body of its record
SIZED = 1 << 15  # misc: the record says how many bytes its build-id has
MAX_EXPANDED = 1 << 31  # bytes of decompressed records
WANTED = frozenset(RecordKind)
UNNAMED = "samples"


class TimedRecord(NamedTuple):
    """`event`: its number in `PerfFile.events`."""

    time: int
    event: int
    misc: int
    record: EventRecord


class PerfFile:
    """Raises FormatError where the file is damaged, or of a kind that is not read."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self.data, self.status = map_file(path)
        self.events: list[RecordedEvent] = []
        self._names: list[str] = []  # of the events, if the file has them
        self.architecture = ""  # as uname has it, if the file has it
        self.build_ids: dict[str, bytes] = {}  # by path
        self._expanded = _Expanded()
        self._times = array("Q")
        self._places = array("q")  # of records: in the file, or below 0 in what was decompressed
        self.unknown = 0  # samples of events that are not in the file
        self._known: RecordedEvents | None = None  # from the first record on
        try:
            self._read()
        except (TooShortError, IndexError, OverflowError) as error:
            raise self.error("it is cut off or damaged") from error
        except FormatError as error:
            error.file = error.file or self.name
            raise

    def error(self, message: str) -> FormatError:
        return FormatError(message, file=self.name)

    def name_of(self, event: int) -> str:
        """Return the name of an event, with its modifiers; that of its attributes if the file has none."""
        if event < len(self._names):
            return self._names[event]
        attributes = self.events[event].attributes
        return next((one.name for one in EVENTS if (one.type, one.config) == (attributes.type, attributes.config)), UNNAMED)

    def records(self) -> Iterator[TimedRecord]:
        """Yield the records in the order of their times. Raises FormatError where one is damaged."""
        order: list[int] | range = range(len(self._times))
        if any(self._times[i] > self._times[i + 1] for i in range(len(order) - 1)):
            order = sorted(order, key=self._times.__getitem__)
        for number in order:
            kind, misc, body = self._at(self._places[number])
            with naming(self.name):
                event = self._all_events().event_of(kind, body)
                record = None if event is None else self._all_events().read(event, kind, misc, body)
            if event is not None and record is not None:
                yield TimedRecord(self._times[number], event, misc, record)

    def _at(self, place: int) -> tuple[int, int, bytes]:
        data: Bytes = self.data if place >= 0 else self._expanded.data
        at = place if place >= 0 else -1 - place
        kind, misc, size = HEADER.unpack_from(data, at)
        return kind, misc, bytes(data[at + HEADER.size : at + size])

    def _read(self) -> None:
        if bytes(self.data[:8]) == SWAPPED_MAGIC:
            raise self.error(f"it was recorded on a big-endian machine; only {' and '.join(PROFILED)} are read")
        if bytes(self.data[:8]) != MAGIC:
            raise self.error("not a perf.data file")
        (size,) = WORD.unpack_from(self.data, 8)
        if size == PIPE_HEADER_SIZE:
            self._walk(self.data, PIPE_HEADER_SIZE, len(self.data))
            self._all_events()
            return
        _, _, attribute_size, attributes_at, attributes_size, data_at, data_size, _, _, *bits = FILE_HEADER.unpack_from(self.data)
        if attribute_size <= PLACE.size:
            raise self.error(f"its events have {attribute_size} bytes each")
        all_ids = 0
        for at in range(attributes_at, self._end(attributes_at, attributes_size) - attribute_size + 1, attribute_size):
            ids_at, ids_size = PLACE.unpack_from(self.data, at + attribute_size - PLACE.size)
            all_ids += ids_size
            if all_ids > len(self.data):  # the same ones, for many events
                raise self.error("its events have more identifiers than there is room for")
            ids = self._words(ids_at, ids_size)
            attributes = EventAttributes.unpacked(bytes(self.data[at : at + attribute_size - PLACE.size]))
            self.events.append(RecordedEvent(attributes, ids))
        self._all_events()
        if not data_size:
            raise self.error("perf record did not finish it")
        end = self._end(data_at, data_size)
        self._walk(self.data, data_at, end)
        features = [number for number in range(FEATURES) if bits[number >> 6] >> (number & 63) & 1]
        for index, number in enumerate(features):
            place = PLACE.unpack_from(self.data, end + index * PLACE.size)
            self._feature(number, self._part(*place))

    def _end(self, at: int, size: int) -> int:
        if at + size > len(self.data):
            raise self.error(f"it is cut off: {size} bytes at offset {at:#x}, the file has {len(self.data):#x}")
        return at + size

    def _part(self, at: int, size: int) -> bytes:
        return bytes(self.data[at : self._end(at, size)])

    def _words(self, at: int, size: int) -> tuple[int, ...]:
        return tuple(memoryview(self._part(at, size & ~7)).cast("Q"))

    def _walk(self, data: Bytes, at: int, end: int, *, expanded: bool = False) -> int:
        """Note all records, and read those that perf adds itself. Return where they end."""
        while at < end:
            if expanded and (end - at < HEADER.size or HEADER.unpack_from(data, at)[2] > end - at):
                return at  # the rest comes with the next compressed record
            kind, misc, size = HEADER.unpack_from(data, at)
            if size < HEADER.size or size > end - at:
                raise self.error(f"it is cut off or damaged: a record of {size} bytes at offset {at:#x}, {end - at} are left")
            body = data[at + HEADER.size : at + size]
            if kind in WANTED:
                self._note(kind, body, -1 - at if expanded else at)
            elif expanded and kind in (COMPRESSED, COMPRESSED_2):
                raise self.error("it is damaged: compressed records in compressed ones")
            elif kind >= ATTRIBUTE:
                self._added(kind, misc, bytes(body))
                if kind in WITH_PAYLOAD:
                    size += WITH_PAYLOAD[kind].unpack_from(data, at + HEADER.size)[0] + 7 & ~7
            at += size
        return at

    def _note(self, kind: int, body: Bytes, place: int) -> None:
        event = self._all_events().event_of(kind, body)
        if event is None:
            self.unknown += 1
            return
        self._times.append(self._all_events().time_of(event, kind, body))
        self._places.append(place)

    def _all_events(self) -> RecordedEvents:
        """All events are known when the first record comes."""
        if self._known is None:
            if not self.events:
                raise self.error("it has no events")
            self._known = RecordedEvents(self.events)
        return self._known

    def _added(self, kind: int, misc: int, body: bytes) -> None:
        match kind:
            case 64:  # ATTRIBUTE, in pipes
                (size,) = HALF.unpack_from(body, 4)
                if self._known is not None:
                    raise self.error("an event comes after the first record")
                ids = memoryview(body[size : size + (len(body) - size & ~7)]).cast("Q") if size < len(body) else ()
                self.events.append(RecordedEvent(EventAttributes.unpacked(body[:size]), tuple(ids)))
            case 67:  # BUILD_ID
                self._build_id(misc, body)
            case 80:  # FEATURE, in pipes
                self._feature(WORD.unpack_from(body)[0], body[WORD.size :])
            case 81:  # COMPRESSED
                self._decompress(body)
            case 83:  # COMPRESSED_2
                (size,) = WORD.unpack_from(body)
                self._decompress(body[WORD.size : WORD.size + size])
            case _:
                pass

    def _decompress(self, raw: bytes) -> None:
        expanded = self._expanded
        expanded.add(raw)
        expanded.read = self._walk(expanded.data, expanded.read, len(expanded.data), expanded=True)

    def _feature(self, number: int, data: bytes) -> None:
        if number == ARCHITECTURE:
            self.architecture = _text(data, HALF.size)
        elif number == BUILD_IDS:
            at = 0
            while at < len(data):
                _, misc, size = HEADER.unpack_from(data, at)
                if size < HEADER.size + BUILD_ID_PATH_AT or size > len(data) - at:
                    raise self.error("its build-ids are damaged")
                self._build_id(misc, data[at + HEADER.size : at + size])
                at += size
        elif number == EVENT_NAMES:
            count, size = HALF.unpack_from(data)[0], HALF.unpack_from(data, 4)[0]
            at = 2 * HALF.size
            for _ in range(min(count, len(self.events))):
                ids, length = HALF.unpack_from(data, at + size)[0], HALF.unpack_from(data, at + size + 4)[0]
                self._names.append(_text(data[: at + size + 8 + length], at + size + 8))
                at += size + 8 + length + 8 * ids

    def _build_id(self, misc: int, body: bytes) -> None:
        size = min(body[BUILD_ID_SIZE_AT], MAX_BUILD_ID) if misc & SIZED else MAX_BUILD_ID
        self.build_ids[_text(body, BUILD_ID_PATH_AT)] = body[BUILD_ID_AT : BUILD_ID_AT + size]


class _Expanded:
    """Records that were compressed: one stream of zstd over many records of the file. `read`: up to where they are noted."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.read = 0
        self._stream: Any = None

    def add(self, raw: bytes) -> None:
        """Raises FormatError if the stream is damaged or its library is missing."""
        try:
            zstd = zstd_library()
        except ImportError:
            raise FormatError(
                f"its records are compressed, for which a library is missing: {GET_ZSTD}; recorded without -z they need none"
            ) from None
        try:
            while raw:
                if self._stream is None or self._stream.eof:
                    self._stream = zstd.ZstdDecompressor()
                self.data += self._stream.decompress(raw, MAX_EXPANDED - len(self.data) + 1)
                raw = self._stream.unused_data if self._stream.eof else b""
        except zstd.ZstdError as error:
            raise FormatError(f"its compressed records are damaged: {error}") from error
        if len(self.data) > MAX_EXPANDED:
            raise FormatError(f"its compressed records have more than {MAX_EXPANDED} bytes")


def _text(data: bytes, at: int) -> str:
    end = data.find(b"\0", at)
    return os.fsdecode(data[at : end if end >= 0 else len(data)])
