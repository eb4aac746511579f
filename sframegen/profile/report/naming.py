"""Collected stacks -> named stacks."""

from __future__ import annotations

from array import array
from functools import cached_property
from typing import TYPE_CHECKING

from sframegen.elf.text import printable
from sframegen.profile.packed_frames import FILE_MASK, FILE_SHIFT, KERNEL_FILE, PACKED_ADDRESS, unpacked_frame
from sframegen.profile.report.kernel_names import KernelNames
from sframegen.profile.report.named import MISSING, FrameKind, Named, NamedFrame
from sframegen.profile.report.renamed import CUT_OFF, WHOLE, flag_nodes, rename_nodes, rename_rows
from sframegen.profile.report.runtime_frames import MADE, Folding, read_name
from sframegen.profile.stacks.call_tree import ROOT
from sframegen.profile.stacks.moments import GONE
from sframegen.stack.names.file_names import FileNames
from sframegen.stack.names.perf_map import PerfMap
from sframegen.stack.snapshot.mappings import DELETED
from sframegen.stack.walking.ends import COMPLETE, End

if TYPE_CHECKING:
    from cfi.columns import Column
    from sframegen.profile.collected import Collected, Stacks

KERNEL_BITS = 0xFFFF << FILE_SHIFT  # a packed address of the kernel lacks them
HIDDEN = "the kernel hides the addresses of its functions: as root, or with kernel.kptr_restrict=0, they have names"


def name_stacks(collected: Collected, *, collapse_runtime: bool = False, demangled: bool = True) -> Named:
    """Name all stacks. `collapse_runtime`: frames of an interpreter itself become one frame where they follow one another."""
    stacks, files = collected.stacks, collected.files.values()
    namer = _Namer(collected, demangled=demangled)
    named = Named(
        collected.event,
        collected.backend,
        collected.frequency,
        collected.started,
        collected.seconds,
        lost=collected.lost,
        build_ids={printable(file.path): file.build_id.hex() for file in files if file.build_id},
        tasks=stacks.tasks.printable(),
        room=stacks.room,
    )
    numbers = stacks.frames.numbers
    frames = zip(numbers.first[: numbers.count], numbers.second[: numbers.count], strict=True)
    place_of = array("I", [named.places.number(namer.frame(pid, packed)) for packed, pid in frames])
    named.notes = [*collected.notes, *namer.notes]
    rows = _rename(stacks, place_of, Folding(named) if collapse_runtime else None, named)
    if stacks.moments is not None:
        stacks.moments.renumber(rows)
        named.moments = stacks.moments
    return named


def _rename(stacks: Stacks, place_of: array[int], folding: Folding | None, named: Named) -> Column:
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
        rename_nodes(tree, flag, flags, place_of, folding, into, mapped.view)
        maps.append(mapped)
    rows = array("I", [GONE]) * tree.rows.count
    rename_rows(tree, flag_of_end, maps[0].view, maps[1].view, into, rows)
    for mapped in maps:
        named.room.drop(mapped)
    return rows


class _Namer:
    def __init__(self, collected: Collected, *, demangled: bool) -> None:
        self._collected = collected
        self._files = {
            number: FileNames(file.elf, demangled=demangled) for number, file in collected.files.items() if file.elf is not None
        }
        self._maps: dict[int, PerfMap] = {}
        self.notes: list[str] = []
        wanted: dict[int, list[int]] = {}
        numbers = collected.stacks.frames.numbers
        for packed in numbers.first[: numbers.count]:
            wanted.setdefault(packed >> FILE_SHIFT & FILE_MASK, []).append(packed & PACKED_ADDRESS)
        for number, names in self._files.items():
            names.learn(wanted.get(number, ()))

    @cached_property
    def _kernel(self) -> KernelNames:
        names = KernelNames()
        if names.hidden:
            self.notes.append(HIDDEN)
        return names

    def frame(self, pid: int, packed: int) -> NamedFrame:
        """Name a packed frame. `pid`: of the process whose run-time address it has, else 0."""
        number, address, guessed = unpacked_frame(packed)
        if number == KERNEL_FILE:
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
        return NamedFrame(
            function or (f"[{bare}]" if start is None else f"[{bare}+{start:#x}]"), name, path, address, FrameKind.USER
        )
