"""Code of a Linux kernel that its own unwinder never looks up, because it is freed after use or runs at another address.

The unwinder of arm64 kernels, in the series of April and May 2026 (`kernel/unwind/sframe.c`), searches one table for `_stext` to
`_etext` of vmlinux, and one for the lasting text of each module. With CONFIG_SFRAME_VALIDATION, it rejects a table that has a
function outside of that text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sframegen.elf.ranges import merge_ranges, subtract_ranges
from sframegen.elf.records import SHF
from sframegen.elf.symbols import addresses_named

if TYPE_CHECKING:
    from sframegen.elf.file import ElfFile
    from sframegen.elf.ranges import Range

MODULE_SECTION = ".gnu.linkonce.this_module"  # holds struct module: in every kernel module, and in no other file
INIT_SECTIONS = ".init"  # the first part of the names of sections that a kernel or its module loader frees
TEXT = (b"_stext", b"_etext")
# Symbols around code of an arm64 kernel that runs at other addresses than it is linked for: as the names say, before the MMU is
# on, after hibernation or kexec, on entry from user space, and in the hypervisor.
ELSEWHERE = tuple(
    (b"__%s_start" % name, b"__%s_end" % name)
    for name in (b"idmap_text", b"hibernate_exit_text", b"entry_tramp_text", b"hyp_text", b"hyp_idmap_text", b"relocate_new_kernel")
)


def is_module(elf: ElfFile) -> bool:
    """Return True for a kernel module, an object that a kernel loads."""
    return elf.section(MODULE_SECTION) is not None


def kernel_symbols(elf: ElfFile) -> dict[bytes, int]:
    """Return the addresses of the symbols of TEXT and ELSEWHERE of a linked kernel, vmlinux; none for other files."""
    if elf.relocated is not None or elf.section(".init.text") is None:
        return {}
    found = addresses_named(elf, [*TEXT, *(name for pair in ELSEWHERE for name in pair)])
    return found if found.keys() >= set(TEXT) else {}


def unwalked_code(elf: ElfFile) -> list[Range]:
    """Return the code of a kernel, or of a module that is laid out, that the unwinder does not look up; none for other files."""
    if is_module(elf):
        code = [section for section in elf.sections if section.header.sh_flags & SHF.EXECINSTR]
        freed = [section.header for section in code if section.name.startswith(INIT_SECTIONS)]
        return merge_ranges((header.sh_addr, header.sh_addr + header.sh_size) for header in freed)
    found = kernel_symbols(elf)
    if not found:
        return []
    text = [(found[TEXT[0]], found[TEXT[1]])]
    elsewhere = [(found[start], found[end]) for start, end in ELSEWHERE if start in found and end in found]
    return merge_ranges([*subtract_ranges(elf.executable_ranges(), text), *(one for one in elsewhere if one[0] < one[1])])
