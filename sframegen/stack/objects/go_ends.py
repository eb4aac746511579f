"""Finds where the stacks of Go programs end, in the bytes of the runtime's code, which need no symbols.

A goroutine's stack ends in runtime.goexit. The runtime itself and C run on stacks of their own: runtime.systemstack,
runtime.asmcgocall and the like load SP from a goroutine's structure. The linker's call frame information ignores that, so a rule
there would read the remains of another function. Functions that load SP again return to a caller on the goroutine's stack;
runtime.mcall does not return. The first thread's own stack ends in the code that the entry address jumps to, and in the runtime's
first function, which aligns SP even if C called it. Other threads begin in runtime.clone, after the system call.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

from sframegen.base.errors import FormatError
from sframegen.elf.code_bytes.machines import MACHINES
from sframegen.elf.ranges import Range, is_within, merge_ranges
from sframegen.stack.names.gopclntab import GoTable, find_go_table
from sframegen.stack.objects.readable_code import readable_code

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sframegen.elf.code_bytes.forms import GoCode
    from sframegen.elf.file import ElfFile
    from sframegen.format.abi import Abi

SECTIONS = (".gopclntab", ".go.buildinfo", ".note.go.buildid")
MAX_SWITCHES = 64  # places in a file that load SP from a goroutine's structure; Go 1.19 has nine
MAX_SWITCH_BYTES = 256  # bytes of code that are read after such a place
MAX_ENTRY_FUNCTION = 1 << 12  # bytes of a function that begins a thread
MAX_OUTERMOST = 8  # functions of the table that begin a stack; Go 1.19 has one, or none
MAX_JUMPS = 4  # that are followed from the entry address on
_GO_TABLES: WeakKeyDictionary[ElfFile, GoTable | None] = WeakKeyDictionary()


class StackEnd(NamedTuple):
    """A range of code [start, end) without a caller on its stack. `other_stack`: the caller is on another stack.

    `is_pushed`: the range is only the byte before an address that is pushed as a return address, although no call ends there.
    """

    start: int
    end: int
    is_pushed: bool = False
    other_stack: bool = False


def find_go_ends(elf: ElfFile, abi: Abi) -> Iterator[StackEnd]:
    """Yield the ranges of code without a caller; none in a file that is no Go program."""
    go_code = go_code_of(elf, abi)
    if go_code is not None:
        yield from _find_ends(elf, abi, go_code)


def go_code_of(elf: ElfFile, abi: Abi) -> GoCode | None:
    """Return the byte patterns of Go's runtime on this machine; None for a file that is no Go program."""
    is_go = abi.byte_order == "little" and any(elf.section(name) for name in SECTIONS)
    return MACHINES[abi.machine].go if is_go else None


def cached_go_table(elf: ElfFile, abi: Abi) -> GoTable | None:
    """Return the Go linker's table of functions; None for a file that is no Go program, and for a damaged table."""
    if elf not in _GO_TABLES:
        _GO_TABLES[elf] = find_go_table(elf) if go_code_of(elf, abi) else None
    return _GO_TABLES[elf]


def _find_ends(elf: ElfFile, abi: Abi, go_code: GoCode) -> Iterator[StackEnd]:
    """Yield the ranges of code without a caller in a Go program."""
    exits: list[StackEnd] = []  # code that looks like goexit
    switches: list[tuple[int, bytes]] = []  # the address after each switch of stacks, and the code there
    for start, data in readable_code(elf):
        code = bytes(data)
        exits += [
            StackEnd(start + match.start(1), start + match.end(1))
            for match in re.finditer(go_code.exit, code, re.DOTALL)
            if (start + match.start(1)) % go_code.alignment == 0
        ]
        offsets = [match.end() for match in re.finditer(go_code.switch, code, re.DOTALL)]
        switches += [(start + offset, code[offset : offset + MAX_SWITCH_BYTES]) for offset in offsets]
        threads = re.finditer(go_code.new_thread, code, re.DOTALL)
        yield from (StackEnd(start + match.start(1), start + match.end(1)) for match in threads)
    if len(exits) == 1:  # if there are more, other code looks like goexit
        yield exits[0]
    last_end = 0
    for address, code in switches[:MAX_SWITCHES]:
        if address > last_end:
            last_end, is_left = _find_other_stack_end(code, address, abi)
            yield StackEnd(address, last_end, other_stack=is_left)
    yield from (StackEnd(*function) for function in _find_entry_functions(elf, abi, go_code))
    table, ranges = cached_go_table(elf, abi), merge_ranges(elf.executable_ranges())
    outermost = table.outermost_ranges() if table else iter(())
    yield from islice((StackEnd(*function) for function in outermost if is_within(function, ranges)), MAX_OUTERMOST)


def _find_other_stack_end(code: bytes, start: int, abi: Abi) -> tuple[int, bool]:
    """Return where the code on the other stack ends, and whether it ends by leaving that stack, not by leaving the function."""
    from sframegen.code.decoding.decoded_code import decode  # noqa: PLC0415 - capstone is slow to import, and few files need it
    from sframegen.code.isa.effects import Flow  # noqa: PLC0415
    from sframegen.code.isa.machines import isa_of  # noqa: PLC0415

    decoded = decode(code, start, isa_of(abi))
    flows = {point.address: point.flow for point in decoded.flow_points()}
    for number in range(len(decoded)):
        address, size, mnemonic, operands = decoded.instruction(number)
        leaves_stack = mnemonic == "mov" and operands.partition(",")[0] in ("rsp", "sp")
        if leaves_stack or flows.get(address) in (Flow.RETURN, Flow.JUMP, Flow.INDIRECT, Flow.STOP):
            return address + size, leaves_stack
    return decoded.end, True


def _find_entry_functions(elf: ElfFile, abi: Abi, go_code: GoCode) -> Iterator[Range]:
    """Yield the code at the entry address, and the functions that it jumps to, one after the other."""
    from sframegen.code.decoding.decoded_code import decode  # noqa: PLC0415 - as above
    from sframegen.code.isa.effects import Flow  # noqa: PLC0415
    from sframegen.code.isa.machines import isa_of  # noqa: PLC0415

    ranges, address = elf.executable_ranges(), elf.header.e_entry
    for _ in range(MAX_JUMPS):
        limit = next((end for start, end in ranges if start <= address < end), None)
        if limit is None:
            return
        try:
            code = bytes(elf.at(address, min(MAX_ENTRY_FUNCTION, limit - address)))
        except FormatError:
            return
        size = code.find(go_code.padding)
        if size <= 0:
            return
        yield address, address + size
        points = list(decode(code[:size], address, isa_of(abi)).flow_points())
        if not points or points[0].flow is not Flow.JUMP or points[0].target is None:
            return
        address = points[0].target
