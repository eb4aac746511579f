"""A live process: its mappings, its memory, and snapshots while its threads are stopped.

All is read from /proc. Files that the process maps, and memory that comes from them, are read in a helper process, because their
file system may not answer. Devices whose files turned out to be on a file system of the kernel itself are then read directly.
"""

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

# A line of /proc/PID/maps: start-end, permissions, offset in the file, device, inode, path.
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
    for line in text.split(b"\n"):  # not splitlines(), because of all line breaks only this one is escaped in paths
        if match := MAPS_ROW.fullmatch(line):
            start, end, readable, writable, executable, offset, device, inode, path = match.groups()
            row = Mapping(
                start=int(start, 16), end=int(end, 16), readable=readable == b"r", writable=writable == b"w",
                executable=executable == b"x", offset=int(offset, 16), device=device.decode(), inode=int(inode),
                path=os.fsdecode(path),
            )  # fmt: skip
            rows.append(row)
    return Mappings(rows)


class Process:
    """A live process, used as a context manager. Its methods raise StackError if it cannot be read."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.abi = host_abi()
        self._maps_text = b""
        self._mappings = Mappings()
        self._local_devices = {_find_memfd_device()}  # whose files can be read without waiting for a file server
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
        """Return the current mappings: the same object as before if they have not changed."""
        text = self._read_maps()
        if not text:
            self._folder = self._find_living_folder()
            text = self._read_maps()
        if text != self._maps_text:
            if self._maps_text:  # opened again because the process may now execute another program, with other memory
                memory = self._open_memory()
                os.close(self._memory)
                self._memory = memory
                self.executable = self._read_executable()
            self._maps_text, self._mappings = text, parse_mappings(text)
        return self._mappings

    def read(self, address: int, size: int) -> bytes:
        """Return bytes of memory, fewer if readable memory ends; none if their file is on a file system that does not answer."""
        if not self._maps_text:
            self.mappings()
        rows = self._mappings.overlapping(address, address + size)
        device = next((row.device for row in rows if row.inode and row.device not in self._local_devices), None)
        if device is None:
            return _read_memory(address, size, self._memory)
        try:
            data: bytes = helpers().call(("memory", device), read_memory_in_helper, address, size, descriptors=[self._memory]).value
        except OSError:
            return b""
        return data

    def file_of(self, mapping: Mapping) -> ElfFile | None:
        """Return the mapped file, even if it is deleted or in another mount namespace; None if it cannot be opened."""
        if not mapping.path.startswith("/"):
            return None
        name = mapping.path.removesuffix(DELETED)
        paths = [f"map_files/{mapping.start:x}-{mapping.end:x}", f"root{name}"]  # the first one needs privileges
        if name == self.executable:
            paths.append("exe")
        for path in paths:
            try:
                elf, is_copy = open_elf_aside(mapping.device, f"{self._folder}/{path}")
            except NoAnswerError as error:
                self.unread[name] = str(error.strerror)
                return None
            except (OSError, FormatError):
                continue
            # On some file systems, stat returns another device number than /proc/PID/maps.
            if not is_copy and elf.status is not None and _format_device(elf.status.st_dev) == mapping.device:
                self._local_devices.add(mapping.device)
            elf.name = name
            return elf
        return None

    @contextmanager
    def stopped(self, tid: int | None = None) -> Iterator[Snapshot]:
        """Yield a snapshot; all threads, or thread `tid` alone, are stopped within the block. Raises StackError if none can be."""
        if tid and tid not in proc.threads_of(self.pid):
            raise StackError(f"process {self.pid}: it has no thread {tid}")
        with ptrace.stopped(self.pid, tid) as threads:
            try:
                if not threads.tids:
                    reason = threads.refused.get(self.pid) or next(iter(threads.refused.values()), "no such process")
                    raise StackError(f"process {self.pid}: {reason}")
                mappings = self.mappings()
                if not mappings.rows:
                    raise StackError(f"process {self.pid}: it has no memory of its own: a thread of the kernel, or about to end")
                yield self._make_snapshot(mappings, [self._read_thread(tid, threads) for tid in threads.tids], threads.refused)
            finally:
                threads.release_all()
                self.stopped_seconds += threads.ended - threads.began

    def now(self) -> Snapshot:
        """Return a snapshot of the running process, without threads. Its memory may change at any time."""
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
        conventions = conventions_of(self.abi)
        try:
            general = ptrace.read_register_set(tid, NT_PRSTATUS)
            floating = ptrace.read_register_set(tid, NT_PRFPREG) if conventions.floating else b""
            masks = ptrace.read_register_set(tid, conventions.ra_mask_set) if conventions.ra_mask_set else b""
        except ProcessLookupError:
            return StackError(f"thread {tid}: {proc.GONE}")
        registers = parse_registers(self.abi, general, floating, masks)
        return registers or StackError(f"thread {tid}: it runs 32-bit code, for which there is no SFrame")

    def _open_memory(self) -> int:
        for _ in range(3):  # retried because the thread may be gone if another one executes a program
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
        """Return the /proc folder of a living thread, because the first thread shows no memory if it has ended."""
        return f"/proc/{next(filter(proc.is_alive, proc.threads_of(self.pid)), self.pid)}"

    def _read_executable(self) -> str:
        try:
            return os.readlink(f"{self._folder}/exe").removesuffix(DELETED)  # noqa: PTH115 - pathlib takes longer
        except OSError:
            return ""


def read_memory_in_helper(address: int, size: int, memory: int) -> Answer:
    """Return bytes of memory that may wait for a file server, which is why this runs in a helper."""
    return Answer(_read_memory(address, size, memory))


def _read_memory(address: int, size: int, memory: int) -> bytes:
    try:
        return os.pread(memory, size, address)
    except (OSError, OverflowError):
        return b""


@cache
def _find_memfd_device() -> str:
    """Return the device number of memory files, which mappings of shared memory have, as /proc/PID/maps prints it."""
    descriptor = os.memfd_create("device", os.MFD_CLOEXEC)
    try:
        return _format_device(os.fstat(descriptor).st_dev)
    finally:
        os.close(descriptor)


def _format_device(device: int) -> str:
    return f"{os.major(device):02x}:{os.minor(device):02x}"
