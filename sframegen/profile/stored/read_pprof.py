"""Files in pprof's format -> one named profile: those that `profile` writes, and those of others."""

from __future__ import annotations

import gzip
import io
import re
import zlib
from array import array
from typing import TYPE_CHECKING, NamedTuple

from cfi.columns import zeros
from cfi.errors import FormatError
from sframegen.elf.text import printable
from sframegen.profile.packed_frames import OffCpu, off_cpu_label
from sframegen.profile.report.named import CALLERS_UNKNOWN, GUESSED, FrameKind, Named, NamedFrame
from sframegen.profile.report.runtime_frames import MADE
from sframegen.profile.stacks.numbered import Numbered
from sframegen.profile.stored.pprof_fields import (
    Locations,
    add_locations,
    add_path,
    add_samples,
    read_fields,
    read_messages,
    read_packed,
)
from sframegen.profile.units import Unit
from sframegen.stack.walking.ends import End

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cfi.columns import Bytes, Column

MAX_BYTES = 1 << 30  # of a file, with and without compression
MAX_FIELDS = 1 << 23  # of a profile: samples, locations, functions, texts
MAX_NODES = 1 << 26  # of the tree of all stacks
MAX_LOCATIONS = 1 << 12  # of one stack
TOO_DEEP = -2  # what add_path returns
UNUSUAL = (1 << 32) - 1  # what add_samples has for a node
USUAL_FIELDS = 64  # of one message, at most
NO_FUNCTION = ("", "")
WIDE = 4  # numbers for each field that `read_messages` reads
NANOSECONDS = 1e9
SIGNED = 1 << 63
ABOUT = re.compile(
    r"(?:[\d,]+ samples?|[\d,]+\.\d+ s) of (?P<event>.+?)(?:, (?P<rate>[\d,]{1,12}) Hz)? in [\d.]+ s(?:; (?P<backend>.*))?"
)
LOST = re.compile(r"lost: ([\d,]{1,24}) samples?: (.*)")
WHOLE_OR_NOT = ("complete: ", "incomplete: ", "with guessed frames: ", "there was nothing to sample")
ENDS = {end.words: end for end in End}
REASONS = frozenset(map(off_cpu_label, OffCpu))
TIMED = re.compile(r"time (?:on \(.+\) and )?off the CPU")


class _Field(NamedTuple):
    """`value`: an integer, or where the bytes begin; `size`: of these, -1 for an integer."""

    number: int
    value: int
    size: int


class _About(NamedTuple):
    """What the comments of a file say of all of its samples."""

    event: str = ""
    frequency: int = 0
    backend: str = ""
    lost: tuple[tuple[str, int], ...] = ()
    notes: tuple[str, ...] = ()


class _Sample(NamedTuple):
    node: int
    end: End
    task: int
    value: int


class PprofProfiles:
    """Merges profiles; `named`: all that were added."""

    def __init__(self) -> None:
        self.named = Named("", "", 0, 0.0, 0.0)
        self._tasks: dict[tuple[int, int, str, str], int] = {}

    def add(self, data: bytes) -> None:
        """Add a file's content. Raises FormatError, and then nothing of it was counted."""
        if len(data) > MAX_BYTES:
            raise FormatError(f"more than {MAX_BYTES:,} bytes", "pprof")
        _File(uncompressed(data), self.named, self._tasks).add()


def uncompressed(data: bytes) -> bytes:
    """Raises FormatError."""
    if data[:2] != b"\x1f\x8b":
        return data
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
        try:
            found = stream.read(MAX_BYTES + 1)
        except EOFError:
            raise FormatError("it is cut off", "gzip") from None
        except (OSError, zlib.error) as error:
            raise FormatError(str(error), "gzip") from None
    if len(found) > MAX_BYTES:
        raise FormatError(f"more than {MAX_BYTES:,} bytes", "gzip")
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
        if self._strings[:1] != [""]:
            raise FormatError("it has no empty string at its beginning: this is no profile in pprof's format", "pprof string table")
        self._ids = zeros("Q", MAX_LOCATIONS)
        self._labelled: dict[tuple[int, bytes], tuple[End, int]] = {}  # by the bytes of all labels of a sample
        self._known = Numbered(named.room)  # locations by id
        self._begin, self._places = array("I", [0]), array("I")

    def add(self) -> None:
        paths = self._mappings()
        functions = self._functions()
        self._add_locations(paths, functions)
        about = self._about()
        column, unit = self._column(about)
        samples = list(self._samples(column))
        self._known.close()
        self._add_about(about, unit)
        for node, end, task, value in samples:
            self._named.tree.count(self._named.tree.row(node, end, task), value, 0)

    # -- fields

    def _read(self, begin: int, end: int, where: str) -> list[_Field]:
        found = self._flat
        count = read_fields(self._data, begin, end, found)
        if count > MAX_FIELDS:
            raise FormatError(f"more than {MAX_FIELDS:,} fields", f"pprof {where}", begin)
        if 3 * count > len(found):
            found = zeros("Q", 3 * count)
            read_fields(self._data, begin, end, found)
        if count < 0:
            raise FormatError("a field is cut off: the file is damaged, or no profile in pprof's format", f"pprof {where}", begin)
        sizes = [size - 1 for size in found[2 : 3 * count : 3]]
        return list(map(_Field, found[: 3 * count : 3], found[1 : 3 * count : 3], sizes))

    def _of(self, number: int) -> list[_Field]:
        return self._fields.get(number, [])

    def _one(self, number: int) -> int:
        return next((field.value for field in self._of(number)), 0)

    def _message(self, field: _Field, where: str) -> dict[int, list[_Field]]:
        found: dict[int, list[_Field]] = {}
        for inner in self._read(field.value, field.value + field.size, where):
            found.setdefault(inner.number, []).append(inner)
        return found

    def _columns(self, fields: list[_Field], width: int, where: str) -> Column:
        """Return the fields 1 to `width` of messages, as `read_messages` has them."""
        begins = array("Q", [value for _, value, _ in fields])
        ends = array("Q", [value + max(0, size) for _, value, size in fields])
        largest = max((field.size for field in fields), default=0)  # bytes, of which a field has two or more
        scratch = zeros("Q", 3 * min(max(USUAL_FIELDS, largest // 2), MAX_FIELDS))
        found = zeros("Q", WIDE * width * len(fields))
        count = read_messages(self._data, begins, ends, width, scratch, found)
        if count < 0:
            self._read(begins[-1 - count], ends[-1 - count], where)  # says what is wrong
            raise FormatError(f"more than {MAX_FIELDS:,} fields", f"pprof {where}", begins[-1 - count])
        return found

    def _text(self, field: _Field) -> Bytes:
        if field.size < 0:
            raise FormatError("a number stands where a text or a message has to be", "pprof")
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
            count = self._unpack(field.value, field.size)
            found += self._ids[:count]
            if len(found) > MAX_LOCATIONS:
                break
        if len(found) > MAX_LOCATIONS:
            raise FormatError(f"more than {MAX_LOCATIONS:,} numbers", "pprof sample")
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
        self._named.programs.update(path for path in [*paths.values()][:1] if path)
        return paths

    def _functions(self) -> dict[int, tuple[str, str]]:
        """By id: the name, and the source file."""
        columns = self._columns(self._of(5), 4, "function")
        ids, names, sources = (columns[WIDE * (number - 1) :: WIDE * 4] for number in (1, 2, 4))
        return {
            number: (self._string(name), self._string(source)) for number, name, source in zip(ids, names, sources, strict=True)
        }

    def _add_locations(self, paths: dict[int, str], functions: dict[int, tuple[str, str]]) -> None:
        """Add all of them, first those with one line."""
        fields = self._of(4)
        columns = self._columns(fields, 4, "location")
        ids, mappings, addresses, begins = (columns[WIDE * number :: WIDE * 4] for number in range(4))
        sizes, counts = columns[WIDE * 3 + 1 :: WIDE * 4], columns[WIDE * 3 + 2 :: WIDE * 4]
        lines = self._columns([_Field(4, at, size - 1) for at, size in zip(begins, sizes, strict=True)], 2, "line")
        usual = [row for row in range(len(fields)) if counts[row] <= 1 and addresses[row]]
        keys = [(mappings[row], lines[2 * WIDE * row], lines[2 * WIDE * row + WIDE]) for row in usual]
        sites = {key: self._site(paths.get(key[0], ""), functions.get(key[1], NO_FUNCTION), key[2]) for key in dict.fromkeys(keys)}
        self._places = zeros("I", len(usual))
        self._begin = array("I", range(len(usual) + 1))
        again = add_locations(
            array("Q", [ids[row] for row in usual]),
            array("Q", [addresses[row] for row in usual]),
            array("I", [sites[key] for key in keys]),
            self._known,
            self._named.places.numbered,
            self._places,
        )
        if again >= 0:
            raise FormatError(f"there are two locations {ids[usual[again]]}", "pprof")
        for row, field in enumerate(fields):
            if counts[row] > 1 or not addresses[row]:
                self._add_location(self._message(field, "location"), paths, functions)

    def _site(self, path: str, function: tuple[str, str], line: int) -> int:
        """The number of the site of locations with an address."""
        return self._named.places.site(_frame(function, path, 1, line))

    def _add_location(
        self, location: dict[int, list[_Field]], paths: dict[int, str], functions: dict[int, tuple[str, str]]
    ) -> None:
        self._begin_location(_first(location, 1))
        path, address = paths.get(_first(location, 2), ""), _first(location, 3)
        lines = [self._message(field, "line") for field in location.get(4, ())] or [{}]
        frames: list[NamedFrame] = []
        for line in reversed(lines):  # the outermost first
            frame = _frame(functions.get(_first(line, 1), NO_FUNCTION), path, address, _first(line, 2))
            frames.append(frame._replace(inlined=bool(frames)))
        self._places.extend(self._named.places.numbers(frames))
        self._begin.append(len(self._places))

    def _begin_location(self, number: int) -> None:
        if self._known.of(number, 0) != len(self._begin) - 1:
            raise FormatError(f"there are two locations {number}", "pprof")

    # -- the profile

    def _value_types(self) -> list[str]:
        return [self._string(_first(self._message(field, "value type"), 1)) for field in self._of(1)]

    def _about(self) -> _About:
        names, lost, notes = self._value_types(), [], []
        found = _About("" if self._named.event else names[-1] if names else "samples")
        for number in self._numbers(self._of(13)):
            line = self._string(number)
            if about := ABOUT.fullmatch(line):
                found = _About(about["event"], int((about["rate"] or "0").replace(",", "")), about["backend"] or "")
            elif counted := LOST.fullmatch(line):
                lost.append((counted[2], int(counted[1].replace(",", ""))))
            elif not line.startswith(WHOLE_OR_NOT):
                notes.append(line)
        return found._replace(lost=tuple(lost), notes=tuple(notes))

    def _add_about(self, about: _About, unit: Unit) -> None:
        named = self._named
        began, seconds = (value / NANOSECONDS if value < SIGNED else 0.0 for value in (self._one(9), self._one(10)))
        named.started = min(named.started, began) if named.started else began
        named.seconds += seconds
        named.frequency = about.frequency or (round(NANOSECONDS / self._one(12)) if self._one(12) else 0)
        named.unit, named.event, named.backend = unit, about.event or named.event, about.backend or named.backend
        for reason, count in about.lost:
            named.lost[reason] += count
        named.notes += [line for line in dict.fromkeys(about.notes) if line not in named.notes]

    def _column(self, about: _About) -> tuple[int, Unit]:
        """Which value counts samples, the last if none says so, and what it counts. Raises FormatError where others differ."""
        named = self._named
        names = self._value_types()
        unit = Unit.MICROSECONDS if TIMED.fullmatch(about.event or named.event) else Unit.SAMPLES
        if unit is not named.unit and named.tree.rows.count:
            raise FormatError("one profile has times, another one samples", "pprof")
        return names.index("samples") if "samples" in names else len(names) - 1, unit

    def _samples(self, column: int) -> Iterator[_Sample]:
        """Yield all of them; those whose numbers are packed without reading each label again."""
        fields = self._of(2)
        rows = self._columns(fields, 3, "sample")
        known = Locations(self._known, self._begin, self._places)
        nodes, values = add_samples(self._named.tree, self._data, rows, column, known, MAX_NODES, self._ids)
        for row, field in enumerate(fields):
            if nodes[row] == UNUSUAL:
                yield self._sample(self._message(field, "sample"), column)
                continue
            at = 3 * WIDE * row + 2 * WIDE  # of the labels
            key = rows[at + 1], bytes(self._data[rows[at] : rows[at + 3]])
            if key not in self._labelled:
                self._labelled[key] = self._end_and_task(self._message(field, "sample").get(3, []))
            yield _Sample(nodes[row], *self._labelled[key], values[row])

    def _unpack(self, begin: int, size: int) -> int:
        """Read packed numbers into `_ids`; return how many there are."""
        count = read_packed(self._data, begin, begin + size, self._ids)
        if not 0 <= count <= MAX_LOCATIONS:
            raise FormatError("a list of numbers is cut off, or too long", "pprof sample", begin)
        return count

    def _node(self, locations: Column, count: int) -> int:
        tree = self._named.tree
        node = add_path(tree, locations, count, self._known, self._begin, self._places, 0)
        if node == TOO_DEEP or tree.nodes.count > MAX_NODES:
            raise FormatError("too many frames", "pprof")
        if node < 0:
            raise FormatError("a sample has an unknown location", "pprof")
        return node

    def _sample(self, sample: dict[int, list[_Field]], column: int) -> _Sample:
        locations, values = array("Q", self._numbers(sample.get(1, []))), self._numbers(sample.get(2, []))
        if not 0 <= column < len(values):
            raise FormatError("a sample has no value", "pprof")
        if values[column] >= SIGNED:
            raise FormatError("a sample has a negative value, as in the difference of two profiles", "pprof")
        return _Sample(self._node(locations, len(locations)), *self._end_and_task(sample.get(3, [])), values[column])

    def _end_and_task(self, fields: list[_Field]) -> tuple[End, int]:
        """What the labels of a sample say."""
        labels: dict[str, str | int] = {}
        for field in fields:
            label = self._message(field, "label")
            labels[self._string(_first(label, 1))] = self._string(_first(label, 2)) or _first(label, 3)
        if group := labels.get("cgroup"):
            self._named.cgroups[_number(labels, "pid")] = str(group)
        return ENDS.get(str(labels.get("end", "")), End.OUTERMOST), self._task(labels)

    def _task(self, labels: dict[str, str | int]) -> int:
        pid, tid = _number(labels, "pid"), _number(labels, "tid")
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


def _number(labels: dict[str, str | int], key: str) -> int:
    return int(number) & 0xFFFFFFFF if isinstance(number := labels.get(key), int) else 0


def _frame(named: tuple[str, str], path: str, address: int, line: int) -> NamedFrame:
    """`named`: the function, and its source file."""
    name, source = named
    if not address and (name == CALLERS_UNKNOWN or name in REASONS):
        kind = FrameKind.MISSING if name == CALLERS_UNKNOWN else FrameKind.OFF_CPU
        return NamedFrame(name, "", "", None, kind, source=source, line=line)
    guessed, path = name.endswith(GUESSED), path or source
    base = path.rpartition("/")[2] if path.startswith("/") else path
    kind = FrameKind.KERNEL if base.startswith("[") and base != MADE else FrameKind.USER
    function = name.removesuffix(GUESSED) or f"[{base or '??'}]"
    return NamedFrame(function, base, path, address or None, kind, guessed, source if source != path else "", line)
