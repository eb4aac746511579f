"""Finds the code of a Linux kernel that its own unwinder never looks up: the kernel frees it, or runs it at another address.

The unwinder of arm64 kernels, in the series of April and May 2026 (`kernel/unwind/sframe.c`), searches one table for `_stext` to
`_etext` of vmlinux, and one for the lasting text of each module. With CONFIG_SFRAME_VALIDATION, it rejects a table that has a
function outside of that text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sframegen.elf.ranges import merge_ranges, subtract_ranges
from sframegen.elf.records import SHF
from sframegen.elf.symbols import find_addresses_named

if TYPE_CHECKING:
    from sframegen.elf.file import ElfFile
    from sframegen.elf.ranges import Range

MODULE_SECTION = ".gnu.linkonce.this_module"  # holds struct module: in every kernel module, and in no other file
INIT_SECTIONS = ".init"  # names of sections that a kernel or its module loader frees begin so
TEXT = (b"_stext", b"_etext")
# The symbols (start, end) of arm64 kernel code that does not run at the addresses it is linked for: it runs before the MMU is on,
# after hibernation or kexec, on entry from user space, or in the hypervisor.
MOVED_CODE = tuple(
    (b"__%s_start" % name, b"__%s_end" % name)
    for name in (b"idmap_text", b"hibernate_exit_text", b"entry_tramp_text", b"hyp_text", b"hyp_idmap_text", b"relocate_new_kernel")
)


def is_module(elf: ElfFile) -> bool:
    """Return True for a kernel module, which is an object file that a kernel loads."""
    return elf.section(MODULE_SECTION) is not None


def find_kernel_symbols(elf: ElfFile) -> dict[bytes, int]:
    """Return the addresses of the TEXT and MOVED_CODE symbols of a linked kernel (vmlinux); none for other files."""
    # `relocated` is set for the image of an object file, which is not a vmlinux. Of linked files, only kernels have .init.text.
    if elf.relocated is not None or elf.section(".init.text") is None:
        return {}
    addresses = find_addresses_named(elf, [*TEXT, *(name for pair in MOVED_CODE for name in pair)])
    return addresses if addresses.keys() >= set(TEXT) else {}


def find_unwalked_code(elf: ElfFile) -> list[Range]:
    """Return the code that a kernel's unwinder does not look up, in vmlinux or a module with addresses; none in other files."""
    if is_module(elf):
        code = [section for section in elf.sections if section.header.sh_flags & SHF.EXECINSTR]
        freed = [section.header for section in code if section.name.startswith(INIT_SECTIONS)]
        return merge_ranges((header.sh_addr, header.sh_addr + header.sh_size) for header in freed)
    addresses = find_kernel_symbols(elf)
    if not addresses:
        return []
    text = [(addresses[TEXT[0]], addresses[TEXT[1]])]
    moved = [(addresses[start], addresses[end]) for start, end in MOVED_CODE if start in addresses and end in addresses]
    return merge_ranges([*subtract_ranges(elf.executable_ranges(), text), *((start, end) for start, end in moved if start < end)])
