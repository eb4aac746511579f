"""The protocol of a process at one moment: stopped or copied."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from sframegen.base.errors import SframegenError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sframegen.elf.file import ElfFile
    from sframegen.format.abi import Abi
    from sframegen.stack.abi.registers import ThreadRegisters
    from sframegen.stack.snapshot.mappings import Mapping, Mappings
    from sframegen.stack.snapshot.memory import MemoryReader


class StackError(SframegenError):
    """Something cannot be traced: one line that says why, and what to do."""


class Snapshot(Protocol):
    """A process at one moment."""

    pid: int
    abi: Abi
    executable: str  # path of the program, for people
    mappings: Mappings

    @property
    def memory(self) -> MemoryReader:
        """The memory at that moment."""

    def threads(self) -> Sequence[int]:
        """Return the ids of its threads, the first thread first."""

    def thread_name(self, tid: int) -> str:
        """Return the kernel's name of a thread; empty if unknown."""

    def idle(self, tid: int) -> bool:
        """Return True for a thread that waited."""

    def registers(self, tid: int) -> ThreadRegisters:
        """Return the registers of a thread. Raises StackError if they cannot be read."""

    def file_of(self, mapping: Mapping) -> ElfFile | None:
        """Return the file of a mapping; None if there is none, or it cannot be opened."""
