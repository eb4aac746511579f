"""Writes tables of code made at run time, as sframegen_jit.h does in C, and their entries, as a compiler does."""

from __future__ import annotations

from bisect import bisect_right
from mmap import mmap

from sframegen.elf.records import ByteOrder
from sframegen.format.abi import Abi
from sframegen.format.model import Rule
from sframegen.registry.jit_tables import (
    CFA_SP,
    FP_SAVED,
    FRE_SIZE,
    IS_OUTERMOST,
    IS_SIGNAL,
    RA_SAVED,
    RA_SIGNED,
    REMOVED,
    TABLE_SIZE,
    rule_of_entry,
)
from sframegen.registry.structures import RECORDS, JitEntry, JitTable, encode, struct_size

STRIDE = struct_size(JitEntry)
USED_LEN_AT, NEXT_AT, INFO_AT = 8, 16, FRE_SIZE - 1


def entry_of(size: int, ip_off: int, rule: Rule, abi: Abi, *, signal: bool = False) -> JitEntry:
    """Return the entry for a rule. Raises ValueError for a rule that entries cannot express."""
    info = IS_SIGNAL * signal | RA_SAVED * (rule.ra is not None) | FP_SAVED * (rule.fp is not None) | RA_SIGNED * rule.ra_signed
    info |= IS_OUTERMOST if rule.cfa is None else CFA_SP * (rule.cfa.register == abi.sp)
    entry = JitEntry(size, ip_off, *(where.offset if where else 0 for where in rule[:3]), info)  # type: ignore[call-arg]
    if rule_of_entry(entry, abi) != rule:
        raise ValueError(f"an entry of a table cannot say {rule}")
    return entry


class JitWriter:
    """One table, in a writable buffer: the memory at `address`, a multiple of 8. The size of the buffer limits the entries.

    Stores become visible in order where the machine keeps stores in order, as x86-64 does; for others there is the C header.
    """

    def __init__(self, buffer: bytearray | memoryview | mmap, address: int, byte_order: ByteOrder = "little") -> None:
        self._view = memoryview(buffer).cast("B")
        self.address = address
        if address % 8 or len(self._view) < TABLE_SIZE + STRIDE:
            raise ValueError(f"no room for a table in {len(self._view)} bytes at {address:#x}")
        self._byte_order = byte_order
        self._code = RECORDS[JitEntry, byte_order]
        self.capacity = (len(self._view) - TABLE_SIZE) // STRIDE
        self._offsets: list[int] = []
        self._end = 0
        self._next: JitWriter | None = None
        self._view[:TABLE_SIZE] = encode(JitTable(self.capacity * STRIDE, 0, 0, STRIDE, FRE_SIZE), byte_order)

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def is_full(self) -> bool:
        return len(self) == self.capacity

    def append(self, entry: JitEntry) -> None:
        """Publish an entry for code after all code of the table. Raises ValueError if it is not, or there is no room."""
        if self.is_full or self._next is not None:
            raise ValueError("the table is full, or has a next one")
        if not self._end <= entry.ip_off < entry.ip_off + entry.size < 1 << 32:
            raise ValueError(f"{entry.size} bytes of code at {entry.ip_off:#x} do not come after {self._end:#x}")
        at = TABLE_SIZE + len(self) * STRIDE
        self._view[at : at + STRIDE] = self._code.pack(*entry)
        self._offsets.append(entry.ip_off)
        self._end = entry.ip_off + entry.size
        self._publish(USED_LEN_AT, len(self) * STRIDE)

    def extend(self, table: JitWriter) -> None:
        if self._next is not None or len(table):
            raise ValueError("the table has a next one, or the next one has entries")
        table._end = self._end
        self._next = table
        self._publish(NEXT_AT, table.address)

    def covers(self, ip_off: int) -> bool:
        number = bisect_right(self._offsets, ip_off) - 1
        return number >= 0 and ip_off < self._offsets[number] + self._entry(number).size

    def remove(self, ip_off: int) -> None:
        """Mark the code of the entry at an offset as removed, before it goes. Raises ValueError without an entry."""
        if not self.covers(ip_off):
            raise ValueError(f"no entry covers {ip_off:#x}")
        number = bisect_right(self._offsets, ip_off) - 1
        self._view[TABLE_SIZE + number * STRIDE + INFO_AT] = self._entry(number).info | REMOVED

    def _entry(self, number: int) -> JitEntry:
        return JitEntry(*self._code.unpack_from(self._view, TABLE_SIZE + number * STRIDE))

    def _publish(self, at: int, value: int) -> None:
        self._view[at : at + 8] = value.to_bytes(8, self._byte_order)
