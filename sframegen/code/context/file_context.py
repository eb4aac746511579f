"""Facts of a file from outside each function: callees, by address or name, functions that never return, jump tables."""

from __future__ import annotations

import re
from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from sframegen.base.errors import FormatError
from sframegen.code.context.jump_tables import ReadOnly, Tables
from sframegen.code.context.plt import LONGEST, plt_slot_of
from sframegen.code.decoding.decoded_code import DecodedCode, decode
from sframegen.code.isa.machines import isa_of
from sframegen.elf.relocations import dynamic_relocations
from sframegen.elf.symbols import SymbolTable, read_functions
from sframegen.format.abi import abi_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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
THROWS = re.compile(r"_ZSt\d+__throw_")  # std::__throw_logic_error and its kind

MAX_NAME = 1 << 12  # bytes of a name


def never_returns(name: str) -> bool:
    return name in NEVER_RETURN or THROWS.match(name) is not None


def imports(elf: ElfFile) -> dict[int, str]:
    """Return, for the address of each pointer that the loader fills, the name of the function or object that it points to."""
    found = {}
    for symbols, entries in dynamic_relocations(elf):
        if symbols is None:
            continue
        table = SymbolTable(elf, symbols)
        for place, info in zip(entries.offset, entries.info, strict=True):
            number = info >> 32
            if 0 < number < len(table):
                start = table[number].st_name
                end = table.names.find(b"\0", start, start + MAX_NAME)
                if start < end:
                    found[place] = table.names[start:end].decode(errors="replace")
    return found


class Assumptions(NamedTuple):
    """What the analysis may assume where code alone proves nothing."""

    enters: Callable[[int], bool]  #: true if a function may begin at an address
    continues: Callable[[int, int], bool]
    #: true if control may get from a call to the code after it, or from a jump to a target, in its table or in another piece


TargetsOf: TypeAlias = (
    "Callable[[DecodedCode, Point, Callable[[int], bool]], Sequence[int]]"  # (piece, jump, whether code begins there)
)
Callee: TypeAlias = "int | str | None"  # an address, or only a name; None: unknown


class FileContext:
    """The context of all functions of a file. Raises FormatError for an ABI whose instructions are not read.

    `code`: all ranges that are analysed, ascending, without overlaps; `stubs`: the entries of the PLT.
    """

    def __init__(self, elf: ElfFile, code: Sequence[Range], stubs: set[int], assumptions: Assumptions | None = None) -> None:
        self.elf = elf
        self.assumptions = assumptions
        self.abi = abi_of(elf)
        self.isa = isa_of(self.abi)
        self.code = code
        self.starts = [start for start, _ in code]
        self.read_only = ReadOnly(elf)
        self.imports = {**imports(elf), **elf.externals.pointers}
        of_others = dict.fromkeys([*self.imports.values(), *elf.externals.stubs.values()])
        self.names = {name: number for number, name in enumerate(of_others)}
        self.defined = {symbol.name: symbol.address for symbol in read_functions(elf)}
        self.named = {address for name, address in self.defined.items() if never_returns(name)}
        self.stubs = stubs | elf.externals.stubs.keys()
        self.stub_targets: dict[int, Callee] = {address: self._named(name) for address, name in elf.externals.stubs.items()}
        self.never_return: set[int] = set()  #: functions that the analysis found
        self.answers: dict[int, bool] = {}  #: cached answers of `returns`, by target or ~slot
        self.by_name: dict[Callee, bool] = {}  #: cached answers of `known_by_name`

    def decode(self, start: int, end: int) -> DecodedCode:
        return decode(self.elf.at(start, end - start), start, self.isa)

    def holds(self, address: int) -> bool:
        return address < self.limit(address)

    def limit(self, address: int) -> int:
        """Return the end of the analysed code that holds the address; the address itself if none does."""
        number = bisect_right(self.starts, address) - 1
        return max(address, self.code[number][1]) if number >= 0 else address

    def callee(self, target: int | None, slot: int | None) -> Callee:
        """Return the callee; `slot`: the memory that a call without target reads the address from."""
        if target is None:
            return self._named(self.imports.get(slot)) if slot is not None else None
        if target in self.stubs:
            if target not in self.stub_targets:
                self.stub_targets[target] = self._stub(target)
            return self.stub_targets[target]
        return target

    def learn(self, never_return: set[int]) -> None:
        """Add functions that never return."""
        if not never_return <= self.never_return:
            self.never_return |= never_return
            self.answers.clear()

    def returns(self, target: int | None, slot: int | None) -> bool:
        """Return whether a call to this address, or through this slot, comes back; keeps the answer in `answers`."""
        callee = self.callee(target, slot)
        found = callee not in self.never_return and not self.known_by_name(callee)
        if target is not None:
            self.answers[target] = found
        elif slot is not None:
            self.answers[~slot] = found
        return found

    def known_by_name(self, callee: Callee) -> bool:
        """Return True if the name alone shows that the callee never returns."""
        if callee not in self.by_name:
            self.by_name[callee] = callee in self.named or (isinstance(callee, str) and never_returns(callee))
        return self.by_name[callee]

    def continues(self, source: int, target: int) -> bool:
        """Return True if control may get from one address to another, though code alone does not prove it."""
        return self.assumptions is None or self.assumptions.continues(source, target)

    def tables(self, within: Callable[[int], bool]) -> TargetsOf:
        """Return the function that finds jump tables. `within`: true if a table may lead to an address outside the function."""
        tables: dict[Range, Tables] = {}  # by piece, as their cost is limited by piece

        def targets(piece: DecodedCode, point: Point, begins: Callable[[int], bool]) -> Sequence[int]:
            where = piece.start, piece.end
            if where not in tables:
                tables[where] = Tables(piece, self.read_only.read)
            found = tables[where].targets(point, begins, within)
            return [target for target in found if self.continues(point.address, target)]

        return targets

    def _stub(self, target: int) -> Callee:
        for size in (LONGEST, 16, 8):
            try:
                slot = plt_slot_of(self.decode(target, target + size))
            except FormatError:
                continue
            if slot is not None:
                return self._named(self.imports.get(slot)) or target
        return target

    def _named(self, name: str | None) -> Callee:
        return self.defined.get(name, name) if name else None
