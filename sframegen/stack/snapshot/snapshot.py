"""What a tracer is given: a process at one moment, stopped or as a core file has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from cfi.errors import SframegenError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sframegen.elf.file import ElfFile
    from sframegen.format.abi import Abi
    from sframegen.stack.abi.registers import Registers
    from sframegen.stack.snapshot.mappings import Mapping, Mappings
    from sframegen.stack.snapshot.memory import Reader


class StackError(SframegenError):
    """Something cannot be traced: one line that says why, and what to do."""


class Snapshot(Protocol):
    """A process at one moment."""

    pid: int
    abi: Abi
    executable: str  # path of the program, for people
    mappings: Mappings

    @property
    def memory(self) -> Reader:
        """Its memory at that moment."""

    def threads(self) -> Sequence[int]:
        """Ids of its threads, the first one's first."""

    def thread_name(self, tid: int) -> str:
        """What the kernel calls it; empty where that is not known."""

    def idle(self, tid: int) -> bool | None:
        """True for a thread that waited; None where that is not known."""

    def registers(self, tid: int) -> Registers:
        """Raises StackError where they cannot be had."""

    def file_of(self, mapping: Mapping) -> ElfFile | None:
        """The file that a mapping is of, read from its beginning; None where there is none, or none to be had."""
