"""Callees: the names of functions in other files, found through the pointers to them, and the functions that never return."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sframegen.code.isa.machines import machine_of
from sframegen.elf.relocations import dynamic_relocations, packed_addends
from sframegen.elf.symbols import SymbolTable
from sframegen.format.abi import abi_of

if TYPE_CHECKING:
    from sframegen.elf.file import ElfFile

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


def pointed_at(elf: ElfFile) -> set[int]:
    """Return the addresses that relocations make pointers to, by adding the base to an address."""
    found: set[int] = set()
    abi = abi_of(elf)
    kinds = (abi.relative, machine_of(abi).irelative)  # without a symbol, that is all of r_info
    for _, entries in dynamic_relocations(elf):
        found.update(addend for info, addend in zip(entries.info, entries.addend, strict=True) if info in kinds)
    found.update(packed_addends(elf))
    return found
