"""Code that a running process makes and describes in tables (docs/jit.md) -> functions, and spans with numbers of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cfi.errors import FormatError
from sframegen.profile.following.files import Span
from sframegen.registry.jit_tables import JitTables
from sframegen.registry.regions import Registry
from sframegen.stack.live.process import Process
from sframegen.stack.objects.runtime_code import RuntimeCode
from sframegen.stack.snapshot.memory import Memory
from sframegen.stack.snapshot.snapshot import StackError

if TYPE_CHECKING:
    from sframegen.format.model import FunctionTable
    from sframegen.profile.following.files import Files, TracedFile
    from sframegen.profile.following.processes import Processes
    from sframegen.stack.snapshot.mappings import Mappings

NAME = "[jit]"


class Described(NamedTuple):
    """A range of code, and its functions at their run-time addresses: a table to make, in place of the file's last one."""

    file: TracedFile
    functions: FunctionTable


class _Recorded:
    """Reads memory, and keeps what it read."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._seen: list[tuple[int, bytes]] = []
        self._sizes: list[int] = []

    def read(self, address: int, size: int) -> bytes:
        data = self._process.read(address, size)
        self._seen.append((address, data))
        self._sizes.append(size)
        return data

    def is_same(self) -> bool:
        """Return True if the memory has not changed since."""
        pairs = zip(self._seen, self._sizes, strict=True)
        return all(self._process.read(address, size) == data for (address, data), size in pairs)


class _Maker:
    """A process that makes code. Raises StackError if its memory cannot be read."""

    def __init__(self, pid: int) -> None:
        self.process = Process(pid)
        self.files: dict[tuple[int, int], TracedFile] = {}  # by range
        self.spans: list[Span] = []
        self._mappings: Mappings | None = None
        self._recorded = _Recorded(self.process)

    def tables(self) -> list[tuple[int, int, JitTables]] | None:
        """Return all ranges with their tables, read from the first entry on: removed code has none; None if nothing has changed."""
        mappings = self.process.mappings()
        if mappings is self._mappings and self._recorded.is_same():
            return None
        self._mappings, self._recorded = mappings, _Recorded(self.process)
        snapshot = self.process.now()
        snapshot.memory = Memory(self._recorded.read, self.process.abi.byte_order)
        registry = Registry()
        RuntimeCode(registry).follow(snapshot)
        return [(one.start, one.end, one.describer) for one in registry if isinstance(one.describer, JitTables)]


class MadeCode:
    """Follows the tables of processes. Its spans are put into the state of the process, over the code without a file."""

    def __init__(self, files: Files, processes: Processes) -> None:
        self._files = files
        self._processes = processes
        self._makers: dict[int, _Maker] = {}

    def refresh(self, pid: int, time: int) -> list[Described]:
        """Read the tables of a process that has code without a file; return those that are new or have changed.

        Its spans then have the numbers of the tables, and it is in `Processes.changed`. To be called now and then.
        """
        spans = self._processes.spans(pid)
        if spans is None or (pid not in self._makers and all(span.file for span in spans)):
            return []
        try:
            maker = self._makers.get(pid)
            if maker is None:
                maker = self._makers[pid] = _Maker(pid)
            tables = maker.tables()
        except StackError:
            self.forget(pid)
            return []
        described = []
        old = maker.spans
        if tables is not None:
            maker.spans = []
            for start, end, table in tables:
                file = self._file(maker, start, end)
                if file is None:
                    continue
                try:
                    described.append(Described(file, table.functions()))
                except FormatError as error:  # its code is code without a file
                    file.why = error.message
                    continue
                file.why = ""
                maker.spans.append(Span(start, end, 0, file.number))
        if maker.spans != old or not set(maker.spans) <= set(spans):
            self._processes.set_made(pid, {file.number for file in maker.files.values()}, maker.spans, time)
        return described

    def forget(self, pid: int) -> None:
        """Forget a process that ended."""
        maker = self._makers.pop(pid, None)
        if maker is not None:
            maker.process.__exit__()

    def close(self) -> None:
        for pid in list(self._makers):
            self.forget(pid)

    def _file(self, maker: _Maker, start: int, end: int) -> TracedFile | None:
        """Return the number of a range of code: the same one for as long as the process lives."""
        file = maker.files.get((start, end))
        if file is None and (file := self._files.without_file(NAME)) is not None:
            maker.files[start, end] = file
        return file
