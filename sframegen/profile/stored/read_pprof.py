"""Files in pprof's format -> one named profile: those that `profile` writes, and those of others."""

from __future__ import annotations

import re
import zlib
from array import array
from typing import TYPE_CHECKING, NamedTuple

from cfi.columns import zeros
from cfi.errors import FormatError
from sframegen.elf.text import printable
from sframegen.profile.report.named import CALLERS_UNKNOWN, GUESSED, FrameKind, Named, NamedFrame
from sframegen.profile.report.runtime_frames import MADE
from sframegen.profile.stacks.numbered import Numbered
from sframegen.profile.stored.pprof_fields import add_path, read_fields, read_packed
from sframegen.stack.walking.ends import End

if TYPE_CHECKING:
    from cfi.columns import Bytes

MAX_BYTES = 2 << 30  # of a file without compression
MAX_LOCATIONS = 1 << 12  # of one stack
USUAL_FIELDS = 64  # of one message, at most
NANOSECONDS = 1e9
SIGNED = 1 << 63
ABOUT = re.compile(r"[\d,]+ samples? of (?P<event>.+?)(?:, [\d,]+ Hz)? in [\d.]+ s; (?P<backend>.*)")
LOST = re.compile(r"lost: ([\d,]+) samples?: (.*)")
WHOLE_OR_NOT = ("complete: ", "incomplete: ", "with guessed frames: ", "there was nothing to sample")
ENDS = {end.words: end for end in End}


class _Field(NamedTuple):
    """`value`: an integer, or where the bytes begin; `size`: of these, -1 for an integer."""

    number: int
    value: int
    size: int


class PprofProfiles:
    """Merges profiles; `named`: all that were added."""

    def __init__(self) -> None:
        self.named = Named("", "", 0, 0.0, 0.0)
        self._tasks: dict[tuple[int, int, str, str], int] = {}

    def add(self, data: bytes) -> None:
        """Add a file's content. Raises FormatError."""
        _File(uncompressed(data), self.named, self._tasks).add()


def uncompressed(data: bytes) -> bytes:
    """Raises FormatError."""
    if data[:2] != b"\x1f\x8b":
        return data
    inflater = zlib.decompressobj(wbits=31)
    try:
        found = inflater.decompress(data, MAX_BYTES)
    except zlib.error as error:
        raise FormatError(str(error), "gzip") from None
    if inflater.unconsumed_tail:
        raise FormatError(f"more than {MAX_BYTES:,} bytes", "gzip")
    if not inflater.eof:
        raise FormatError("it is cut off", "gzip")
    return found


class _File:
    def __init__(self, data: bytes, named: Named, tasks: dict[tuple[int, int, str, str], int]) -> None:
        self._data = data
        self._flat = zeros("Q", 3 * USUAL_FIELDS)
        self._named, self._tasks = named, tasks
        self._fields: dict[int, list[_Field]] = {}
        for field in self._read(0, len(data), "profile"):
            self._fields.setdefault(field.number, []).append(field)
        self._strings = [printable(bytes(self._text(field)).decode(errors="replace")) for field in self._of(6)]
        self._ids = zeros("Q", MAX_LOCATIONS)
        self._labelled: dict[bytes, tuple[End, int]] = {}  # by the bytes of all labels of a sample
        self._known = Numbered(named.room)  # locations by id
        self._begin, self._places = array("I", [0]), array("I")

    def add(self) -> None:
        paths = self._mappings()
        functions = self._functions()
        for field in self._of(4):
            self._add_location(self._message(field, "location"), paths, functions)
        self._add_about()
        column = self._column()
        for field in self._of(2):
            self._add_sample(self._message(field, "sample"), column)
        self._known.close()

    # -- fields

    def _read(self, begin: int, end: int, where: str) -> list[_Field]:
        found = self._flat
        count = read_fields(self._data, begin, end, found)
        if 3 * count > len(found):
            found = zeros("Q", 3 * count)
            read_fields(self._data, begin, end, found)
        if count < 0:
            raise FormatError("a field is cut off", f"pprof {where}", begin)
        return [_Field(found[at], found[at + 1], found[at + 2] - 1) for at in range(0, 3 * count, 3)]

    def _of(self, number: int) -> list[_Field]:
        return self._fields.get(number, [])

    def _one(self, number: int) -> int:
        return next((field.value for field in self._of(number)), 0)

    def _message(self, field: _Field, where: str) -> dict[int, list[_Field]]:
        found: dict[int, list[_Field]] = {}
        for inner in self._read(field.value, field.value + field.size, where):
            found.setdefault(inner.number, []).append(inner)
        return found

    def _text(self, field: _Field) -> Bytes:
        return self._data[field.value : field.value + field.size]

    def _string(self, number: int) -> str:
        if number >= len(self._strings):
            raise FormatError(f"there is no string {number}", "pprof")
        return self._strings[number]

    def _numbers(self, fields: list[_Field]) -> list[int]:
        """Return a repeated integer, packed or not."""
        found: list[int] = []
        for field in fields:
            if field.size < 0:
                found.append(field.value)
                continue
            count = read_packed(self._data, field.value, field.value + field.size, self._ids)
            if not 0 <= count <= MAX_LOCATIONS:
                raise FormatError("a list of numbers is cut off, or too long", "pprof sample", field.value)
            found += self._ids[:count]
        return found

    # -- tables

    def _mappings(self) -> dict[int, str]:
        paths = {}
        for field in self._of(3):
            mapping = self._message(field, "mapping")
            path = self._string(_first(mapping, 5))
            paths[_first(mapping, 1)] = path
            if build_id := self._string(_first(mapping, 6)):
                self._named.build_ids[path] = build_id
        return paths

    def _functions(self) -> dict[int, tuple[str, str]]:
        """By id: the name, and the source file."""
        found = {}
        for field in self._of(5):
            function = self._message(field, "function")
            found[_first(function, 1)] = self._string(_first(function, 2)), self._string(_first(function, 4))
        return found

    def _add_location(
        self, location: dict[int, list[_Field]], paths: dict[int, str], functions: dict[int, tuple[str, str]]
    ) -> None:
        if self._known.of(_first(location, 1), 0) != len(self._begin) - 1:
            raise FormatError(f"there are two locations {_first(location, 1)}", "pprof")
        path, address = paths.get(_first(location, 2), ""), _first(location, 3)
        lines = [self._message(field, "line") for field in location.get(4, ())] or [{}]
        frames: list[NamedFrame] = []
        for line in reversed(lines):  # the outermost first
            name, source = functions.get(_first(line, 1), ("", ""))
            frame = _frame(name, source, path, address)
            frames.append(frame._replace(source=source if source != frame.path else "", line=_first(line, 2), inlined=bool(frames)))
        self._places.extend(self._named.places.numbers(frames))
        self._begin.append(len(self._places))

    # -- the profile

    def _add_about(self) -> None:
        named = self._named
        began, seconds = self._one(9) / NANOSECONDS, self._one(10) / NANOSECONDS
        named.started = min(named.started, began) if named.started else began
        named.seconds += seconds
        named.frequency = round(NANOSECONDS / self._one(12)) if self._one(12) else 0
        for number in self._numbers(self._of(13)):
            line = self._string(number)
            if about := ABOUT.fullmatch(line):
                named.event, named.backend = about["event"], about["backend"]
            elif lost := LOST.fullmatch(line):
                named.lost[lost[2]] += int(lost[1].replace(",", ""))
            elif not line.startswith(WHOLE_OR_NOT) and line not in named.notes:
                named.notes.append(line)

    def _column(self) -> int:
        """Which of the values counts samples; the last if none says so."""
        names = [self._string(_first(self._message(field, "value type"), 1)) for field in self._of(1)]
        if not self._named.event:
            self._named.event = names[-1] if names else "samples"
        return names.index("samples") if "samples" in names else len(names) - 1

    def _add_sample(self, sample: dict[int, list[_Field]], column: int) -> None:
        locations, values = array("Q", self._numbers(sample.get(1, []))), self._numbers(sample.get(2, []))
        if not 0 <= column < len(values) or values[column] >= SIGNED:
            raise FormatError("a sample has no value", "pprof")
        tree = self._named.tree
        node = add_path(tree, locations, len(locations), self._known, self._begin, self._places, 0)
        if node < 0:
            raise FormatError("a sample has an unknown location", "pprof")
        key = b"".join(bytes(self._text(field)) for field in sample.get(3, ()))
        if key not in self._labelled:
            self._labelled[key] = self._end_and_task(sample.get(3, []))
        tree.count(tree.row(node, *self._labelled[key]), values[column], 0)

    def _end_and_task(self, fields: list[_Field]) -> tuple[End, int]:
        """What the labels of a sample say."""
        labels: dict[str, str | int] = {}
        for field in fields:
            label = self._message(field, "label")
            labels[self._string(_first(label, 1))] = self._string(_first(label, 2)) or _first(label, 3)
        return ENDS.get(str(labels.get("end", "")), End.OUTERMOST), self._task(labels)

    def _task(self, labels: dict[str, str | int]) -> int:
        pid, tid = (int(number) & 0xFFFFFFFF if isinstance(number := labels.get(key), int) else 0 for key in ("pid", "tid"))
        process, thread = str(labels.get("process", "")), str(labels.get("comm", ""))
        key = pid, tid, process, thread
        if key not in self._tasks:
            tasks = self._named.tasks
            tasks.forget(pid)
            self._tasks[key] = tasks.number(pid, tid)
            tasks.name(self._tasks[key], process, thread)
        return self._tasks[key]


def _first(message: dict[int, list[_Field]], number: int) -> int:
    return message[number][0].value if number in message else 0


def _frame(name: str, source: str, path: str, address: int) -> NamedFrame:
    if name == CALLERS_UNKNOWN and not address:
        return NamedFrame(name, "", "", None, FrameKind.MISSING)
    guessed, path = name.endswith(GUESSED), path or source
    base = path.rpartition("/")[2] if path.startswith("/") else path
    kind = FrameKind.KERNEL if base.startswith("[") and base != MADE else FrameKind.USER
    function = name.removesuffix(GUESSED) or f"[{base or '??'}]"
    return NamedFrame(function, base, path, address or None, kind, guessed)
