"""Who is called: names of functions in other files by the memory that holds their addresses, and those that never return."""

from __future__ import annotations

import re
import sys
from array import array
from typing import TYPE_CHECKING

from cfi.errors import FormatError
from sframegen.code.isa.machines import machine_of
from sframegen.elf.records import RECORDS, SHT_DYNSYM, SHT_RELA, SYM_SIZE, Sym
from sframegen.format.abi import abi_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sframegen.elf.file import ElfFile, Section

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

SHT_RELR = 19
MAX_NAME = 1 << 12  # bytes of a name


def never_returns(name: str) -> bool:
    return name in NEVER_RETURN or THROWS.match(name) is not None


def imports(elf: ElfFile) -> dict[int, str]:
    """By the address of the pointer that the loader fills: the name of the function or object whose address it gets."""
    found = {}
    for symbols, entries in _relocations(elf):
        if symbols is None:
            continue
        table = elf.contents(symbols)
        names = bytes(elf.contents(elf.sections[symbols.header.sh_link])) if symbols.header.sh_link < len(elf.sections) else b""
        for place, info in zip(entries[::3], entries[1::3], strict=True):
            number = info >> 32
            if number and (number + 1) * SYM_SIZE <= len(table):
                start = Sym(*RECORDS[Sym, elf.byte_order].unpack_from(table, number * SYM_SIZE)).st_name
                end = names.find(b"\0", start, start + MAX_NAME)
                if start < end:
                    found[place] = names[start:end].decode(errors="replace")
    return found


def pointed_at(elf: ElfFile) -> set[int]:
    """What relocations make pointers to that add the base to an address."""
    found: set[int] = set()
    machine = machine_of(abi_of(elf))
    kinds = (machine.relative, machine.irelative)  # without a symbol, that is all of r_info
    for _, entries in _relocations(elf):
        found.update(addend for info, addend in zip(entries[1::3], entries[2::3], strict=True) if info in kinds)
    packed = next((section for section in elf.sections if section.header.sh_type == SHT_RELR), None)
    if packed is not None:
        found.update(_in_place(elf, _words(elf, packed)))
    return found


def _relocations(elf: ElfFile) -> Iterator[tuple[Section | None, array[int]]]:
    """(section of symbols, three words for each relocation) of sections of dynamic relocations, no more bytes than the file has."""
    left = len(elf.data)
    for section in elf.sections:
        header = section.header
        if header.sh_type != SHT_RELA or header.sh_link >= len(elf.sections) or header.sh_size > left:
            continue
        left -= header.sh_size
        symbols = elf.sections[header.sh_link] if header.sh_link else None
        if symbols is None or symbols.header.sh_type == SHT_DYNSYM:
            entries = _words(elf, section)
            yield symbols, entries[: len(entries) // 3 * 3]


def _words(elf: ElfFile, section: Section) -> array[int]:
    raw = elf.contents(section)
    words = array("Q", bytes(raw[: len(raw) // 8 * 8]))
    if elf.byte_order != sys.byteorder:
        words.byteswap()
    return words


def _in_place(elf: ElfFile, packed: array[int]) -> Iterator[int]:
    """The words at the places that relative relocations in a table of addresses and bitmaps change."""
    here = 0
    for word in packed:
        if word & 1:
            places = [here + 8 * bit for bit in range(63) if word >> bit + 1 & 1]
            here += 63 * 8
        else:
            places = [word]
            here = word + 8
        for place in places:
            try:
                yield int.from_bytes(elf.at(place, 8), elf.byte_order)
            except FormatError:
                continue
