"""Who is called: names of functions in other files by the memory that holds their addresses, and those that never return."""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING

from sframegen.elf import RECORDS, SHT_DYNSYM, SHT_RELA, SYM_SIZE, Sym

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sframegen.elf import ElfFile

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

RELA = struct.Struct("<QQq")


def never_returns(name: str) -> bool:
    return name in NEVER_RETURN or THROWS.match(name) is not None


def imports(elf: ElfFile) -> dict[int, str]:
    """By the address of the pointer that the loader fills: the name of the function or object whose address it gets."""
    return {place: name for place, name, _ in _relocations(elf) if name}


def pointed_at(elf: ElfFile) -> set[int]:
    """What relocations without a symbol make pointers to."""
    return {addend for _, name, addend in _relocations(elf) if not name}


def _relocations(elf: ElfFile) -> Iterator[tuple[int, str, int]]:
    """(address, symbol's name or none, addend) of dynamic relocations."""
    sections = elf.sections
    for section in sections:
        header = section.header
        if header.sh_type != SHT_RELA or not 0 <= header.sh_link < len(sections):
            continue
        symbols = sections[header.sh_link].header
        is_dynamic = symbols.sh_type == SHT_DYNSYM and symbols.sh_link < len(sections)
        if not is_dynamic and header.sh_link:
            continue
        names = bytes(elf.contents(sections[symbols.sh_link])) if is_dynamic else b""
        table = elf.contents(sections[header.sh_link]) if is_dynamic else memoryview(b"")
        raw = elf.contents(section)
        for place, info, addend in RELA.iter_unpack(raw[: len(raw) // RELA.size * RELA.size]):
            number = info >> 32
            name = ""
            if number and (number + 1) * SYM_SIZE <= len(table):
                symbol = Sym(*RECORDS[Sym, elf.byte_order].unpack_from(table, number * SYM_SIZE))
                end = names.find(b"\0", symbol.st_name)
                name = names[symbol.st_name : end].decode(errors="replace") if symbol.st_name < len(names) else ""
            yield place, name, addend
