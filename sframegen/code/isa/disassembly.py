"""Calls capstone for chunks of code, and returns its instruction records as bytes, or its texts."""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from sframegen.program.libraries import import_library

if TYPE_CHECKING:
    from collections.abc import Iterator

Instruction: TypeAlias = tuple[int, int, str, str]  # (address, size, mnemonic, operands), as capstone gives them


class CapstoneRecord(NamedTuple):
    """The layout of capstone's record of an instruction: its size, and the offsets of fields, of which two are bytes of the id."""

    size: int
    id_low_at: int
    id_high_at: int
    length_at: int
    bytes_at: int
    mnemonic_at: int
    operands_at: int


class Disassembler:
    """Capstone for one architecture and mode. `record`: the layout of its records."""

    def __init__(self, architecture: str, mode: str) -> None:
        self._capstone: Any = import_library("capstone", "Cs", "_cs_insn")  # needed only to disassemble
        self._handle: Any = self._capstone.Cs(getattr(self._capstone, architecture), getattr(self._capstone, mode))
        self._handle.skipdata = True  # bytes that are not an instruction become `.byte`
        record = self._capstone._cs_insn  # noqa: SLF001 - its layout, which differs from release to release
        is_little = sys.byteorder == "little"
        # The lowest bytes of two numbers: an id has two bytes that matter, the size of an instruction one.
        id_at, length_at = (field.offset + (0 if is_little else field.size - 1) for field in (record.id, record.size))
        texts_at = (field.offset for field in (record.bytes, record.mnemonic, record.op_str))
        self.record = CapstoneRecord(ctypes.sizeof(record), id_at, id_at + (1 if is_little else -1), length_at, *texts_at)
        self._pointer: Any = ctypes.POINTER(record)
        self._library: Any = self._capstone._cs  # noqa: SLF001 - Cs.disasm makes a Python object for each instruction

    def records(self, code: bytes, address: int) -> bytes:
        """Return the records of all instructions, in order. Bytes at the end that are not a whole instruction are left out."""
        library = self._library
        records = self._pointer()
        count = library.cs_disasm(self._handle.csh, code, len(code), address, 0, ctypes.byref(records))
        if count == 0:
            status = library.cs_errno(self._handle.csh)
            if status:
                raise self._failure(status)
            return b""
        try:
            return ctypes.string_at(records, count * self.record.size)
        finally:
            library.cs_free(records, count)

    def texts(self, code: bytes, address: int) -> Iterator[Instruction]:
        try:
            yield from self._handle.disasm_lite(code, address)
        except self._capstone.CsError as error:
            raise self._failure(error.errno) from error

    def _failure(self, status: int) -> Exception:
        error: Exception = self._capstone.CsError(status)
        return MemoryError() if status == self._capstone.CS_ERR_MEM else error


@cache
def make_disassembler(architecture: str, mode: str) -> Disassembler:
    """Return the disassembler, given the names of capstone's constants."""
    return Disassembler(architecture, mode)
