"""Reads the tables that a process writes for code made at run time (docs/registration.md), while the process adds entries.

The process describes a range of code by a chain of tables: a header with the used bytes and the address of the next table, then
entries of `stride` bytes. Each entry has the unwind rule of one piece of code. Entries are only appended, and later marked as
removed, so `JitTables` keeps what it has read: `refresh` reads later entries, and all again if a header contradicts them.
"""

from __future__ import annotations

import signal
import struct
import time
from array import array
from bisect import bisect_right
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sframegen.base.errors import FormatError
from sframegen.elf.records import ADDRESS_SPACE, STRUCT_BYTE_ORDERS
from sframegen.format.model import OUTERMOST, Kind, Match, Rule, Where
from sframegen.program import time_limits
from sframegen.program.signals import ENDING
from sframegen.registry.regions import BudgetError, Memory
from sframegen.registry.structures import CodeJitInfo, JitEntry, JitTable, decode_struct, struct_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from sframegen.format.abi import Abi

# Bits of the info byte; the others are 0.
CFA_SP = 0x01  # CFA = SP + cfa_off, else FP + cfa_off; the same bit as in SFrame
RA_SAVED = 0x02  # RA = *(CFA + ra_off), else it is in its register
FP_SAVED = 0x04  # FP = *(CFA + fp_off), else it is in its register
IS_OUTERMOST = 0x08  # there is no caller: only IS_SIGNAL and REMOVED may be set beside it
IS_SIGNAL = 0x10  # a signal frame: the caller was interrupted at its PC
REMOVED = 0x20  # the code is gone: the only bit that ever changes, from 0 to 1
RA_SIGNED = 0x80  # AArch64; the same bit as in SFrame
ALL_BITS = CFA_SP | RA_SAVED | FP_SAVED | IS_OUTERMOST | IS_SIGNAL | REMOVED | RA_SIGNED

FRE_SIZE = 21  # bytes of an entry (a function row entry, FRE, as in SFrame) without the padding up to the stride
ENTRY_FORMAT = "2I3iB"  # of these bytes, for `struct`: the fields of JitEntry
MAX_STRIDE = 256  # later versions may have longer entries, but not ten times as long
MAX_ENTRIES = 1 << 20  # 25 MB of tables
MAX_RULES = 1 << 16  # different rules; hundreds are usual
ENTRIES_PER_READ = 1 << 16  # entries that are read at a time
ATTEMPTS = 8  # reads of a header, which the process may be writing

MAX_READ = 1 << 21  # entries of all chains, also those kept from before: twice the limit of one chain
TABLE_COST = 32  # entries that take as long to read as a table or a member of a list
EntryFields = tuple[int, int, int, int]  # offsets of CFA, RA and FP, and the info byte without REMOVED
TABLE_SIZE = struct_size(JitTable)


class Budget:
    """Limits how much one reading of all lists and chains of a process may cost, because the process may be hostile."""

    def __init__(
        self, seconds: float | None = None, *, entries: int = MAX_READ, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.left = entries
        self._seconds = time_limits.current.runtime_code if seconds is None else seconds
        self._clock = clock
        self._until = clock() + self._seconds

    def spend(self, entries: int = 0, tables: int = 0) -> None:
        """Pay for entries and tables before they are read. Raises BudgetError for too many, too late, or if a held signal waits."""
        self.count(entries, tables)
        if self._clock() > self._until:
            raise BudgetError(f"reading the tables of the process took longer than {self._seconds:g} seconds")
        if not signal.sigpending().isdisjoint(ENDING):
            raise BudgetError("a signal came while the tables of the process were read")

    def count(self, entries: int, tables: int) -> None:
        """Pay for entries and tables that are kept from an earlier reading. Raises BudgetError if they are too many."""
        cost = entries + TABLE_COST * tables
        if cost > self.left:
            raise BudgetError(f"the process has more than {MAX_READ // TABLE_COST:,} tables or {MAX_READ:,} entries")
        self.left -= cost


def rule_of_entry(entry: JitEntry, abi: Abi) -> Rule | None:
    """Return the unwind rule of an entry; None if its info byte contradicts the offsets or the ABI."""
    info = entry.info
    if info & ~ALL_BITS:
        return None
    if info & IS_OUTERMOST:
        has_rule = info & ~(IS_OUTERMOST | IS_SIGNAL | REMOVED) or entry.cfa_off or entry.ra_off or entry.fp_off
        return None if has_rule else OUTERMOST
    saved_ra, saved_fp, signed = (bool(info & bit) for bit in (RA_SAVED, FP_SAVED, RA_SIGNED))
    if (entry.ra_off and not saved_ra) or (entry.fp_off and not saved_fp):
        return None
    if (abi.fixed_ra_offset and not saved_ra) or (signed and not abi.ra_is_signed):
        return None
    return Rule(
        Where(abi.sp if info & CFA_SP else abi.fp, entry.cfa_off),
        Where(None, entry.ra_off, deref=True) if saved_ra else None,
        Where(None, entry.fp_off, deref=True) if saved_fp else None,
        signed,
    )


@dataclass
class _Table:
    """The part of a table that was read."""

    address: int
    header: JitTable  # as first read; its used_len and next are outdated, and not used
    used: int = 0  # bytes of entries that were read


class JitTables:
    """Reads a chain of tables from another process, and keeps them: only REMOVED bits may change."""

    _damage: FormatError | None  # of the last refresh

    def __init__(self, memory: Memory, info: CodeJitInfo, abi: Abi) -> None:
        self._memory = memory
        self._info = info
        self._abi = abi
        self._budget = Budget()  # of the current reading
        self._reset()

    def __len__(self) -> int:
        """Return the number of entries that were read."""
        return len(self._offsets)

    def look_up(self, pc: int) -> Match | None:
        """Return the row that covered `pc` at the last `refresh`. Raises FormatError if that failed."""
        if self._damage:
            raise self._damage
        offset = pc - self._info.text_start
        number = bisect_right(self._offsets, offset) - 1
        if number < 0 or offset >= self._offsets[number] + self._sizes[number] or number in self._removed:
            return None
        fields, rule = self._fields[number]
        return Match(pc - offset + self._offsets[number], self._sizes[number], Kind(signal=bool(fields[3] & IS_SIGNAL)), 0, rule)

    def refresh(self, budget: Budget | None = None) -> None:
        """Read new entries. If tables contradict earlier reads, read all again from the first, once. Raises FormatError.

        `budget`: of all chains of the process. After a BudgetError, the next call goes on from there.
        """
        self._budget = budget or Budget()
        self._damage = None
        try:
            self._check_budget_for_kept()
            self._read_new_or_restart()
        except FormatError as error:
            if not isinstance(error, BudgetError):
                self._reset()
            self._damage = error
            raise

    def _reset(self) -> None:
        self._tables: list[_Table] = []
        self._opened: set[int] = set()  # addresses of these tables
        self._offsets = array("I")  # ip_off of each entry
        self._sizes = array("I")  # size of each entry
        self._fields: list[tuple[EntryFields, Rule]] = []  # the other fields of each entry, and its rule
        self._rules: dict[EntryFields, tuple[EntryFields, Rule]] = {}  # rules that were read, so that equal ones are kept once
        self._removed: set[int] = set()  # numbers of entries
        self._end = 0  # offset of the end of the last entry's code
        self._damage = None

    def _check_budget_for_kept(self) -> None:
        """Forget what was kept if it exceeds the budget: a hostile process could put other chains before this one."""
        try:
            self._budget.count(len(self), len(self._tables))
        except BudgetError:
            self._reset()
            raise

    def _read_new_or_restart(self) -> None:
        is_first = not self._tables
        try:
            self._read_new()
        except FormatError as error:
            if is_first or isinstance(error, BudgetError):  # nothing kept can be wrong, or the next call goes on from here
                raise
            self._reset()
            self._read_new()

    def _read_new(self) -> None:
        table = self._tables[-1] if self._tables else self._open_table(self._info.unwind_head)
        while True:
            header = self._read_published_header(table)
            self._read_entries(table, header.used_len)
            if not header.next:
                return
            table = self._open_table(header.next)

    def _open_table(self, address: int) -> _Table:
        """Open a table that the chain leads to."""
        if address in self._opened:
            raise _table_error(address, "the chain comes back here", 0)
        self._budget.spend(tables=1)
        header = self._read_header(address)
        if address % 8 or address + TABLE_SIZE + header.reserved_len > ADDRESS_SPACE:
            raise _table_error(address, f"no table has {header.reserved_len} bytes here", 0)
        if not FRE_SIZE <= header.fre_size <= header.fre_stride <= MAX_STRIDE or header.fre_stride % 4:
            raise _table_error(address, f"entries of {header.fre_size} bytes, {header.fre_stride} apart", 24)
        table = _Table(address, header)
        self._tables.append(table)
        self._opened.add(address)
        return table

    def _read_published_header(self, table: _Table) -> JitTable:
        """Return the header with a used_len that was published, and without a `next` that may have come later.

        The header is read twice, because a copy of 8 bytes need not be one load. If the table can still grow, the first used_len
        counts, provided that the second is no less. A table with a next one grows no more: then the second, read later, counts.
        """
        for _ in range(ATTEMPTS):
            first, second = self._read_header(table.address), self._read_header(table.address)
            if any(header._replace(used_len=0, next=0) != table.header._replace(used_len=0, next=0) for header in (first, second)):
                raise _table_error(table.address, "the header has changed", 0)
            header = second if first.next else first
            is_growing = second.used_len >= first.used_len and first.next in (0, second.next)
            if is_growing and table.used <= header.used_len <= header.reserved_len and header.used_len % header.fre_stride == 0:
                return header
        raise _table_error(table.address, f"{header.used_len} bytes are used after {table.used} of {header.reserved_len}", 8)

    def _read_entries(self, table: _Table, used_len: int) -> None:
        """Read the new entries of a table, up to used_len."""
        stride = table.header.fre_stride
        count = (used_len - table.used) // stride
        if len(self._offsets) + count > MAX_ENTRIES:
            raise _table_error(table.address, f"more than {MAX_ENTRIES} entries", 8)
        for at in range(0, count, ENTRIES_PER_READ):
            block_entries = min(ENTRIES_PER_READ, count - at)
            self._budget.spend(entries=block_entries)
            self._append_entries(table, block_entries * stride)

    def _append_entries(self, table: _Table, size: int) -> None:
        stride, fre_size = table.header.fre_stride, table.header.fre_size
        first_offset = TABLE_SIZE + table.used
        entry_struct = struct.Struct(
            f"{STRUCT_BYTE_ORDERS[self._abi.byte_order]}{ENTRY_FORMAT}{fre_size - FRE_SIZE}s{stride - fre_size}x"
        )
        limit, end, rules = self._info.text_end - self._info.text_start, self._end, self._rules
        entries = entry_struct.iter_unpack(self._read(table.address, first_offset, size))
        offsets_in_table = range(first_offset, first_offset + size, stride)
        for at, (code_size, start, *offsets, info, later_fields) in zip(offsets_in_table, entries, strict=True):
            if not end <= start < start + code_size <= limit:
                raise _table_error(table.address, f"code at {start:#x} to {start + code_size:#x} after {end:#x}", at)
            end = start + code_size
            fields = (*offsets, info & ~REMOVED)
            fields_and_rule = rules.get(fields)
            if fields_and_rule is None:
                rule = rule_of_entry(JitEntry(code_size, start, *fields), self._abi)
                if rule is None or len(rules) == MAX_RULES:
                    raise _table_error(table.address, f"no rule has info {info:#04x} and offsets {offsets}", at)
                fields_and_rule = rules[fields] = fields, rule
            if later_fields.strip(b"\0"):  # of a later version
                raise _table_error(table.address, f"no rule has {later_fields.hex()} after the info byte", at)
            if info & REMOVED:
                self._removed.add(len(self._offsets))
            self._offsets.append(start)
            self._sizes.append(code_size)
            self._fields.append(fields_and_rule)
        self._end = end
        table.used += size

    def _read_header(self, table: int) -> JitTable:
        return decode_struct(JitTable, self._read(table, 0, TABLE_SIZE), self._abi.byte_order)

    def _read(self, table: int, at: int, size: int) -> bytes:
        raw = self._memory.read(table + at, size) if size and table + at + size <= ADDRESS_SPACE else b""
        if len(raw) != size:
            raise _table_error(table, f"{size} bytes cannot be read", at)
        return raw


def refresh_chains(chains: Iterable[JitTables], budget: Budget) -> None:
    """Read new entries of all chains of a process."""
    for tables in chains:
        with suppress(FormatError):  # it is reported when the code is looked up
            tables.refresh(budget)


def _table_error(table: int, message: str, at: int) -> FormatError:
    return FormatError(message, f"JIT table at {table:#x}", at)
