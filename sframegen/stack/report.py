"""Formats the stacks of a process as text or JSON, and names the functions and objects of their frames."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

from sframegen.base.errors import FormatError
from sframegen.base.text import printable
from sframegen.stack.mappings import DELETED
from sframegen.stack.names.file_names import FileNames
from sframegen.stack.objects.loaded_image import file_identity
from sframegen.stack.walking.frames import ADDRESS_MASK, COMPLETE, Frame, RuleSource, Thread

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator

    from sframegen.elf.file import ElfFile
    from sframegen.stack.names.perf_map import PerfMap
    from sframegen.stack.objects.loaded_objects import LoadedObject, LoadedObjects

UNKNOWN = "??"
GUESS_MARK = " [guess]"  # frames reached through a frame pointer of code without a rule
SIGNAL_HANDLER = "<signal handler called>"


class Sample(NamedTuple):
    """All stacks of a process at one moment."""

    pid: int
    executable: str
    threads: list[Thread]
    stopped_ms: float  # how long the process was stopped


def format_stacks(sample: Sample, symbols: Symbols, *, raw: bool) -> Iterator[str]:
    """Yield the stacks as lines in the style of eu-stack. `raw`: print addresses without names."""
    lines: dict[tuple[int, bool, bool, bool], str] = {}  # of frames already formatted, without their numbers
    yield f"PID {sample.pid} - {printable(sample.executable) or UNKNOWN}"
    for thread in sample.threads:
        yield f"TID {thread.tid}:"
        for number, frame in enumerate(thread.frames):
            key = (frame.pc, frame.exact, frame.signal, frame.guessed)
            line = lines.get(key)
            if line is None:
                name = "" if raw else _format_frame(frame, symbols)
                line = lines[key] = f"{frame.pc:#018x}{name}{GUESS_MARK * frame.guessed}"
            yield f"#{number:<2} {line}"
        if thread.end not in COMPLETE:
            yield f"    {thread.end.words}" + (f": {thread.detail}" if thread.detail else "")


def _format_frame(frame: Frame, symbols: Symbols) -> str:
    """Return the function and the object of a frame, as they follow its address in a line."""
    location = symbols.locate(frame)
    name = SIGNAL_HANDLER if frame.signal and not location.function else location.label
    function = f" {name} + {location.offset:#x}" if name and name != SIGNAL_HANDLER else f" {name or UNKNOWN}"
    return function + (f" - {printable(location.object)}" if location.object else "")


def as_json(sample: Sample, symbols: Symbols, problems: Iterable[str]) -> str:
    """Return all stacks as one JSON object. Addresses are numbers; `how` says how the caller of a frame was found."""
    import json  # noqa: PLC0415 - only needed here

    threads = [
        {
            "tid": thread.tid,
            "name": thread.name,
            "idle": thread.idle,
            "frames": [_frame_to_json(frame, symbols) for frame in thread.frames],
            "end": thread.end.words,
            "complete": thread.end in COMPLETE,
            "detail": thread.detail,
        }
        for thread in sample.threads
    ]
    fields = {"pid": sample.pid, "executable": sample.executable, "stopped_ms": sample.stopped_ms}
    return json.dumps(fields | {"threads": threads, "problems": list(problems)})


def _frame_to_json(frame: Frame, symbols: Symbols) -> dict[str, Any]:
    return {
        "pc": frame.pc,
        "sp": frame.sp,
        "cfa": frame.cfa,
        "how": frame.how.value if frame.how else None,
        "signal": frame.signal,
        "guessed": frame.guessed,
        **symbols.locate(frame)._asdict(),
    }


def files_lacking_section(threads: Iterable[Thread], objects: LoadedObjects) -> list[str]:
    """Return the files without a section in which a walk found no rule, because `--convert` may make them a section."""
    frames = (frame for thread in threads for frame in thread.frames if frame.how in (None, RuleSource.FRAME_POINTER))
    without_rule = (objects.known_at(frame.lookup_address) for frame in frames)
    return sorted({loaded.name for loaded in without_rule if loaded and loaded.file and not loaded.section})


class FrameLocation(NamedTuple):
    """Where a frame's PC is. Unknown fields are None. `offset`: from the start of the function to the PC."""

    function: str | None
    offset: int
    object: str | None
    address: int | None  # the PC as a link-time address of the object
    start: int | None = None  # of the function, a link-time address too

    @property
    def label(self) -> str | None:
        """Return the function's name, or its object and start if it has none: `[postgres+0x35f640]`."""
        if self.function or not self.object or self.start is None:
            return self.function
        name = self.object.removesuffix(DELETED).rpartition("/")[2].strip("[]")
        return f"[{printable(name)}+{self.start:#x}]"


class Symbols:
    """Names frames from the symbol tables of loaded objects, and code made at run time from the process's perf map."""

    def __init__(self, objects: LoadedObjects) -> None:
        self.objects = objects
        self._files: dict[Hashable, FileNames] = {}
        self._perf_map: PerfMap | None = None

    def load_names(self, pid: int, threads: Iterable[Thread]) -> None:
        """Load the names for all frames of these stacks, which is quicker than frame by frame, and the process's perf map."""
        addresses: defaultdict[FileNames, list[int]] = defaultdict(list)
        has_jit_code = False
        for address in {frame.lookup_address for thread in threads for frame in thread.frames}:
            loaded = self.objects.known_at(address)
            if loaded is None or loaded.file is None:
                has_jit_code = True
            else:
                addresses[self._get_file_names(loaded.file)].append(address - loaded.bias & ADDRESS_MASK)
        for names, file_addresses in addresses.items():
            names.load_names(file_addresses)
        if has_jit_code:
            from sframegen.stack.names.perf_map import PerfMap  # noqa: PLC0415 - few processes make code at run time

            self._perf_map = PerfMap(pid)
            self._perf_map.read()

    def locate(self, frame: Frame) -> FrameLocation:
        """Return where a frame of the last trace is."""
        loaded = self.objects.known_at(frame.lookup_address)
        if loaded is None or loaded.file is None:
            entry = self._perf_map.find(frame.lookup_address) if self._perf_map else None
            object_name = (loaded and loaded.name) or None
            if entry is None:
                return FrameLocation(None, 0, object_name, None)
            return FrameLocation(printable(entry.name.decode(errors="replace")), frame.pc - entry.start, object_name, None)
        address, lookup_address = (at - loaded.bias & ADDRESS_MASK for at in (frame.pc, frame.lookup_address))
        function, start = self._get_file_names(loaded.file).at(lookup_address)
        if start is None:
            start = _find_start_in_section(loaded, frame.lookup_address)
        return FrameLocation(function, 0 if start is None else address - start, loaded.name, address, start)

    def _get_file_names(self, file: ElfFile) -> FileNames:
        """Return the names of a file. They are kept even if it is opened again, as another ElfFile."""
        key = file_identity(file)
        if key not in self._files:
            self._files[key] = FileNames(file)
        return self._files[key]


def _find_start_in_section(loaded: LoadedObject, pc: int) -> int | None:
    """Return the link-time address of the function that the object's SFrame section has at the PC; None without one."""
    try:
        match = loaded.look_up(pc)
    except FormatError:
        return None
    return match.start - loaded.bias & ADDRESS_MASK if match else None
