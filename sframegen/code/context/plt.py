"""Finds the entries of the procedure linkage table (PLT) by the instructions that linkers write, and gives them rows."""

from __future__ import annotations

from bisect import bisect_right
from itertools import islice

from sframegen.base.quick_typing import TYPE_CHECKING, NamedTuple
from sframegen.code.isa.effects import Flow
from sframegen.code.isa.machines import machine_of
from sframegen.elf.ranges import START
from sframegen.elf.records import ADDRESS_SPACE, PLT_SECTIONS, SHF, SHT
from sframegen.format.model import FunctionTable, Kind, Rule, Where

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sframegen.code.decoding.decoded_code import DecodedCode
    from sframegen.code.isa.instruction_set import Stub
    from sframegen.elf.file import ElfFile
    from sframegen.elf.ranges import Range
    from sframegen.format.abi import Abi

MAX_SECTION_SIZE = 1 << 22  # bytes of a section: 262,144 entries, whose addresses take 0.2 GB and a second


class StubRun(NamedTuple):
    """A run of `length` adjacent stubs of one form."""

    start: int
    length: int
    stub: Stub


class Plt(NamedTuple):
    """The PLT of a linked file: ascending runs without overlaps. Code of an unknown form has no run."""

    abi: Abi
    runs: list[StubRun]

    def entry_addresses(self) -> set[int]:
        return {run.start + number * run.stub.size for run in self.runs for number in range(run.length)}

    def entry_at(self, address: int) -> Range | None:
        """Return the (start, end) of the entry that contains an address."""
        index = bisect_right(self.runs, address, key=START) - 1
        if index < 0 or address >= run_end(self.runs[index]):
            return None
        size = self.runs[index].stub.size
        start = address - (address - self.runs[index].start) % size
        return start, start + size

    def make_functions(self, within: list[Range] | None = None) -> FunctionTable:
        """Return the functions that a linker adds for the PLT, at absolute addresses, ascending.

        As in GNU ld, the first entry is a function, and all others are one function, whose rows repeat with the size of an entry.
        `within`: only stubs that lie in these ranges, which ascend without overlaps.
        """
        table = FunctionTable()
        ra = Where(None, self.abi.fixed_ra_offset, deref=True) if self.abi.fixed_ra_offset else None
        kinds: dict[Kind, int] = {}
        rules: dict[Rule, int] = {}
        for runs in _group_same_rows(_clip_runs(self.runs, within)):
            start, end = runs[0].start, run_end(runs[-1])
            stub = runs[0].stub
            kind = Kind(rep_size=stub.size, mask=True) if stub.repeats and len(runs) == 1 else Kind()
            rows = [
                (offset, rules.setdefault(Rule(Where(self.abi.sp, above_sp), ra), len(rules))) for offset, above_sp in stub.rows
            ]
            table.append(start, end - start, kinds.setdefault(kind, len(kinds)), rows)
        table.kinds, table.rules = list(kinds), list(rules)
        return table


def find_plt(elf: ElfFile, abi: Abi) -> Plt:
    """Find the PLT in one pass over the sections; of sections that overlap, only the first counts."""
    runs: list[StubRun] = []
    for run in sorted(_find_runs(elf, abi), key=lambda run: run.start):
        if run.stub.rows and (not runs or run.start >= run_end(runs[-1])):
            runs.append(run)
    return Plt(abi, runs)


def plt_slot_of(piece: DecodedCode) -> int | None:
    """Return the address of the pointer that a PLT entry jumps through."""
    jump = next(piece.flow_points(), None)
    if jump is None or jump.flow is not Flow.INDIRECT:
        return None
    find_plt_slot = piece.frames.isa.find_plt_slot
    if jump.slot is not None or find_plt_slot is None:
        return jump.slot
    return find_plt_slot(map(piece.instruction, range(len(piece))), jump.address)


def run_end(run: StubRun) -> int:
    return run.start + run.length * run.stub.size


def _find_runs(elf: ElfFile, abi: Abi) -> Iterator[StubRun]:
    for name in PLT_SECTIONS:
        section = elf.section(name)
        if section is None or section.header.sh_type != SHT.PROGBITS or not section.header.sh_flags & SHF.EXECINSTR:
            continue
        code = elf.contents(section)
        address = section.header.sh_addr
        if len(code) > MAX_SECTION_SIZE or address + len(code) > ADDRESS_SPACE:
            raise elf.error(f"{len(code):#x} bytes at address {address:#x}: no PLT", name)
        forms = machine_of(abi).plt  # imported only here: a merge of objects, without PLT, takes less time than the import
        at = 0
        while at < len(code):
            stubs = forms.others if at else (*forms.first, *forms.others)
            found = next(((stub, end) for stub in stubs if (end := _match_stubs(stub, code, at)) > at), None)
            if found is None:
                break
            stub, end = found
            yield StubRun(address + at, (end - at) // stub.size, stub)
            at = end


def _match_stubs(stub: Stub, code: memoryview, at: int) -> int:
    """Return the end of the stubs that begin at offset `at`; `at` if there are none. GNU ld leaves unused entries zero."""
    unused = bytes(stub.size)
    used, end = False, at
    while (matches := stub.code.match(code, end) is not None) or (stub.repeats and code[end : end + stub.size] == unused):
        used |= matches
        end += stub.size
        if not stub.repeats:
            break
    return end if used else at


def _clip_runs(runs: list[StubRun], within: list[Range] | None) -> Iterator[StubRun]:
    """Yield the parts of the runs whose stubs lie entirely in the ranges."""
    if within is None:
        yield from runs
        return
    range_index = 0
    for start, length, stub in runs:
        end = start + length * stub.size
        while range_index < len(within) and within[range_index][1] <= start:
            range_index += 1
        for low, high in islice(within, range_index, None):
            if low >= end:
                break
            first = max(0, -(-(low - start) // stub.size))  # rounded up
            last = min(length, (high - start) // stub.size)
            if first < last:
                yield StubRun(start + first * stub.size, last - first, stub)


def _group_same_rows(runs: Iterator[StubRun]) -> Iterator[list[StubRun]]:
    """Group adjacent runs of different forms whose stubs have the same single row."""
    group: list[StubRun] = []
    for run in runs:
        if group and not _can_join(group[-1], run):
            yield group
            group = []
        group.append(run)
    if group:
        yield group


def _can_join(run: StubRun, following: StubRun) -> bool:
    stubs = run.stub, following.stub
    have_same_row = run.stub.rows == following.stub.rows and len(run.stub.rows) == 1
    return have_same_row and run_end(run) == following.start and stubs[0] is not stubs[1] and all(stub.repeats for stub in stubs)
