"""Names the frames of collected stacks: functions, lines, inlined functions, code of the kernel and code made at run time."""

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
from sframegen.profile.report.named import MISSING, FrameKind, FramePlaces, Named, NamedFrame
from sframegen.profile.report.runtime_frames import RUNTIME_CODE, notes_on_unnamed, read_name
from sframegen.profile.report.source_lines import Detail, FileAddresses, SourceLines
from sframegen.profile.report.tree_passes import CUT_OFF, WHOLE, Chains, flag_callers, flag_rows, rename_nodes, rename_rows
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
DIGITS = slice(16)  # of a line, which goes on with the type of the symbol, its name and perhaps a module
TYPE = slice(17, 18)
CODE = (b"t", b"T", b"w", b"W")
NAMED = re.compile(rb"\S+ \S (\S+)(?:\s+\[(\S+)\])?")
KERNEL = "[kernel]"
MAX_FUNCTION = 1 << 20  # bytes: an address further after the last symbol has no name


class KernelFunction(NamedTuple):
    name: str | None
    object: str  # `[kernel]`, `[ext4]`


class KernelNames:
    """Functions of the kernel by address; empty if it hides its addresses (kernel.kptr_restrict) and prints zeros."""

    def __init__(self, listing: Path = KALLSYMS) -> None:
        try:
            data = listing.read_bytes()
        except OSError:
            data = b""
        found = sorted([line for line in data.split(b"\n") if line[TYPE] in CODE], key=itemgetter(DIGITS))
        addresses = array("Q", [int(line[DIGITS], 16) for line in found])
        hidden = bisect_right(addresses, 0)
        self._addresses, self._lines = addresses[hidden:], found[hidden:]

    @property
    def hidden(self) -> bool:
        return not self._addresses

    def at(self, address: int) -> KernelFunction:
        number = bisect_right(self._addresses, address) - 1
        if number < 0 or address - self._addresses[number] > MAX_FUNCTION:
            return KernelFunction(None, KERNEL)
        number = bisect_right(self._addresses, self._addresses[number] - 1)  # the first of those at one address
        match = NAMED.match(self._lines[number])
        name, module = match.groups() if match else (None, None)
        return KernelFunction(_text(name) if name else None, f"[{_text(module)}]" if module else KERNEL)


def _text(name: bytes) -> str:
    return name.decode(errors="replace")


KERNEL_BITS = 0xFFFF << FILE_SHIFT  # a packed address of the kernel lacks them
NO_FUNCTION = NamedFunction(None, None)
HIDDEN = "the kernel hides its function addresses; run as root or set kernel.kptr_restrict=0 to see names"


def name_stacks(collected: Collected, detail: Detail | None = None) -> Named:
    """Return the stacks with names. `detail`: what to read from debug information; None: nothing."""
    stacks, files = collected.stacks, collected.files.values()
    namer = _Namer(collected, detail)
    named = Named(
        collected.event,
        collected.backend,
        collected.frequency,
        collected.started,
        collected.seconds,
        collected.unit,
        lost=collected.lost,
        build_ids={printable(file.path): file.build_id.hex() for file in files if file.build_id},
        programs={printable(path) for path in _programs(collected)},
        tasks=stacks.tasks.with_printable_names(),
        room=stacks.room,
        by_line=detail is not None and detail.by_line,
    )
    chains = _chains(namer.placed(named.places), stacks.frames.numbers.count)
    named.notes = [*collected.notes, *namer.notes]
    _rename(stacks, chains, named)
    named.notes += notes_on_unnamed(named, lambda pid: namer.perf_map(pid).has_entries)
    return named


def _programs(collected: Collected) -> Iterator[str]:
    """Yield the paths of programs that have samples."""
    for number in collected.stacks.used_files():
        file = collected.files.get(number)
        if file is not None and file.elf is not None:
            with suppress(FormatError):
                dynamic = read_dynamic(file.elf)
                if determine_role(file.elf, dynamic) is Role.PROGRAM and all(entry.tag != DT.SONAME for entry in dynamic):
                    yield file.path  # glibc's libc.so.6 can be started, too


def _chains(placed: Iterable[tuple[int, list[int]]], count: int) -> Chains:
    """Return the places of all frames in the order of frames. `placed`: (frame, places), in any order."""
    outermost, inlined = zeros("I", count), {}
    for frame, (first, *others) in placed:
        outermost[frame] = first
        if others:
            inlined[frame] = others
    starts, places = array("I", [0]), array("I")
    for frame, place in enumerate(outermost):
        places.append(place)
        places.extend(inlined.get(frame, ()))
        starts.append(len(places))
    return Chains(starts, places)


def _rename(stacks: Stacks, chains: Chains, named: Named) -> None:
    """Fill the tree of `named` from the tree of packed frames."""
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
    maps = []
    for flag in (WHOLE, CUT_OFF):
        mapped = room.new_column("I")
        room.grow(mapped, tree.nodes.count)
        if flags[ROOT] & flag == CUT_OFF:
            mapped.view[ROOT] = into.nodes.append(named.places.number(MISSING), ROOT)  # `of` would make an index of all others
        for part in room.parts(tree.nodes.count, 1):
            rename_nodes(tree, flag, flags, chains, into, mapped.view, part)
        maps.append(mapped)
    for part in room.parts(tree.rows.count):
        rename_rows(tree, flag_of_end, maps[0].view, maps[1].view, into, part)
    for mapped in maps:
        room.drop(mapped)


class _Namer:
    """Names all frames, file after file, so that only the tables of one file are in memory at a time."""

    def __init__(self, collected: Collected, detail: Detail | None) -> None:
        self._collected, self._detail, self._debug_files = collected, detail, DebugFiles()
        self._names: FileNames | None = None  # of the file whose frames are being named
        self._sites: dict[tuple[NamedFunction, int], int] = {}  # of that file: by function, and whether guessed
        self._maps: dict[int, PerfMap] = {}
        self._lines = SourceLines()
        self._own_notes: list[str] = []

    @property
    def notes(self) -> list[str]:
        return self._lines.notes + self._own_notes

    def placed(self, places: FramePlaces) -> Iterator[tuple[int, list[int]]]:
        """Yield (frame number, numbers of its places) for each frame of the profile; new places are added."""
        numbers = self._collected.stacks.frames.numbers
        frames_of: dict[int, array[int]] = {}
        for frame, packed in enumerate(numbers.first[: numbers.count]):
            frames_of.setdefault(packed >> FILE_SHIFT & FILE_MASK, array("I")).append(frame)
        for number in self._with_lines(frames_of):
            frames = frames_of[number]
            self._sites.clear()
            self._names = self._names_of(self._collected.files.get(number))
            if self._names:
                self._names.learn([numbers.first[frame] & PACKED_ADDRESS for frame in frames])
            if self._names and not self._lines.knows(number):
                yield from self._by_function(self._names, frames, places)
            else:
                for frame in frames:
                    yield frame, places.numbers(self.frames(numbers.second[frame], numbers.first[frame]))
            self._lines.forget(number)
            if self._names:
                self._names.rest()

    def _names_of(self, file: TracedFile | None) -> FileNames | None:
        if file is None or file.elf is None:
            return None
        start_of = file.table.function_at if file.table else lambda _: None
        return FileNames(file.elf, debug_files=self._debug_files, start_of=start_of)

    def _by_function(self, names: FileNames, frames: array[int], places: FramePlaces) -> Iterator[tuple[int, list[int]]]:
        """Yield the places of frames in a file without lines, where only the first frame of each function is named."""
        first, sites, of = self._collected.stacks.frames.numbers.first, self._sites, places.numbered.of
        for frame in frames:
            packed = first[frame]
            address = packed & PACKED_ADDRESS
            key = names.at(address), packed & GUESSED
            site = sites.get(key)
            if site is None:
                site = sites[key] = places.site(self.frame(0, packed))
            yield frame, [of(address, site)]

    def _with_lines(self, frames_of: dict[int, array[int]]) -> Iterator[int]:
        """Yield the number of each file as soon as its source lines are known."""
        files, first = self._collected.files, self._collected.stacks.frames.numbers.first
        if self._detail is None:
            yield from frames_of
            return
        asked: list[FileAddresses] = []
        for number, frames in frames_of.items():
            file = files.get(number)
            if file is None or file.is_copy or file.elf is None:  # a copy has no debug sections
                yield number
            else:
                asked.append(FileAddresses(number, file.elf, array("Q", (first[frame] & PACKED_ADDRESS for frame in frames))))
        yield from self._lines.learn(asked, self._debug_files, self._detail)

    @cached_property
    def _kernel(self) -> KernelNames:
        names = KernelNames()
        if names.hidden:
            self._own_notes.append(HIDDEN)
        return names

    def frames(self, pid: int, packed: int) -> Iterator[NamedFrame]:
        """Yield the frame with its line, and then a frame for each function inlined there."""
        frame = self.frame(pid, packed)
        number, address, _ = unpack_frame(packed)
        places = () if pid else self._lines.at(number, address)
        yield frame._replace(source=places[0].source, line=places[0].line) if places else frame
        for place in places[1:]:
            yield frame._replace(function=place.function or "??", source=place.source, line=place.line, inlined=True)

    def frame(self, pid: int, packed: int) -> NamedFrame:
        """Return the name of a packed frame in the current file. `pid`: the process that a run-time address belongs to, else 0."""
        number, address, guessed = unpack_frame(packed)
        if number == OFF_CPU_FILE:
            found = NamedFrame(off_cpu_label(address), "", "", None, FrameKind.OFF_CPU)
        elif number == KERNEL_FILE:
            address |= KERNEL_BITS
            name, module = self._kernel.at(address)
            found = NamedFrame(printable(name or module), printable(module), printable(module), address, FrameKind.KERNEL)
        elif pid:
            found = self._in_runtime_code(pid, address)
        else:
            found = self._in_file(number, address)
        return found._replace(guessed=True) if guessed else found

    def perf_map(self, pid: int) -> PerfMap:
        """Return the perf map of a process; for an ended process, it has names only if its PerfMap was made before."""
        if pid not in self._maps:
            self._maps[pid] = self._collected.perf_maps.get(pid) or PerfMap(pid)
            self._maps[pid].read()
        return self._maps[pid]

    def _in_runtime_code(self, pid: int, address: int) -> NamedFrame:
        """Return the name of code that a process made at run time."""
        entry = self.perf_map(pid).find(address)
        if entry is None:
            return NamedFrame(RUNTIME_CODE, RUNTIME_CODE, "", address, FrameKind.RUNTIME)
        made = read_name(printable(entry.name.decode(errors="replace")))
        return NamedFrame(made.function, made.object, made.path, address, FrameKind.RUNTIME)

    def _in_file(self, number: int, address: int) -> NamedFrame:
        function, start = self._names.at(address) if self._names else NO_FUNCTION
        file = self._collected.files.get(number)
        path = printable(file.path.removesuffix(DELETED)) if file else ""
        name = path.rpartition("/")[2] or "??"
        bare = name.strip("[]")
        label = function or (f"[{bare}]" if start is None else f"[{bare}+{start:#x}]")
        return NamedFrame(label, name, path, address, FrameKind.USER, start=start)
