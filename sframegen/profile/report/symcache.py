"""Looks up source frames in a file's symcache, an index of debug information that the library symbolic makes, or a kept one.

Runs in a process of its own: debug information is hostile input, and the library's faults end the process that calls it.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, NamedTuple

from sframegen.base.errors import FormatError
from sframegen.elf.records import PT
from sframegen.profile.kept_files import KeptFiles, is_settled, name_of_unchanged
from sframegen.program.libraries import imported

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sframegen.elf.file import ElfFile

ENDING = ".symcache"
MAX_FRAMES = 64  # of one address
MAX_NAME = 8192  # characters, as in symbol tables
MAX_LINE = 0x7FFFFFFF


class SourceFrameColumns(NamedTuple):
    """Source frames of many addresses, the outermost of each address first.

    `depths`: the number of frames of each address. `numbers`: three for each frame: function and source file in `texts`, line.
    """

    texts: list[str]
    depths: array[int]
    numbers: array[int]


def source_frames_in(file: ElfFile, addresses: Sequence[int], kept: KeptFiles | None) -> SourceFrameColumns:
    """Look up link-time addresses. Raises FormatError where the library cannot read the file, and ImportError without it."""
    symcache = _Symcache(file, kept)
    numbers_of: dict[str, int] = {}
    depths, numbers = array("B"), array("I")
    for address in addresses:
        found = symcache.look_up(address)
        depths.append(len(found))
        for function, source, line in found:
            for text in (function, source):
                numbers.append(numbers_of.setdefault(text, len(numbers_of)))
            numbers.append(line)
    return SourceFrameColumns([*numbers_of], depths, numbers)


class _Symcache:
    def __init__(self, file: ElfFile, kept: KeptFiles | None) -> None:
        self._library = imported("symbolic", "Archive", "SymCache")
        self._base = next((load.p_vaddr for load in file.segments if load.p_type == PT.LOAD), 0)  # of symcache addresses
        name = "" if kept is None or file.status is None else name_of_unchanged(file.status, self._version()) + ENDING
        data = kept.load(name) if kept and name else None
        found = self._open(data) if data is not None else None
        if found is None:
            found = self._make(file)
            if kept and name and file.status and is_settled(file.status):
                with found.open_stream() as stream:
                    kept.store(name, stream.read())
        self._cache: Any = found

    def look_up(self, address: int) -> list[tuple[str, str, int]]:
        """Return (function, source file, line) of each frame, the outermost first; empty without debug information."""
        if address < self._base:
            return []
        try:
            found = self._cache.lookup(address - self._base)
        except (OverflowError, self._library.SymbolicError):
            return []
        if not any(place.line for place in found):
            return []
        return [
            ((place.symbol or "")[:MAX_NAME], (place.full_path or "")[:MAX_NAME], min(place.line, MAX_LINE))
            for place in _cut(found[::-1])
        ]

    def _version(self) -> bytes:
        from importlib.metadata import version  # noqa: PLC0415 - of what is imported only here

        return f"symbolic {version('symbolic')}".encode()

    def _open(self, data: memoryview) -> Any:  # noqa: ANN401 - the library has no types for it
        try:
            return self._library.SymCache.from_bytes(_borrow(data))
        except self._library.SymbolicError:  # damaged
            return None

    def _make(self, file: ElfFile) -> Any:  # noqa: ANN401 - the same
        try:
            archive = self._library.Archive.from_bytes(_borrow(file.data))
            return next(archive.iter_objects()).make_symcache()
        except (self._library.SymbolicError, StopIteration) as error:
            raise FormatError(f"symbolic cannot read its debug information: {error}", file=file.name) from None


def _cut(places: list[Any]) -> Iterable[Any]:
    """Return the places; of too many, only the innermost and the outermost ones."""
    return places if len(places) <= MAX_FRAMES else [*places[: MAX_FRAMES - 1], places[-1]]


def _borrow(data: memoryview) -> Any:  # noqa: ANN401 - a char[] of cffi
    """Return the bytes in the library's form, without a copy; it keeps them alive as long as needed."""
    return imported("cffi", "FFI").FFI().from_buffer(data)
