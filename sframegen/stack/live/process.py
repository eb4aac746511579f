"""A live process: its mappings, its memory, and snapshots while its threads are stopped."""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Self

from sframegen.base.errors import FormatError
from sframegen.program.forked import Answer
from sframegen.program.helper import NoAnswerError, helpers
from sframegen.stack.abi.machines import HOST_ABIS, NT_PRFPREG, NT_PRSTATUS, ThreadRegisters, conventions_of, parse_registers
from sframegen.stack.live import proc, ptrace
from sframegen.stack.live.open_aside import open_elf_aside
from sframegen.stack.mappings import DELETED, Mapping, Mappings
from sframegen.stack.snapshot import CachedMemory, Snapshot, StackError, StoppedThread

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sframegen.elf.file import ElfFile
    from sframegen.format.abi import Abi

MAPS_ROW = re.compile(rb"([0-9a-f]+)-([0-9a-f]+) (.)(.)(.). ([0-9a-f]+) (\S+) (\d+) *(.*)")


def host_abi() -> Abi:
    """Return the ABI of this machine. Raises StackError if SFrame has none for it."""
    machine = os.uname().machine
    if machine not in HOST_ABIS:
        raise StackError(f"this machine ({machine}) is not supported, only {', '.join(HOST_ABIS)}")
    return HOST_ABIS[machine]


def parse_mappings(text: bytes) -> Mappings:
    """Parse the text of /proc/PID/maps."""
    rows = []
    for line in text.split(b"\n"):  # the only control character that is escaped in paths
        if match := MAPS_ROW.fullmatch(line):
            start, end, readable, writable, executable, offset, device, inode, path = match.groups()
            rows.append(
                Mapping(
                    int(start, 16), int(end, 16), readable == b"r", writable == b"w", executable == b"x",
                    int(offset, 16), device.decode(), int(inode), os.fsdecode(path),
                )
            )  # fmt: skip
    return Mappings(rows)


class Process:
    """A live process, used as a context manager. Raises StackError if it cannot be read."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.abi = host_abi()
        self._maps_text = b""
        self._mappings = Mappings()
        self._answering = {_find_memfd_device()}  # devices of mappings whose files always answer
        self.unread: dict[str, str] = {}  # files that could not be opened, and why
        if not os.access(f"/proc/{pid}", os.F_OK):
            raise StackError(f"process {pid}: no such process")
        self._folder = self._find_living_folder()
        self._memory = self._open_memory()
        self.executable = self._read_executable()
        self.stopped_seconds = 0.0  # the sum of all stops

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._memory)

    def mappings(self) -> Mappings:
        """Return the current mappings; the same object while they do not change."""
        text = self._read_maps()
        if not text:
            self._folder = self._find_living_folder()
            text = self._read_maps()
        if text != self._maps_text:
            if self._maps_text:  # it may execute another program now, with another memory
                memory = self._open_memory()
                os.close(self._memory)
                self._memory = memory
                self.executable = self._read_executable()
            self._maps_text, self._mappings = text, parse_mappings(text)
        return self._mappings

    def read(self, address: int, size: int) -> bytes:
        """Return bytes of memory, fewer if the memory ends; none if they are mapped from a file that does not answer."""
        if not self._maps_text:
            self.mappings()
        rows = self._mappings.overlapping(address, address + size)
        device = next((row.device for row in rows if row.inode and row.device not in self._answering), None)
        if device is None:
            return _read_memory(address, size, self._memory)
        try:
            data: bytes = helpers().call(("memory", device), read_memory_in_helper, address, size, descriptors=[self._memory]).value
        except OSError:
            return b""
        return data

    def file_of(self, mapping: Mapping) -> ElfFile | None:
        """Return the mapped file, even if it is deleted, or in another mount namespace."""
        if not mapping.path.startswith("/"):
            return None
        name = mapping.path.removesuffix(DELETED)
        places = [f"map_files/{mapping.start:x}-{mapping.end:x}", f"root{name}"]  # the first needs privileges
        if name == self.executable:
            places.append("exe")
        for path in places:
            try:
                elf, is_copy = open_elf_aside(mapping.device, f"{self._folder}/{path}")
            except NoAnswerError as error:
                self.unread[name] = str(error.strerror)
                return None
            except (OSError, FormatError):
                continue
            # Some file systems have a device number in stat that differs from that of mappings.
            if not is_copy and elf.status is not None and _format_device(elf.status.st_dev) == mapping.device:
                self._answering.add(mapping.device)
            elf.name = name
            return elf
        return None

    @contextmanager
    def stopped(self, tid: int | None = None) -> Iterator[Snapshot]:
        """Yield a snapshot of the process, with all threads or one stopped within the block. Raises StackError if none can be."""
        if tid and tid not in proc.threads_of(self.pid):
            raise StackError(f"process {self.pid}: it has no thread {tid}")
        with ptrace.stopped(self.pid, tid) as threads:
            try:
                if not threads.tids:
                    why = threads.refused.get(self.pid) or next(iter(threads.refused.values()), "no such process")
                    raise StackError(f"process {self.pid}: {why}")
                mappings = self.mappings()
                if not mappings.rows:
                    raise StackError(f"process {self.pid}: it has no memory of its own: a thread of the kernel, or about to end")
                yield self._make_snapshot(mappings, [self._read_thread(tid, threads) for tid in threads.tids], threads.refused)
            finally:
                threads.release_all()
                self.stopped_seconds += threads.ended - threads.began

    def now(self) -> Snapshot:
        """Return a snapshot of the running process, without threads; its memory may change."""
        return self._make_snapshot(self.mappings(), [], {})

    def _make_snapshot(self, mappings: Mappings, threads: list[StoppedThread], refused: dict[int, str]) -> Snapshot:
        return Snapshot(self.abi, mappings, CachedMemory(self.read, self.abi.byte_order), self.file_of, threads, refused)

    def _read_thread(self, tid: int, threads: ptrace.StoppedThreads) -> StoppedThread:
        try:
            name = proc.proc_contents(f"/proc/{self.pid}/task/{tid}/comm").decode(errors="replace").removesuffix("\n")
        except OSError:
            name = ""
        return StoppedThread(tid, name, self._read_registers(tid), tid in threads.idle)

    def _read_registers(self, tid: int) -> ThreadRegisters | StackError:
        known = conventions_of(self.abi)
        try:
            general = ptrace.read_register_set(tid, NT_PRSTATUS)
            floating = ptrace.read_register_set(tid, NT_PRFPREG) if known.floating else b""
            masks = ptrace.read_register_set(tid, known.ra_mask_set) if known.ra_mask_set else b""
        except ProcessLookupError:
            return StackError(f"thread {tid}: {proc.GONE}")
        registers = parse_registers(self.abi, general, floating, masks)
        return registers or StackError(f"thread {tid}: it runs 32-bit code, for which there is no SFrame")

    def _open_memory(self) -> int:
        for _ in range(3):  # the thread may be gone, because another one executes a program
            try:
                return os.open(f"{self._folder}/mem", os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                self._folder = self._find_living_folder()
        raise StackError(f"process {self.pid}: {proc.explain_refusal(int(self._folder.removeprefix('/proc/')))}")

    def _read_maps(self) -> bytes:
        try:
            return proc.proc_contents(f"{self._folder}/maps")
        except OSError:
            return b""

    def _find_living_folder(self) -> str:
        """Return the /proc folder of a living thread: the first thread may have ended, and then shows no memory."""
        return f"/proc/{next(filter(proc.is_alive, proc.threads_of(self.pid)), self.pid)}"

    def _read_executable(self) -> str:
        try:
            return os.readlink(f"{self._folder}/exe").removesuffix(DELETED)  # noqa: PTH115 - pathlib takes longer
        except OSError:
            return ""


def read_memory_in_helper(address: int, size: int, memory: int) -> Answer:
    """Return bytes of memory that may be mapped from a file that does not answer. Runs in a helper."""
    return Answer(_read_memory(address, size, memory))


def _read_memory(address: int, size: int, memory: int) -> bytes:
    try:
        return os.pread(memory, size, address)
    except (OSError, OverflowError):
        return b""


@cache
def _find_memfd_device() -> str:
    """Return the device number of shared memory without a file, as /proc/PID/maps prints it."""
    descriptor = os.memfd_create("device", os.MFD_CLOEXEC)
    try:
        return _format_device(os.fstat(descriptor).st_dev)
    finally:
        os.close(descriptor)


def _format_device(device: int) -> str:
    return f"{os.major(device):02x}:{os.minor(device):02x}"
