"""Names for the addresses of frames: function, offset and object."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from sframegen.base.errors import FormatError
from sframegen.base.text import printable
from sframegen.stack.mappings import DELETED
from sframegen.stack.names.file_names import FileNames
from sframegen.stack.objects.loaded_image import identity
from sframegen.stack.walking.frames import ADDRESS_MASK, Frame, Thread

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from sframegen.elf.file import ElfFile
    from sframegen.stack.names.perf_map import PerfMap
    from sframegen.stack.objects.loaded_objects import LoadedObject, LoadedObjects


class NamedPlace(NamedTuple):
    """The place of a frame; unknown fields are None. `offset`: from the start of the function to the PC."""

    function: str | None
    offset: int
    object: str | None
    address: int | None  # link-time, in the object
    start: int | None = None  # of the function, the same

    @property
    def label(self) -> str | None:
        """Return the function's name; without one, its object and start: `[postgres+0x35f640]`."""
        if self.function or not self.object or self.start is None:
            return self.function
        name = self.object.removesuffix(DELETED).rpartition("/")[2].strip("[]")
        return f"[{printable(name)}+{self.start:#x}]"


class Symbols:
    """Names from the symbol tables of the objects in the stacks."""

    def __init__(self, objects: LoadedObjects) -> None:
        self.objects = objects
        self._files: dict[Hashable, FileNames] = {}
        self._perf_map: PerfMap | None = None

    def learn(self, pid: int, threads: Iterable[Thread]) -> None:
        """Find the names of these stacks together, which is quicker, and read the process's perf map for code made at run time."""
        addresses: defaultdict[FileNames, list[int]] = defaultdict(list)
        has_made_code = False
        for code in {frame.code for thread in threads for frame in thread.frames}:
            loaded = self.objects.known_at(code)
            if loaded is None or loaded.file is None:
                has_made_code = True
            else:
                addresses[self._names_of(loaded.file)].append(code - loaded.bias & ADDRESS_MASK)
        for names, found in addresses.items():
            names.learn(found)
        if has_made_code:
            from sframegen.stack.names.perf_map import PerfMap  # noqa: PLC0415 - few processes make code

            self._perf_map = PerfMap(pid)
            self._perf_map.read()

    def place(self, frame: Frame) -> NamedPlace:
        """Return the place of a frame of the last trace."""
        loaded = self.objects.known_at(frame.code)
        if loaded is None or loaded.file is None:
            entry = self._perf_map.find(frame.code) if self._perf_map else None
            name = (loaded and loaded.name) or None
            if entry is None:
                return NamedPlace(None, 0, name, None)
            return NamedPlace(printable(entry.name.decode(errors="replace")), frame.pc - entry.start, name, None)
        address, code = (at - loaded.bias & ADDRESS_MASK for at in (frame.pc, frame.code))
        function, start = self._names_of(loaded.file).at(code)
        if start is None:
            start = _start_by_section(loaded, frame.code)
        return NamedPlace(function, 0 if start is None else address - start, loaded.name, address, start)

    def _names_of(self, file: ElfFile) -> FileNames:
        """Return the names of a file, which may have been opened again."""
        known = identity(file)
        if known not in self._files:
            self._files[known] = FileNames(file)
        return self._files[known]


def _start_by_section(loaded: LoadedObject, pc: int) -> int | None:
    try:
        found = loaded.look_up(pc)
    except FormatError:
        return None
    return found.start - loaded.bias & ADDRESS_MASK if found else None
