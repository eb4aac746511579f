"""Finds functions, also inlined ones, and source lines of addresses in files, from debug information, else Go's own table.

Debug information is read in other processes, so that a file that crashes or blocks one of them loses only its own frames. They use
the library symbolic, which makes a symbol index ("symcache") of a file; indexes are cached between runs. The answer of a process is
columns of numbers, because sending an object for each frame would take too long.
"""

from __future__ import annotations

import math
import time
from array import array
from collections import deque
from contextlib import closing
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from sframegen.base.errors import FormatError
from sframegen.base.text import format_count, printable
from sframegen.elf.records import PT, SHT
from sframegen.profile.file_cache import FileCache, is_settled, name_result
from sframegen.profile.limits import WORKERS
from sframegen.program import time_limits
from sframegen.program.forked import ForkedProcess, die_with_parent, limit_memory, redirect_to_null
from sframegen.program.libraries import import_library
from sframegen.program.pool import Pool
from sframegen.program.workers import run_or_catch
from sframegen.stack.names.demangle import demangle_all
from sframegen.stack.names.gopclntab import find_go_table

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence
    from pathlib import Path

    from sframegen.elf.file import ElfFile
    from sframegen.stack.names.symbol_files import DebugFiles


class SourceFrame(NamedTuple):
    """A function at an address, and a line in it: that of the instruction, or of the call that was inlined there.

    `function`: its demangled name; empty if unknown. `source`: its source file; empty if unknown. `line`: 0 if unknown.
    `inlined`: the function is inlined into that of the frame before it.
    """

    function: str
    source: str
    line: int
    inlined: bool


FramesByAddress: TypeAlias = dict[int, tuple[SourceFrame, ...]]


class FileAddresses(NamedTuple):
    """A file, its number in a profile, and link-time addresses in it to look up."""

    number: int
    file: ElfFile
    addresses: Collection[int]


MAX_MEMORY = 1 << 32  # bytes for one file, in addition to what the process has at its start
MAX_BYTES_AT_ONCE = 1 << 26  # of debug information in all processes, or one larger file: a reader needs a multiple of its size
MAX_REASON = 1000  # characters of an error
DEBUG_PREFIXES = (".debug_", ".zdebug_")
DEBUG_INFORMATION = tuple(f"{prefix}info" for prefix in DEBUG_PREFIXES)


class ReadingLimits(NamedTuple):
    """Limits of reading. `seconds`, `memory`: for one file. `total_seconds`: for all files; later files have no frames."""

    seconds: float
    total_seconds: float = math.inf
    memory: int = MAX_MEMORY
    processes: int = WORKERS


def default_limits(*, user_waits: bool) -> ReadingLimits:
    """Return the default limits. `user_waits`: the user asked for source lines, and so waits longer."""
    seconds = time_limits.current
    return ReadingLimits(seconds.requested_lines) if user_waits else ReadingLimits(seconds.lines, seconds.all_lines)


def has_library() -> bool:
    return find_spec("symbolic") is not None


def has_debug_information(file: ElfFile) -> bool:
    """Return True if the file has a .debug_info section with contents, which copies and stripped files do not have."""
    return any(section.name in DEBUG_INFORMATION and section.header.sh_type != SHT.NOBITS for section in file.sections)


def _debug_information_size(file: ElfFile) -> int:
    """Return the uncompressed bytes of a file's debug information; MAX_BYTES_AT_ONCE if it is damaged."""
    try:
        return sum(file.contents_size(section) for section in file.sections if section.name.startswith(DEBUG_PREFIXES))
    except FormatError:
        return MAX_BYTES_AT_ONCE


def find_source_frames(
    requests: Sequence[FileAddresses], *, directory: Path | None = None, limits: ReadingLimits | None = None
) -> Iterator[tuple[int, FramesByAddress | str | None]]:
    """Yield the number of each file with the source frames of its addresses, with one line that gives the reason why it has none,
    or with None if there was no time left for the file.

    `directory`: for cached symbol indexes; by default sframegen/symbols in $XDG_CACHE_HOME or ~/.cache.
    """
    limits = limits or default_limits(user_waits=False)
    cache = FileCache("symbols", SYMCACHE_SUFFIX, directory)

    def answer_request(index: int) -> SourceFrameColumns | Exception:
        return run_or_catch(lambda file: look_up_source_frames(file, [*requests[index].addresses], cache), requests[index].file)

    def prepare_process(_pipe: int) -> None:
        die_with_parent()
        redirect_to_null(1, 2)  # drop stdout and stderr, to which the library prints when it crashes
        limit_memory(limits.memory)

    sizes = [_debug_information_size(request.file) for request in requests]
    unfinished = set(range(len(requests)))  # indexes of requests
    waiting = deque(sorted(unfinished, key=sizes.__getitem__))  # the largest file is the last, as it may take all the time
    size = 0  # bytes of debug information in the files that are being read
    try:
        pool: Pool[int] = Pool(lambda: ForkedProcess(answer_request, prepare_process, limits.seconds), limits.processes)
        with closing(pool):
            deadline = time.monotonic() + limits.total_seconds
            while unfinished and (seconds_left := deadline - time.monotonic()) > 0:
                startable = []
                while waiting and (size + sizes[waiting[0]] <= MAX_BYTES_AT_ONCE or not size):
                    size += sizes[waiting[0]]
                    startable.append(waiting.popleft())
                pool.put(*startable)
                for index, answer in pool.take_answers(None if seconds_left == math.inf else seconds_left):
                    unfinished.discard(index)
                    size -= sizes[index]
                    yield requests[index].number, _decode_answer(requests[index], answer.value)
        for index in sorted(unfinished):
            yield requests[index].number, None
    finally:
        cache.trim()
        cache.close()


def _decode_answer(request: FileAddresses, answer: SourceFrameColumns | Exception) -> FramesByAddress | str:
    if isinstance(answer, Exception):  # also DiedError, if the process crashed
        reason = (str(answer) or type(answer).__name__)[:MAX_REASON]
        return reason if isinstance(answer, FormatError) else f"{request.file.name}: no source lines or inlined functions: {reason}"
    demangled = demangle_all({answer.texts[number] for number in answer.numbers[::3]})
    functions = [printable(demangled.get(text, text)) for text in answer.texts]
    sources = [*map(printable, answer.texts)]
    frames_by_address: FramesByAddress = {}
    start = 0
    decoded: dict[bytes, tuple[SourceFrame, ...]] = {}  # by encoded frames, as many addresses have equal frames
    for address, depth in zip(request.addresses, answer.depths, strict=True):
        numbers = answer.numbers[start : start + 3 * depth]
        start += 3 * depth
        if (key := numbers.tobytes()) not in decoded:
            columns = enumerate(zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True))
            decoded[key] = tuple(SourceFrame(functions[name], sources[path], line, at > 0) for at, (name, path, line) in columns)
        frames_by_address[address] = decoded[key]
    return frames_by_address


class FrameDetail(NamedTuple):
    """What reports show of a frame in addition to its function. Without `inlined`, the line is that of the inlined call.

    `by_line`: the lines of one function are separate frames; it allows more time, since the user asked for them.
    """

    inlined: bool = True
    by_line: bool = False


class SourceLines:
    """Source frames by file number and address. `notes`: on files whose debug information cannot be used."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self._frames: dict[int, FramesByAddress] = {}

    def frames_at(self, number: int, address: int) -> tuple[SourceFrame, ...]:
        """Return the source frames of an address, the outermost function first; empty if unknown."""
        return self._frames.get(number, {}).get(address, ())

    def has_frames(self, number: int) -> bool:
        return bool(self._frames.get(number))

    def drop(self, number: int) -> None:
        self._frames.pop(number, None)

    def load(
        self, requests: Iterable[FileAddresses], debug_files: DebugFiles, detail: FrameDetail, *, directory: Path | None = None
    ) -> Iterator[int]:
        """Find all frames; yield the number of each file as soon as it is done. Without the library, only Go's lines are found."""
        with_debug_information: dict[int, FileAddresses] = {}
        unread_files: list[str] = []
        for request in requests:
            debug_file = _find_debug_information(request.file, debug_files) if request.addresses and has_library() else None
            if debug_file is not None:
                with_debug_information[request.number] = request._replace(file=debug_file)
                continue
            self._frames[request.number] = _find_go_lines(request.file, request.addresses)
            yield request.number
        limits = default_limits(user_waits=detail.by_line)
        files = [*with_debug_information.values()]
        for number, found in find_source_frames(files, directory=directory, limits=limits) if files else ():
            if found is None:
                unread_files.append(with_debug_information[number].file.name)
            elif isinstance(found, str):
                self.notes.append(found)
            else:
                limit = None if detail.inlined else 1
                self._frames[number] = {address: frames[:limit] for address, frames in found.items()}
            yield number
        if unread_files:
            files_unread = f"{format_count(len(unread_files), 'file')} such as {unread_files[0]}"
            reason = f"all files together took longer than {limits.total_seconds:g} seconds"
            self.notes.append(f"{files_unread}: no source lines or inlined functions: {reason}")


def _find_debug_information(file: ElfFile, debug_files: DebugFiles) -> ElfFile | None:
    if has_debug_information(file):
        return file
    debug = debug_files.find(file)
    return debug if debug is not None and has_debug_information(debug) else None


def _find_go_lines(file: ElfFile, addresses: Iterable[int]) -> FramesByAddress:
    table = find_go_table(file)
    if table is None:
        return {}
    lines = ((address, table.line_at(address)) for address in addresses)
    return {address: (SourceFrame("", line.source, line.line, inlined=False),) for address, line in lines if line}


SYMCACHE_SUFFIX = ".symcache"
MAX_FRAMES = 64  # at one address
MAX_NAME = 8192  # characters, as for names in symbol tables
MAX_LINE = 0x7FFFFFFF


class SourceFrameColumns(NamedTuple):
    """Source frames of many addresses, the outermost frame of each address first.

    `depths`: the number of frames at each address. `numbers`: three for each frame: indexes of the function and the source file in
    `texts`, and the line.
    """

    texts: list[str]
    depths: array[int]
    numbers: array[int]


def look_up_source_frames(file: ElfFile, addresses: Sequence[int], cache: FileCache | None) -> SourceFrameColumns:
    """Look up link-time addresses. Raises FormatError if the library cannot read the file, ImportError without the library."""
    symcache = _Symcache(file, cache)
    numbers_of: dict[str, int] = {}
    depths, numbers = array("B"), array("I")
    for address in addresses:
        frames = symcache.look_up(address)
        depths.append(len(frames))
        for function, source, line in frames:
            for text in (function, source):
                numbers.append(numbers_of.setdefault(text, len(numbers_of)))
            numbers.append(line)
    return SourceFrameColumns([*numbers_of], depths, numbers)


class _Symcache:
    """A symbol index of the library symbolic, which is loaded from a cache directory, or made from debug information."""

    def __init__(self, file: ElfFile, cache: FileCache | None) -> None:
        self._library = import_library("symbolic", "Archive", "SymCache")
        # Addresses in a symcache are relative to the first segment.
        self._base = next((load.p_vaddr for load in file.segments if load.p_type == PT.LOAD), 0)
        name = "" if cache is None or file.status is None else name_result(file.status, self._version()) + SYMCACHE_SUFFIX
        data = cache.load(name) if cache and name else None
        symcache = self._open(data) if data is not None else None
        if symcache is None:
            symcache = self._make(file)
            if cache and name and file.status and is_settled(file.status):
                with symcache.open_stream() as stream:
                    cache.store(name, stream.read())
        self._symcache: Any = symcache

    def look_up(self, address: int) -> list[tuple[str, str, int]]:
        """Return (function, source file, line) of each frame, the outermost first; empty if no line is known."""
        if address < self._base:
            return []
        try:
            frames = self._symcache.lookup(address - self._base)
        except (OverflowError, self._library.SymbolicError):
            return []
        if not any(frame.line for frame in frames):
            return []
        return [
            ((frame.symbol or "")[:MAX_NAME], (frame.full_path or "")[:MAX_NAME], min(frame.line, MAX_LINE))
            for frame in _limit_frames(frames[::-1])
        ]

    def _version(self) -> bytes:
        from importlib.metadata import version  # noqa: PLC0415 - of what is imported only here

        return f"symbolic {version('symbolic')}".encode()

    def _open(self, data: memoryview) -> Any:  # noqa: ANN401 - the library has no types for it
        try:
            return self._library.SymCache.from_bytes(_as_cffi_buffer(data))
        except self._library.SymbolicError:  # damaged
            return None

    def _make(self, file: ElfFile) -> Any:  # noqa: ANN401 - the same
        try:
            archive = self._library.Archive.from_bytes(_as_cffi_buffer(file.data))
            return next(archive.iter_objects()).make_symcache()
        except (self._library.SymbolicError, StopIteration) as error:
            raise FormatError(f"symbolic cannot read its debug information: {error}", file=file.name) from None


def _limit_frames(frames: list[Any]) -> Iterable[Any]:
    """Return the frames; if there are more than MAX_FRAMES, leave out frames before the innermost one."""
    return frames if len(frames) <= MAX_FRAMES else [*frames[: MAX_FRAMES - 1], frames[-1]]


def _as_cffi_buffer(data: memoryview) -> Any:  # noqa: ANN401 - a char[] of cffi
    """Return the bytes as a cffi buffer, which is not a copy; symbolic keeps them alive as long as it needs them."""
    return import_library("cffi", "FFI").FFI().from_buffer(data)
