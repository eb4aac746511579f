"""Collected stacks -> named stacks."""

from __future__ import annotations

from array import array
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from cfi.errors import FormatError
from sframegen.elf.dynamic import DT_SONAME, read_dynamic
from sframegen.elf.role import Role, role_of
from sframegen.elf.text import printable
from sframegen.profile.packed_frames import (
    FILE_MASK,
    FILE_SHIFT,
    KERNEL_FILE,
    OFF_CPU_FILE,
    PACKED_ADDRESS,
    off_cpu_label,
    unpacked_frame,
)
from sframegen.profile.report.kernel_names import KernelNames
from sframegen.profile.report.named import MISSING, FrameKind, Named, NamedFrame
from sframegen.profile.report.renamed import CUT_OFF, WHOLE, flag_nodes, rename_nodes, rename_rows
from sframegen.profile.report.runtime_frames import MADE, Folding, read_name
from sframegen.profile.stacks.call_tree import ROOT
from sframegen.profile.stacks.growing import Room
from sframegen.profile.stacks.moments import GONE
from sframegen.profile.symbols.source_lines import AskedFile, Detail, SourceLines
from sframegen.stack.names.debug_files import DebugFiles
from sframegen.stack.names.file_names import FileNames
from sframegen.stack.names.perf_map import PerfMap
from sframegen.stack.snapshot.mappings import DELETED
from sframegen.stack.walking.ends import COMPLETE, End

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cfi.columns import Column
    from sframegen.elf.file import ElfFile
    from sframegen.profile.collected import Collected, Stacks
    from sframegen.profile.following.files import TracedFile

KERNEL_BITS = 0xFFFF << FILE_SHIFT  # a packed address of the kernel lacks them
NO_DETAIL = Detail(lines=False, inlined=False)
HIDDEN = "the kernel hides the addresses of its functions: as root, or with kernel.kptr_restrict=0, they have names"
KnownNames: TypeAlias = "dict[int, tuple[TracedFile, FileNames]]"  # by the number of the file


def name_stacks(
    collected: Collected,
    *,
    collapse_runtime: bool = False,
    demangled: bool = True,
    detail: Detail = NO_DETAIL,
    debug_files: DebugFiles | None = None,
    known: KnownNames | None = None,
    live: bool = False,
) -> Named:
    """Name all stacks. `collapse_runtime`: frames of an interpreter itself become one frame where they follow one another.

    `detail`: source lines, and functions that are inlined into others, as far as debug information says. `known`: the names of the
    files of an earlier profile; those of this one are put there. `live`: more is collected afterwards.
    """
    stacks, files = collected.stacks, collected.files.values()
    namer = _Namer(collected, _Sources(demangled, detail, debug_files or DebugFiles(), {} if known is None else known))
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
        tasks=stacks.tasks.printable(),
        cgroups={pid: printable(name) for pid, name in collected.cgroups.items()},
        room=Room() if live else stacks.room,
        by_line=detail.by_line,
    )
    numbers = stacks.frames.numbers
    frames = zip(numbers.first[: numbers.count], numbers.second[: numbers.count], strict=True)
    starts, places = array("I", [0]), array("I")
    for packed, pid in frames:
        places.extend(named.places.numbers(namer.frames(pid, packed)))
        starts.append(len(places))
    named.notes = [*collected.notes, *namer.notes]
    rows = _rename(stacks, _Chains(starts, places), Folding(named) if collapse_runtime else None, named)
    if stacks.moments is not None and not live:
        stacks.moments.renumber(rows)
        named.moments = stacks.moments
    return named


def _programs(collected: Collected) -> Iterator[str]:
    """Yield the paths of programs that have samples."""
    for number in collected.stacks.used_files():
        file = collected.files.get(number)
        if file is not None and file.elf is not None:
            with suppress(FormatError):
                dynamic = read_dynamic(file.elf)
                if role_of(file.elf, dynamic) is Role.PROGRAM and all(entry.tag != DT_SONAME for entry in dynamic):
                    yield file.path  # glibc's libc.so.6 can be started, too


class _Chains(NamedTuple):
    """The places of each frame: `places` from one of `starts` to the next, the outermost first."""

    starts: array[int]
    places: array[int]


def _rename(stacks: Stacks, chains: _Chains, folding: Folding | None, named: Named) -> Column:
    """Fill the tree of names; return for each row its row there."""
    tree, into = stacks.tree, named.tree
    flag_of_end = bytes(WHOLE if end in COMPLETE else CUT_OFF for end in range(max(End) + 1))
    flags = bytearray(tree.nodes.count)
    flag_nodes(tree, flag_of_end, flags)
    maps = []
    for flag in (WHOLE, CUT_OFF):
        mapped = named.room.column("I")
        named.room.grow(mapped, tree.nodes.count)
        if flags[ROOT] & flag == CUT_OFF:
            mapped.view[ROOT] = into.nodes.of(named.places.number(MISSING), ROOT)
        rename_nodes(tree, flag, flags, *chains, folding, into, mapped.view)
        maps.append(mapped)
    rows = array("I", [GONE]) * tree.rows.count
    rename_rows(tree, flag_of_end, maps[0].view, maps[1].view, into, rows)
    for mapped in maps:
        named.room.drop(mapped)
    return rows


def _with_debug_sections(file: TracedFile | None) -> ElfFile | None:
    """Return the file, unless it is a copy without them."""
    return None if file is None or file.is_copy else file.elf


class _Sources(NamedTuple):
    """Where names come from, and how they are written."""

    demangled: bool
    detail: Detail
    debug_files: DebugFiles
    known: KnownNames

    def names_of(self, collected: Collected) -> dict[int, FileNames]:
        """The names of all files in stacks: those that are known, else new ones, which are known from then on."""
        before = self.known.copy()
        self.known.clear()
        for number in collected.stacks.used_files():
            file = collected.files.get(number)
            if file is not None and file.elf is not None:
                kept = before.get(number)
                if kept is None or kept[0] is not file:
                    kept = file, FileNames(file.elf, demangled=self.demangled, debug_files=self.debug_files)
                self.known[number] = kept
        return {number: names for number, (_, names) in self.known.items()}


class _Namer:
    def __init__(self, collected: Collected, sources: _Sources) -> None:
        self._collected = collected
        self._files = sources.names_of(collected)
        self._maps: dict[int, PerfMap] = {}
        self.notes: list[str] = []
        wanted: dict[int, list[int]] = {}
        numbers = collected.stacks.frames.numbers
        for packed in numbers.first[: numbers.count]:
            wanted.setdefault(packed >> FILE_SHIFT & FILE_MASK, []).append(packed & PACKED_ADDRESS)
        for number, names in self._files.items():
            names.learn(wanted.get(number, ()))
        self._lines = SourceLines()
        detail = sources.detail
        if detail.lines or detail.inlined:
            files = collected.files
            asked = [
                AskedFile(number, elf, wanted[number]) for number in wanted if (elf := _with_debug_sections(files.get(number)))
            ]
            self._lines.learn(asked, sources.debug_files, detail, demangled=sources.demangled)
        self.notes += self._lines.notes

    @cached_property
    def _kernel(self) -> KernelNames:
        names = KernelNames()
        if names.hidden:
            self.notes.append(HIDDEN)
        return names

    def frames(self, pid: int, packed: int) -> Iterator[NamedFrame]:
        """Yield the frame with its line, and then those of functions that are inlined there."""
        frame = self.frame(pid, packed)
        number, address, _ = unpacked_frame(packed)
        places = () if pid else self._lines.at(number, address)
        yield frame._replace(source=places[0].source, line=places[0].line) if places else frame
        for place in places[1:]:
            yield frame._replace(function=place.function or "??", source=place.source, line=place.line, inlined=True)

    def frame(self, pid: int, packed: int) -> NamedFrame:
        """Name a packed frame. `pid`: of the process whose run-time address it has, else 0."""
        number, address, guessed = unpacked_frame(packed)
        if number == OFF_CPU_FILE:
            found = NamedFrame(off_cpu_label(address), "", "", None, FrameKind.OFF_CPU)
        elif number == KERNEL_FILE:
            found = self._of_kernel(address | KERNEL_BITS)
        elif pid:
            found = self._made(pid, address)
        else:
            found = self._in_file(number, address)
        return found._replace(guessed=guessed)

    def _of_kernel(self, address: int) -> NamedFrame:
        name, module = self._kernel.at(address)
        return NamedFrame(printable(name or module), printable(module), printable(module), address, FrameKind.KERNEL)

    def _made(self, pid: int, address: int) -> NamedFrame:
        """Name code that a process made. The map of one that has ended is read if its PerfMap was made before."""
        if pid not in self._maps:
            self._maps[pid] = self._collected.perf_maps.get(pid) or PerfMap(pid)
            self._maps[pid].read()
        entry = self._maps[pid].find(address)
        if entry is None:
            return NamedFrame(MADE, MADE, "", address, FrameKind.RUNTIME)
        made = read_name(printable(entry.name.decode(errors="replace")))
        return NamedFrame(made.function, made.object, made.path, address, FrameKind.RUNTIME)

    def _in_file(self, number: int, address: int) -> NamedFrame:
        file = self._collected.files.get(number)
        path = printable(file.path.removesuffix(DELETED)) if file else ""
        name = path.rpartition("/")[2] or "??"
        names = self._files.get(number)
        function, start = names.at(address) if names else (None, None)
        bare = name.strip("[]")
        label = function or (f"[{bare}]" if start is None else f"[{bare}+{start:#x}]")
        return NamedFrame(label, name, path, address, FrameKind.USER, start=start)
