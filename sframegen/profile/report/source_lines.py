"""Finds functions, also inlined ones, and source lines of addresses in files, from debug information, else Go's own table.

Debug information is read in other processes: a file that crashes or blocks one loses only its own frames.
"""

from __future__ import annotations

import math
import time
from array import array
from collections import deque
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from sframegen.base.errors import FormatError
from sframegen.base.text import format_count, printable
from sframegen.elf.records import PT, SHT
from sframegen.profile.file_cache import FileCache, is_settled, name_result
from sframegen.profile.limits import WORKERS
from sframegen.program import patience
from sframegen.program.forked import Forked, end_with_parent, limit_memory, nowhere
from sframegen.program.libraries import import_library
from sframegen.program.pool import Pool
from sframegen.program.workers import attempt
from sframegen.stack.names.demangle import demangle_all
from sframegen.stack.names.gopclntab import go_table

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence
    from pathlib import Path

    from sframegen.elf.file import ElfFile
    from sframegen.stack.names.symbol_files import DebugFiles


class SourceFrame(NamedTuple):
    """A function at an address, and the line in it: of the instruction, or of the call that was inlined there.

    `function`: as the compiler names it, demangled; empty if unknown. `source`: its file, empty if unknown.
    `line`: 0 if unknown. `inlined`: into the function of the frame before it.
    """

    function: str
    source: str
    line: int
    inlined: bool


FramesByAddress: TypeAlias = dict[int, tuple[SourceFrame, ...]]


class FileAddresses(NamedTuple):
    """A file with code, the number that it has in a profile, and link-time addresses."""

    number: int
    file: ElfFile
    addresses: Collection[int]


MAX_MEMORY = 1 << 32  # bytes for one file, in addition to what the process has at its start
AT_ONCE = 1 << 26  # bytes of debug information that are read at the same time, or one file: each takes a multiple of that in memory
MAX_WHY = 1000  # characters
DEBUG = (".debug_", ".zdebug_")
DEBUG_INFORMATION = tuple(f"{prefix}info" for prefix in DEBUG)


class Limits(NamedTuple):
    """Limits of one file, and of processes. `together`: seconds for all files; later files have no frames."""

    seconds: float
    together: float = math.inf
    memory: int = MAX_MEMORY
    processes: int = WORKERS


def usual_limits(*, asked: bool) -> Limits:
    """Return the usual limits. `asked`: the user asked for frames, and waits for them."""
    most = patience.current
    return Limits(most.asked_places) if asked else Limits(most.places, most.all_places)


def has_library() -> bool:
    return find_spec("symbolic") is not None


def has_debug_information(file: ElfFile) -> bool:
    """Return True if the file has frames to find: not copies and stripped files."""
    return any(section.name in DEBUG_INFORMATION and section.header.sh_type != SHT.NOBITS for section in file.sections)


def _size(file: ElfFile) -> int:
    """Return the bytes of a file's debug information, expanded; the maximum if it is damaged."""
    try:
        return sum(file.contents_size(section) for section in file.sections if section.name.startswith(DEBUG))
    except FormatError:
        return AT_ONCE


def find_source_frames(
    asked: Sequence[FileAddresses], *, directory: Path | None = None, limits: Limits | None = None
) -> Iterator[tuple[int, FramesByAddress | str | None]]:
    """Yield the number of each file with the source frames of its addresses, or with one line that says why there are none.

    None: there was no time left for it.

    `directory`: of the indexes that are kept; by default sframegen/symbols in $XDG_CACHE_HOME or ~/.cache.
    """
    limits = limits or usual_limits(asked=False)
    kept = FileCache("symbols", ENDING, directory)

    def work(number: int) -> SourceFrameColumns | Exception:
        return attempt(lambda file: source_frames_in(file, [*asked[number].addresses], kept), asked[number].file)

    def prepare(_pipe: int) -> None:
        end_with_parent()
        nowhere(1, 2)  # the library reports its end there
        limit_memory(limits.memory)

    sizes = [_size(one.file) for one in asked]
    left = set(range(len(asked)))
    waiting = deque(sorted(left, key=sizes.__getitem__))  # the largest file, which may take all the time, is the last
    size = 0  # bytes of the files that are being read
    try:
        pool: Pool[int] = Pool(lambda: Forked(work, prepare, limits.seconds), limits.processes)
        with pool:
            deadline = time.monotonic() + limits.together
            while left and (rest := deadline - time.monotonic()) > 0:
                begun = []
                while waiting and (size + sizes[waiting[0]] <= AT_ONCE or not size):
                    size += sizes[waiting[0]]
                    begun.append(waiting.popleft())
                pool.put(*begun)
                for number, answer in pool.ready(None if rest == math.inf else rest):
                    left.discard(number)
                    size -= sizes[number]
                    yield asked[number].number, _decode_answer(asked[number], answer.value)
        for number in sorted(left):
            yield asked[number].number, None
    finally:
        kept.trim()
        kept.close()


def _decode_answer(asked: FileAddresses, answer: SourceFrameColumns | Exception) -> FramesByAddress | str:
    if isinstance(answer, Exception):  # also of a process that ended
        why = (str(answer) or type(answer).__name__)[:MAX_WHY]
        return why if isinstance(answer, FormatError) else f"{asked.file.name}: no source lines or inlined functions: {why}"
    texts = _texts(answer)
    found: FramesByAddress = {}
    at = 0
    known: dict[bytes, tuple[SourceFrame, ...]] = {}
    for address, depth in zip(asked.addresses, answer.depths, strict=True):
        numbers = answer.numbers[at : at + 3 * depth]
        at += 3 * depth
        if (key := numbers.tobytes()) not in known:
            columns = zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True)
            known[key] = tuple(
                SourceFrame(texts[name][1], texts[source][0], line, place > 0) for place, (name, source, line) in enumerate(columns)
            )
        found[address] = known[key]
    return found


def _texts(answer: SourceFrameColumns) -> list[tuple[str, str]]:
    """Return each text as it is, and as a function name."""
    names = demangle_all({answer.texts[number] for number in answer.numbers[::3]})
    return [(printable(text), printable(names.get(text, text))) for text in answer.texts]


class Detail(NamedTuple):
    """What reports show of a frame beside its function. Without `inlined`, a line is where the function itself goes on.

    `by_line`: pictures show the lines of one function apart; the user waits longer for that.
    """

    inlined: bool = True
    by_line: bool = False


class SourceLines:
    """Source frames by number of the file and address. `notes`: of files whose debug information cannot be used."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self._frames: dict[int, FramesByAddress] = {}

    def at(self, number: int, address: int) -> tuple[SourceFrame, ...]:
        """Return the source frames of an address, the outermost function first; empty if unknown."""
        return self._frames.get(number, {}).get(address, ())

    def knows(self, number: int) -> bool:
        """Return True if anything is known of a file."""
        return bool(self._frames.get(number))

    def forget(self, number: int) -> None:
        """Drop the frames of a file."""
        self._frames.pop(number, None)

    def learn(
        self,
        asked: Iterable[FileAddresses],
        debug_files: DebugFiles,
        detail: Detail,
        *,
        directory: Path | None = None,
    ) -> Iterator[int]:
        """Find all frames; yield each file's number as soon as its frames are known. Without the library, only Go's are found."""
        described: dict[int, FileAddresses] = {}
        late: list[str] = []
        for one in asked:
            source = _with_debug_information(one.file, debug_files) if one.addresses and has_library() else None
            if source is not None:
                described[one.number] = one._replace(file=source)
                continue
            self._frames[one.number] = _by_go(one.file, one.addresses)
            yield one.number
        limits = usual_limits(asked=detail.by_line)
        files = [*described.values()]
        for number, found in find_source_frames(files, directory=directory, limits=limits) if files else ():
            if found is None:
                late.append(described[number].file.name)
            elif isinstance(found, str):
                self.notes.append(found)
            else:
                wanted = None if detail.inlined else 1
                self._frames[number] = {address: frames[:wanted] for address, frames in found.items()}
            yield number
        if late:
            why = f"all files together took longer than {limits.together:g} seconds"
            self.notes.append(f"{format_count(len(late), 'file')} such as {late[0]}: no source lines or inlined functions: {why}")


def _with_debug_information(file: ElfFile, debug_files: DebugFiles) -> ElfFile | None:
    if has_debug_information(file):
        return file
    debug = debug_files.find(file)
    return debug if debug is not None and has_debug_information(debug) else None


def _by_go(file: ElfFile, addresses: Iterable[int]) -> FramesByAddress:
    table = go_table(file)
    found: FramesByAddress = {}
    for address in addresses if table else ():
        line = table.line_at(address) if table else None
        if line:
            found[address] = (SourceFrame("", line.source, line.line, inlined=False),)
    return found


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


def source_frames_in(file: ElfFile, addresses: Sequence[int], kept: FileCache | None) -> SourceFrameColumns:
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
    def __init__(self, file: ElfFile, kept: FileCache | None) -> None:
        self._library = import_library("symbolic", "Archive", "SymCache")
        self._base = next((load.p_vaddr for load in file.segments if load.p_type == PT.LOAD), 0)  # of symcache addresses
        name = "" if kept is None or file.status is None else name_result(file.status, self._version()) + ENDING
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
    return import_library("cffi", "FFI").FFI().from_buffer(data)
