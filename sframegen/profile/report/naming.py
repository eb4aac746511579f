"""Collected stacks -> named stacks."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from sframegen.elf.text import printable
from sframegen.profile.packed_frames import FILE_SHIFT, GUESSED, KERNEL_FILE, NO_FILE, unpacked_frame
from sframegen.profile.report.kernel_names import KernelNames
from sframegen.profile.report.named import MISSING, FrameKind, Named, NamedFrame, NamedMoment, NamedStack
from sframegen.profile.report.runtime_frames import MADE, collapse, read_name
from sframegen.stack.names.file_names import FileNames
from sframegen.stack.names.perf_map import PerfMap
from sframegen.stack.snapshot.mappings import DELETED
from sframegen.stack.walking.ends import COMPLETE

if TYPE_CHECKING:
    from sframegen.profile.collected import Collected, Stack

KERNEL_BITS = 0xFFFF << FILE_SHIFT  # a packed address of the kernel lacks them
HIDDEN = "the kernel hides the addresses of its functions: as root, or with kernel.kptr_restrict=0, they have names"


def name_stacks(collected: Collected, *, collapse_runtime: bool = False, demangled: bool = True) -> Named:
    """Name all stacks. `collapse_runtime`: frames of an interpreter itself become one frame where they follow one another."""
    namer = _Namer(collected, demangled=demangled)
    found = {stack: _stack(collected, stack, count, namer, collapse_runtime) for stack, count in collected.counts.items()}
    moments = collected.moments
    files = collected.files.values()
    return Named(
        collected.event,
        collected.backend,
        collected.frequency,
        collected.started,
        collected.seconds,
        [*found.values()],
        None if moments is None else [NamedMoment(at, cpu, found[stack]) for at, cpu, stack in moments],
        collected.lost,
        [*collected.notes, *namer.notes],
        {printable(file.path): file.build_id.hex() for file in files if file.build_id},
    )


def _stack(collected: Collected, stack: Stack, count: int, namer: _Namer, collapse_runtime: bool) -> NamedStack:
    frames = tuple([namer.frame(stack.pid, packed) for packed in reversed(stack.frames)])
    complete = stack.end in COMPLETE
    frames = collapse(frames) if collapse_runtime else frames
    process = printable(collected.commands.get(stack.pid, ""))
    return NamedStack(
        stack.pid,
        stack.tid,
        process,
        printable(collected.threads.get(stack.tid, "")) or process,
        frames if complete else (MISSING, *frames),
        stack.end.words,
        complete,
        count,
    )


class _Namer:
    def __init__(self, collected: Collected, *, demangled: bool) -> None:
        self._collected = collected
        self._files = {
            number: FileNames(file.elf, demangled=demangled) for number, file in collected.files.items() if file.elf is not None
        }
        self._maps: dict[int, PerfMap] = {}
        self._known: dict[tuple[int, int], NamedFrame] = {}  # by process (0 for all), packed frame
        self.notes: list[str] = []
        wanted: dict[int, set[int]] = {}
        for packed in {packed & ~GUESSED for stack in collected.counts for packed in stack.frames}:
            frame = unpacked_frame(packed)
            wanted.setdefault(frame.file, set()).add(frame.address)
        for number, names in self._files.items():
            names.learn(wanted.get(number, ()))

    @cached_property
    def _kernel(self) -> KernelNames:
        names = KernelNames()
        if names.hidden:
            self.notes.append(HIDDEN)
        return names

    def frame(self, pid: int, packed: int) -> NamedFrame:
        number = packed >> FILE_SHIFT & KERNEL_FILE
        file = self._collected.files.get(number)
        is_made = number == NO_FILE or (file is not None and file.made)
        key = (pid if is_made else 0, packed)
        if key not in self._known:
            address, guessed = unpacked_frame(packed)[1:]
            if number == KERNEL_FILE:
                found = self._of_kernel(address | KERNEL_BITS)
            elif is_made:
                found = self._made(pid, address)
            else:
                found = self._in_file(number, address)
            self._known[key] = found._replace(guessed=guessed)
        return self._known[key]

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
