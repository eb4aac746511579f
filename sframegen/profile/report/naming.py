"""Gives names to the frames of collected stacks: functions, source lines, inlined functions, kernel code and run-time code.

`name_stacks` first gives each packed frame the numbers of its locations (named.py): one for the function that runs or calls there,
and one for each function that is inlined there. It then copies the tree of packed frames to a tree of locations.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from contextlib import suppress
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sframegen.base.columns import zeros
from sframegen.base.errors import FormatError
from sframegen.base.text import printable
from sframegen.elf.dynamic import DT, Role, determine_role, read_dynamic
from sframegen.profile.packed_frames import (
    FILE_MASK,
    FILE_SHIFT,
    GUESSED,
    KERNEL_FILE,
    OFF_CPU_FILE,
    PACKED_ADDRESS,
    off_cpu_label,
    unpack_frame,
)
from sframegen.profile.report.named import MISSING, FrameKind, FrameLocations, NamedFrame, NamedProfile
from sframegen.profile.report.runtime_frames import RUNTIME_CODE, notes_on_unnamed, parse_perf_map_name
from sframegen.profile.report.source_lines import FileAddresses, FrameDetail, SourceLines
from sframegen.profile.report.tree_passes import CUT_OFF, WHOLE, LocationLists, flag_callers, flag_rows, rename_nodes, rename_rows
from sframegen.profile.stacks.call_tree import ROOT
from sframegen.stack.mappings import DELETED
from sframegen.stack.names.file_names import FileNames, NamedFunction
from sframegen.stack.names.perf_map import PerfMap
from sframegen.stack.names.symbol_files import DebugFiles
from sframegen.stack.walking.frames import COMPLETE, End

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sframegen.profile.collected import Collected, Stacks
    from sframegen.profile.following.files import TracedFile

KALLSYMS = Path("/proc/kallsyms")
# A line of /proc/kallsyms: `ffffffff81000000 T name [module]`, with the type of the symbol before its name.
ADDRESS_DIGITS = slice(16)
SYMBOL_TYPE = slice(17, 18)
CODE_TYPES = (b"t", b"T", b"w", b"W")
NAME_AND_MODULE = re.compile(rb"\S+ \S (\S+)(?:\s+\[(\S+)\])?")
KERNEL = "[kernel]"
MAX_FUNCTION_SIZE = 1 << 20  # bytes; an address that is further behind a symbol is not in its function


class KernelFunction(NamedTuple):
    name: str | None
    object: str  # `[kernel]`, `[ext4]`


class KernelNames:
    """Functions of the kernel by address; empty if the kernel hides addresses (kernel.kptr_restrict) and prints zeros instead."""

    def __init__(self, listing: Path = KALLSYMS) -> None:
        try:
            data = listing.read_bytes()
        except OSError:
            data = b""
        lines = sorted([line for line in data.split(b"\n") if line[SYMBOL_TYPE] in CODE_TYPES], key=itemgetter(ADDRESS_DIGITS))
        addresses = array("Q", [int(line[ADDRESS_DIGITS], 16) for line in lines])
        hidden_count = bisect_right(addresses, 0)
        self._addresses, self._lines = addresses[hidden_count:], lines[hidden_count:]

    @property
    def are_hidden(self) -> bool:
        return not self._addresses

    def function_at(self, address: int) -> KernelFunction:
        """Return the function at an address; its name is None if no symbol is near before the address."""
        number = bisect_right(self._addresses, address) - 1
        if number < 0 or address - self._addresses[number] > MAX_FUNCTION_SIZE:
            return KernelFunction(None, KERNEL)
        number = bisect_right(self._addresses, self._addresses[number] - 1)  # the first of several symbols at this address
        match = NAME_AND_MODULE.match(self._lines[number])
        name, module = match.groups() if match else (None, None)
        return KernelFunction(_decode(name) if name else None, f"[{_decode(module)}]" if module else KERNEL)


def _decode(name: bytes) -> str:
    return name.decode(errors="replace")


KERNEL_BITS = 0xFFFF << FILE_SHIFT  # set in all kernel addresses, so that packed frames leave them out
NO_FUNCTION = NamedFunction(None, None)
NAMES_HIDDEN_NOTE = "the kernel hides its function addresses; run as root or set kernel.kptr_restrict=0 to see names"


def name_stacks(collected: Collected, detail: FrameDetail | None = None) -> NamedProfile:
    """Return the profile with named stacks. `detail`: what to read from debug information; None: nothing."""
    stacks, files = collected.stacks, collected.files.values()
    namer = _Namer(collected, detail)
    named = NamedProfile(
        event=collected.event, backend=collected.backend, frequency=collected.frequency, started=collected.started,
        seconds=collected.seconds, unit=collected.unit, lost=collected.lost,
        build_ids={printable(file.path): file.build_id.hex() for file in files if file.build_id},
        programs={printable(path) for path in _program_paths(collected)}, tasks=stacks.tasks.with_printable_names(),
        room=stacks.room, by_line=detail is not None and detail.by_line,
    )  # fmt: skip
    by_frame = _order_locations(namer.number_all_locations(named.locations), stacks.frames.numbers.count)
    named.notes = [*collected.notes, *namer.notes]
    _fill_named_tree(stacks, by_frame, named)
    named.notes += notes_on_unnamed(named, namer.read_perf_map)
    return named


def _program_paths(collected: Collected) -> Iterator[str]:
    """Yield the paths of programs that have samples."""
    for number in collected.stacks.used_files():
        file = collected.files.get(number)
        if file is not None and file.elf is not None:
            with suppress(FormatError):
                dynamic = read_dynamic(file.elf)
                if determine_role(file.elf, dynamic) is Role.PROGRAM and all(entry.tag != DT.SONAME for entry in dynamic):
                    yield file.path  # a library with a DT_SONAME, such as glibc's libc.so.6, can also be an executable


def _order_locations(numbered: Iterable[tuple[int, list[int]]], count: int) -> LocationLists:
    """Return the locations of `count` frames in the order of the frames. `numbered`: (frame, its locations), in any order."""
    outermost, inlined = zeros("I", count), {}
    for frame, (first, *others) in numbered:
        outermost[frame] = first
        if others:
            inlined[frame] = others
    starts, locations = array("I", [0]), array("I")
    for frame, location in enumerate(outermost):
        locations.append(location)
        locations.extend(inlined.get(frame, ()))
        starts.append(len(locations))
    return LocationLists(starts, locations)


def _fill_named_tree(stacks: Stacks, by_frame: LocationLists, named: NamedProfile) -> None:
    """Fill the tree of `named` from the tree of packed frames. Stacks that were cut off are put below a frame MISSING."""
    tree, into = stacks.tree, named.tree
    into.nodes.lengthen(tree.nodes.count)
    into.rows.reserve(tree.rows.count)
    flag_of_end = bytes(WHOLE if end in COMPLETE else CUT_OFF for end in range(max(End) + 1))
    flags = bytearray(tree.nodes.count)
    room = named.room
    for part in room.parts(tree.rows.count):
        flag_rows(tree, flag_of_end, flags, part)
    for part in room.parts(tree.nodes.count, last_first=True):
        flag_callers(tree, flags, part)
    copies = []  # for each flag: the copied node by node
    for flag in (WHOLE, CUT_OFF):  # a node in stacks of both kinds is copied twice
        copied = room.new_column("I")
        room.grow(copied, tree.nodes.count)
        if flag == CUT_OFF and flags[ROOT] & CUT_OFF:
            missing = named.locations.number_location(MISSING)
            copied.view[ROOT] = into.nodes.append(missing, ROOT)  # not nodes.number_of, which would index all other nodes
        for part in room.parts(tree.nodes.count, 1):
            rename_nodes(tree, flag, flags, by_frame, into, copied.view, part)
        copies.append(copied)
    for part in room.parts(tree.rows.count):
        rename_rows(tree, flag_of_end, copies[0].view, copies[1].view, into, part)
    for copied in copies:
        room.drop(copied)


class _Namer:
    """Names all frames, one file after the other, so that the tables of only one file are in memory at a time."""

    def __init__(self, collected: Collected, detail: FrameDetail | None) -> None:
        self._collected, self._detail, self._debug_files = collected, detail, DebugFiles()
        self._names: FileNames | None = None  # of the file whose frames are being named
        self._sites: dict[tuple[NamedFunction, int], int] = {}  # numbers of that file's sites, by function and the GUESSED bit
        self._maps: dict[int, PerfMap] = {}
        self._lines = SourceLines()
        self._own_notes: list[str] = []

    @property
    def notes(self) -> list[str]:
        return self._lines.notes + self._own_notes

    def number_all_locations(self, locations: FrameLocations) -> Iterator[tuple[int, list[int]]]:
        """Yield (frame number, numbers of its locations) for each frame of the profile, and add new locations."""
        numbers = self._collected.stacks.frames.numbers
        frames_of: dict[int, array[int]] = {}
        for frame, packed in enumerate(numbers.first[: numbers.count]):
            frames_of.setdefault(packed >> FILE_SHIFT & FILE_MASK, array("I")).append(frame)
        for number in self._load_source_lines(frames_of):
            frames = frames_of[number]
            self._sites.clear()
            self._names = self._open_names(self._collected.files.get(number))
            if self._names:
                self._names.load_names([numbers.first[frame] & PACKED_ADDRESS for frame in frames])
            if self._names and not self._lines.has_frames(number):
                yield from self._name_by_function(self._names, frames, locations)
            else:
                for frame in frames:
                    yield frame, locations.number_locations(self.name_frames(numbers.second[frame], numbers.first[frame]))
            self._lines.drop(number)
            if self._names:
                self._names.release_pages()

    def _open_names(self, file: TracedFile | None) -> FileNames | None:
        if file is None or file.elf is None:
            return None
        start_of = file.table.function_at if file.table else lambda _: None
        return FileNames(file.elf, debug_files=self._debug_files, start_of=start_of)

    def _name_by_function(self, names: FileNames, frames: array[int], locations: FrameLocations) -> Iterator[tuple[int, list[int]]]:
        """Yield (frame, locations) for a file without source lines, where one name is enough for all frames of a function."""
        packed_frames, sites, number_of = self._collected.stacks.frames.numbers.first, self._sites, locations.numbered.number_of
        for frame in frames:
            packed = packed_frames[frame]
            address = packed & PACKED_ADDRESS
            key = names.at(address), packed & GUESSED
            site = sites.get(key)
            if site is None:
                site = sites[key] = locations.number_site(self.name_frame(0, packed))
            yield frame, [number_of(address, site)]

    def _load_source_lines(self, frames_of: dict[int, array[int]]) -> Iterator[int]:
        """Yield the number of each file as soon as its source lines are loaded, or if it has none."""
        files, packed_frames = self._collected.files, self._collected.stacks.frames.numbers.first
        if self._detail is None:
            yield from frames_of
            return
        requests: list[FileAddresses] = []
        for number, frames in frames_of.items():
            file = files.get(number)
            if file is None or file.is_copy or file.elf is None:  # copies have no debug sections
                yield number
            else:
                requests.append(
                    FileAddresses(number, file.elf, array("Q", (packed_frames[frame] & PACKED_ADDRESS for frame in frames)))
                )
        yield from self._lines.load(requests, self._debug_files, self._detail)

    @cached_property
    def _kernel_names(self) -> KernelNames:
        names = KernelNames()
        if names.are_hidden:
            self._own_notes.append(NAMES_HIDDEN_NOTE)
        return names

    def name_frames(self, pid: int, packed: int) -> Iterator[NamedFrame]:
        """Yield the frame of a packed frame with its source line, and then a frame for each function that is inlined there."""
        frame = self.name_frame(pid, packed)
        number, address, _ = unpack_frame(packed)
        sources = () if pid else self._lines.frames_at(number, address)
        yield frame._replace(source=sources[0].source, line=sources[0].line) if sources else frame
        for source in sources[1:]:
            yield frame._replace(function=source.function or "??", source=source.source, line=source.line, inlined=True)

    def name_frame(self, pid: int, packed: int) -> NamedFrame:
        """Return the frame of a packed frame in the current file. `pid`: the process of a run-time address, else 0."""
        number, address, guessed = unpack_frame(packed)
        if number == OFF_CPU_FILE:
            frame = NamedFrame(off_cpu_label(address), "", "", None, FrameKind.OFF_CPU)
        elif number == KERNEL_FILE:
            address |= KERNEL_BITS
            name, module = self._kernel_names.function_at(address)
            frame = NamedFrame(printable(name or module), printable(module), printable(module), address, FrameKind.KERNEL)
        elif pid:
            frame = self._name_runtime_code(pid, address)
        else:
            frame = self._name_file_code(number, address)
        return frame._replace(guessed=True) if guessed else frame

    def read_perf_map(self, pid: int) -> PerfMap:
        """Return the perf map of a process. If the process has ended, the map has names only if it was read before."""
        if pid not in self._maps:
            self._maps[pid] = self._collected.perf_maps.get(pid) or PerfMap(pid)
            self._maps[pid].read()
        return self._maps[pid]

    def _name_runtime_code(self, pid: int, address: int) -> NamedFrame:
        """Return the frame of an address in code that a process generated at run time."""
        entry = self.read_perf_map(pid).find(address)
        if entry is None:
            return NamedFrame(RUNTIME_CODE, RUNTIME_CODE, "", address, FrameKind.RUNTIME)
        name = parse_perf_map_name(printable(entry.name.decode(errors="replace")))
        return NamedFrame(name.function, name.object, name.path, address, FrameKind.RUNTIME)

    def _name_file_code(self, number: int, address: int) -> NamedFrame:
        function, start = self._names.at(address) if self._names else NO_FUNCTION
        file = self._collected.files.get(number)
        path = printable(file.path.removesuffix(DELETED)) if file else ""
        name = path.rpartition("/")[2] or "??"
        bare_name = name.strip("[]")  # of "[vdso]"
        label = function or (f"[{bare_name}]" if start is None else f"[{bare_name}+{start:#x}]")
        return NamedFrame(label, name, path, address, FrameKind.USER, start=start)
