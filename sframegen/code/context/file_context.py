"""Finds out for the analysis of a function what only the rest of its file shows: callees, whether they return, jump tables."""

from __future__ import annotations

import re
from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from sframegen.base.errors import FormatError
from sframegen.code.context.jump_tables import JumpTableFinder, ReadOnlyMemory
from sframegen.code.context.plt import plt_slot_of
from sframegen.code.decoding.decoded_code import DecodedCode, decode
from sframegen.code.isa.machines import isa_of
from sframegen.elf.relocations import dynamic_relocations
from sframegen.elf.symbols import SymbolTable, read_functions
from sframegen.format.abi import abi_of

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Sequence

    from sframegen.code.context.plt import Plt
    from sframegen.code.isa.effects import Point
    from sframegen.elf.file import ElfFile
    from sframegen.elf.ranges import Range

NEVER_RETURN = {
    "abort", "exit", "_exit", "_Exit", "quick_exit", "__stack_chk_fail", "__stack_chk_fail_local", "__assert_fail", "__assert",
    "__assert_perror_fail", "__fortify_fail", "__chk_fail", "__longjmp_chk", "longjmp", "_longjmp", "siglongjmp", "__libc_fatal",
    "__cxa_throw", "__cxa_rethrow", "__cxa_bad_cast", "__cxa_bad_typeid", "__cxa_throw_bad_array_new_length", "_Unwind_Resume",
    "__cxa_throw_bad_array_length", "__cxa_call_unexpected", "__cxa_call_terminate", "__clang_call_terminate", "__cxa_pure_virtual",
    "__cxa_deleted_virtual", "_ZSt9terminatev", "_ZSt10unexpectedv", "_ZSt17rethrow_exceptionNSt15__exception_ptr13exception_ptrE",
    "pthread_exit", "thrd_exit", "err", "errx", "verr", "verrx", "__libc_start_main", "_ZSt21__glibcxx_assert_failPKciS0_S0_",
    "_ZN4llvm25llvm_unreachable_internalEPKcS1_j", "g_assertion_message", "g_assertion_message_expr", "png_error",
    "png_chunk_error",
}  # fmt: skip
THROWS = re.compile(r"_ZSt\d+__throw_")  # std::__throw_logic_error, and the other functions that throw


def never_returns(name: str) -> bool:
    return name in NEVER_RETURN or THROWS.match(name) is not None


def read_imports(elf: ElfFile, wanted: Container[int | None] | None = None) -> dict[int, str]:
    """Map the addresses of pointers that the loader fills, all or the wanted ones, to the names of what they point to."""
    found = {}
    for table, entries in ((SymbolTable(elf, symbols), entries) for symbols, entries in dynamic_relocations(elf) if symbols):
        for place, info in zip(entries.offset, entries.info, strict=True):
            symbol = info >> 32
            if 0 < symbol < len(table) and (wanted is None or place in wanted):
                found[place] = table.name_bytes(table[symbol].st_name).decode(errors="replace")
    return found


def find_entry_slot(plt: Plt, elf: ElfFile, address: int) -> tuple[int, int | None] | None:
    """Return the start of the PLT entry that contains an address, and the address of the pointer that the entry jumps through."""
    entry = plt.entry_at(address)
    if entry is None:
        return None
    start, end = entry
    try:
        return start, plt_slot_of(decode(elf.at(start, end - start), start, isa_of(plt.abi)))
    except FormatError:  # no segment has the section's code
        return start, None


class Assumptions(NamedTuple):
    """What the analysis may assume if the code alone does not prove it."""

    enters: Callable[[int], bool]  #: true if a function may begin at an address
    continues: Callable[[int, int], bool]
    #: true if control may get from a call to the code after it, or from a jump to a target in its table or in another piece


# (piece, jump, whether code begins there)
TargetsOf: TypeAlias = "Callable[[DecodedCode, Point, Callable[[int], bool]], Sequence[int]]"
Callee: TypeAlias = "int | str | None"  # an address, or the name of a function of another file; None: unknown


class FileContext:
    """The context of all functions of a file. Raises FormatError for an ABI whose instructions are not read.

    `code`: all ranges that are analysed, ascending, without overlaps. `names`: external functions, numbered.
    """

    def __init__(self, elf: ElfFile, code: Sequence[Range], plt: Plt, assumptions: Assumptions | None = None) -> None:
        self.elf = elf
        self.plt = plt
        self.assumptions = assumptions
        self.abi = abi_of(elf)
        self.isa = isa_of(self.abi)
        self.code = code
        self.starts = [start for start, _ in code]
        self.read_only = ReadOnlyMemory(elf)
        self.imports = {**read_imports(elf), **elf.externals.pointers}
        external_names = dict.fromkeys([*self.imports.values(), *elf.externals.stubs.values()])
        self.names = {name: number for number, name in enumerate(external_names)}
        self.defined = {symbol.name: symbol.address for symbol in read_functions(elf)}  # functions of this file
        self.never_returning_by_name = {address for name, address in self.defined.items() if never_returns(name)}
        self.stubs = plt.entry_addresses() | elf.externals.stubs.keys()  # externals: an object's references to other files
        self.stub_targets: dict[int, Callee] = {stub: self._callee_named(name) for stub, name in elf.externals.stubs.items()}
        self.never_returning: set[int] = set()  #: functions that the analysis found
        self.known_returns: dict[int, bool] = {}  #: cached answers of `may_return`, by target or ~slot
        self.known_names: dict[Callee, bool] = {}  #: cached answers of `never_returns_by_name`

    def decode(self, start: int, end: int) -> DecodedCode:
        return decode(self.elf.at(start, end - start), start, self.isa)

    def contains(self, address: int) -> bool:
        return address < self.range_end(address)

    def range_end(self, address: int) -> int:
        """Return the end of the analysed range that contains the address; the address itself if none does."""
        index = bisect_right(self.starts, address) - 1
        return max(address, self.code[index][1]) if index >= 0 else address

    def resolve_callee(self, target: int | None, slot: int | None) -> Callee:
        """Return the callee of a call. `slot`: address of the pointer that a call without a target reads."""
        if target is None:
            return self._callee_named(self.imports.get(slot)) if slot is not None else None
        if target not in self.stubs:
            return target
        if target not in self.stub_targets:
            _, slot = find_entry_slot(self.plt, self.elf, target) or (target, None)
            self.stub_targets[target] = self._callee_named(self.imports.get(slot) if slot else None) or target
        return self.stub_targets[target]

    def add_never_returning(self, never_returning: set[int]) -> None:
        if not never_returning <= self.never_returning:
            self.never_returning |= never_returning
            self.known_returns.clear()

    def may_return(self, target: int | None, slot: int | None) -> bool:
        """Return True if a call to this address, or through this slot, may return. The answer is cached in `known_returns`."""
        callee = self.resolve_callee(target, slot)
        found = callee not in self.never_returning and not self.never_returns_by_name(callee)
        if target is not None:
            self.known_returns[target] = found
        elif slot is not None:
            self.known_returns[~slot] = found
        return found

    def never_returns_by_name(self, callee: Callee) -> bool:
        """Return True if the name alone shows that the callee never returns."""
        if callee not in self.known_names:
            self.known_names[callee] = callee in self.never_returning_by_name or (isinstance(callee, str) and never_returns(callee))
        return self.known_names[callee]

    def continues(self, source: int, target: int) -> bool:
        """Return True if control may get from one address to another, though code alone does not prove it."""
        return self.assumptions is None or self.assumptions.continues(source, target)

    def make_table_finder(self, is_code: Callable[[int], bool]) -> TargetsOf:
        """Return a function that finds the targets of jumps. `is_code`: true for other functions' code that a table may lead to."""
        finders: dict[Range, JumpTableFinder] = {}  # one for each piece, because each limits the cost of its piece

        def find_targets(piece: DecodedCode, point: Point, begins: Callable[[int], bool]) -> Sequence[int]:
            where = piece.start, piece.end
            if where not in finders:
                finders[where] = JumpTableFinder(piece, self.read_only.read)
            found = finders[where].find_targets(point, begins, is_code)
            return [target for target in found if self.continues(point.address, target)]

        return find_targets

    def _callee_named(self, name: str | None) -> Callee:
        """Return the address of a function of that name in this file, else the name."""
        return self.defined.get(name, name) if name else None
