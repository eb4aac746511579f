"""The events of a recording: each record is read with the attributes of its own event, which its identifier names."""

from __future__ import annotations

from itertools import takewhile
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from cfi.errors import FormatError
from sframegen.profile.events.attributes import EventFlag, SampleType
from sframegen.profile.events.event_records import SAMPLE_FIELDS, SUFFIX_FIELDS, RecordKind, RecordReader

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cfi.columns import Bytes
    from sframegen.profile.events.attributes import EventAttributes
    from sframegen.profile.events.event_records import EventRecord

WORD = Struct("<Q")
FIRST = 0  # the event of records that perf made up: they have no identifier
CANNOT_TELL = "its events cannot be told apart: their records do not all have an identifier at one place"


class RecordedEvent(NamedTuple):
    attributes: EventAttributes
    ids: tuple[int, ...]


class RecordedEvents:
    """Raises FormatError if records do not say which event they are of."""

    def __init__(self, events: Sequence[RecordedEvent]) -> None:
        self._formats = [_Format(event.attributes) for event in events]
        self._by_id = {number: at for at, event in enumerate(events) for number in event.ids}
        self._several = len(events) > 1
        first = self._formats[FIRST]
        self._in_sample, self._from_end = first.id_in_sample, first.id_from_end
        if self._several:
            places = {(one.id_in_sample, one.id_from_end) for one in self._formats}
            if len(places) > 1 or self._in_sample is None:
                raise FormatError(CANNOT_TELL)

    def event_of(self, kind: int, body: Bytes) -> int | None:
        """Return the number of a record's event; None for a sample of an event that the recording does not have."""
        if not self._several:
            return FIRST
        if kind == RecordKind.SAMPLE:
            return self._by_id.get(WORD.unpack_from(body, self._in_sample or 0)[0])
        if self._from_end is None or len(body) < self._from_end:
            return FIRST
        return self._by_id.get(WORD.unpack_from(body, len(body) - self._from_end)[0], FIRST)

    def time_of(self, event: int, kind: int, body: Bytes) -> int:
        """Return the time of a record; 0 without one."""
        return self._formats[event].time_of(kind, body)

    def read(self, event: int, kind: int, misc: int, body: bytes) -> EventRecord | None:
        return self._formats[event].reader.read(kind, misc, body)


class _Format:
    """What the records of one event look like. `id_in_sample`: bytes before its identifier; None without one.

    `id_from_end`: in all other records, bytes from the identifier to the end.
    """

    def __init__(self, attributes: EventAttributes) -> None:
        wanted = attributes.sample_type
        named = SampleType.IDENTIFIER if wanted & SampleType.IDENTIFIER else SampleType.ID
        self.reader = RecordReader(attributes)
        self.id_in_sample = _before(SAMPLE_FIELDS, wanted, named)
        self._time_in_sample = _before(SAMPLE_FIELDS, wanted, SampleType.TIME)
        self.id_from_end = None
        if attributes.flags & EventFlag.SAMPLE_ID_ALL:
            self.id_from_end = _before(tuple(reversed(SUFFIX_FIELDS)), wanted, named)
            if self.id_from_end is not None:
                self.id_from_end += WORD.size

    def time_of(self, kind: int, body: Bytes) -> int:
        if kind != RecordKind.SAMPLE:
            return self.reader.time_of(kind, bytes(body))
        time: int = WORD.unpack_from(body, self._time_in_sample)[0] if self._time_in_sample is not None else 0
        return time


def _before(fields: Sequence[tuple[SampleType, str, tuple[str, ...]]], wanted: int, field: SampleType) -> int | None:
    """Return how many bytes of the fields come before one; None if the event does not have it."""
    if not wanted & field:
        return None
    before = takewhile(lambda one: one[0] != field, fields)
    return Struct("=" + "".join(code for bit, code, _ in before if wanted & bit)).size
