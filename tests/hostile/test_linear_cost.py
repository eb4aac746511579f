"""Files made to be costly: four times the size costs about four times the work and memory, counted, not timed.

Each repeats something that is cheap once, over bytes that all of them share. Of compiled modules only the calls are counted.
"""

from __future__ import annotations

import gc
import os
import struct
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import pytest

import cfi as cfi_package
import linker
import sframegen
from linker.inject import undo_record
from sframegen.elf.file import ElfFile
from sframegen.elf.records import ET, PF, PT, RECORDS, SHF, SHT, Ehdr, Phdr, Shdr, Sym
from sframegen.elf.symbols import FunctionColumns
from sframegen.format.abi import AMD64
from sframegen.format.layouts import HEADER_CODE, MAGIC
from sframegen.profile.tables.make_table import make_table
from sframegen.stack.objects.readable_code import readable_code
from tests.fuzz.seeds import archive
from tests.fuzz.targets import add, cfi, decode, elf, inject, instructions, lookup, merge, objects, remove, synthesize
from tests.support.inputs.cfi_writer import Frames, sleb, uleb

GROWTH = 4
SLACK = 1.5  # what is paid once, tables that double, logarithms
FOLDERS = tuple(str(Path(package.__file__ or "").parent) for package in (cfi_package, linker, sframegen))


def work(run: Callable[[bytes], None], data: bytes) -> tuple[int, int]:
    """Lines executed, and the most bytes that were allocated at a time."""
    lines = 0

    def line(_frame: FrameType, event: str, _: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return line

    gc.collect()
    tracemalloc.start()
    previous = sys.gettrace()
    sys.settrace(lambda frame, *_: line if frame.f_code.co_filename.startswith(FOLDERS) else None)
    try:
        run(data)
    finally:
        sys.settrace(previous)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return lines, peak


# -- ELF files


def elf_file(body: bytes, sections: list[Shdr], segments: Sequence[Phdr] = (), kind: int = ET.DYN) -> bytes:
    """Program headers, `body` at file offset 4096, section headers: the first section is the null one."""
    table = b"".join(RECORDS[Phdr, "little"].pack(*segment) for segment in segments)
    front = table.ljust(4096 - 64, b"\0") + body
    end = 64 + len(front)
    ident = b"\x7fELF\2\1\1" + bytes(9)
    count = len(sections) + 1
    header = Ehdr(ident, kind, AMD64.machine, 1, 0, 64 if segments else 0, end, 0, 64, 56, len(segments), 64, count, 1)
    rows = [Shdr(*[0] * 10), *sections]
    return RECORDS[Ehdr, "little"].pack(*header) + front + b"".join(RECORDS[Shdr, "little"].pack(*row) for row in rows)


def named_file(body: bytes, *sections: Shdr, segments: Sequence[Phdr] = (), kind: int = ET.DYN) -> bytes:
    """The first section has the names of the others, at the body's end."""
    names = section(SHT.STRTAB, BODY + len(body), len(NAMES))
    return elf_file(body + NAMES, [names, *sections], segments, kind)


def section(kind: int, offset: int, size: int, flags: int = 0, **fields: int) -> Shdr:
    return Shdr(0, kind, flags, offset if flags else 0, offset, size, 0, 0, 8, 0)._replace(**fields)


BODY = 4096  # where it begins
NAMES = b"\0.text\0.eh_frame\0.sframe\0"
TEXT, EH_FRAME, SFRAME = (NAMES.index(name) for name in (b".text", b".eh_frame", b".sframe"))


def many(count: int, body: bytes, *sections: Shdr, segments: Sequence[Phdr] = ()) -> bytes:
    """`count` times these sections."""
    return named_file(body, *[one for one in sections for _ in range(count)], segments=segments)


def load(offset: int, size: int, flags: int = PF.R) -> Phdr:
    return Phdr(PT.LOAD, flags, offset, offset, offset, size, size, 0x1000)


NOTE = struct.pack("<III", 4, 0, 1) + b"GNU\0"
EMPTY_SECTION = struct.pack("<HBBBbbBIIIII", MAGIC, 3, 0, 3, 0, -8, 0, 0, 0, 0, 0, 0)


def note_sections(count: int) -> bytes:
    notes = [section(SHT.NOTE, BODY + 16 * n, 16 * (2 * count - n), SHF.ALLOC) for n in range(count)]
    return many(1, NOTE * 2 * count, *notes)


def note_sections_of_a_linked_file(count: int) -> bytes:
    return many(count, NOTE * count, section(SHT.NOTE, BODY, 16 * count, SHF.ALLOC), segments=[load(0, BODY + 16 * count)])


def note_segments(count: int) -> bytes:
    notes = [Phdr(PT.NOTE, PF.R, BODY + 16 * n, 0, 0, 16 * (2 * count - n), 0, 4) for n in range(min(count, 72))]
    return many(1, NOTE * 2 * count, section(SHT.PROGBITS, BODY, 16), segments=notes)


def endless_names(count: int) -> bytes:
    body = b"x" * 64 * count
    names = section(SHT.STRTAB, BODY, len(body))
    return elf_file(body, [names, *[section(SHT.PROGBITS, BODY, 1, sh_name=n) for n in range(count)]])


def symbol_tables(count: int) -> bytes:
    """Of one that covers all symbols, this many: each an anchor for functions that could be joined."""
    frames = Frames(address=BODY)
    cie = frames.cie()
    for n in range(2):
        frames.plain_fde(cie, 0x1000 + BODY + 32 * n, 30)
    body = bytes(frames.data).ljust(0x1000, b"\0") + b"\x90" * 64
    body += RECORDS[Sym, "little"].pack(0, 2, 0, 1, 0x2000, 8) * count
    at, size = BODY + 0x1040, 24 * count
    text = section(SHT.PROGBITS, BODY + 0x1000, 64, SHF.ALLOC | SHF.EXECINSTR, sh_name=TEXT)
    cfi = section(SHT.PROGBITS, BODY, len(frames.data), SHF.ALLOC, sh_name=EH_FRAME)
    tables = [section(SHT.SYMTAB, at, size), section(SHT.DYNSYM, at, size)] * count
    return named_file(body, text, cfi, *tables, segments=[load(0, BODY + len(body), PF.R | PF.X)])


# -- code


def code_file(code: bytes, *sections: Shdr, data: bytes = b"", segments: Sequence[Phdr] = ()) -> bytes:
    """`code` of which nothing says what it is, and `data` after it."""
    text = section(SHT.PROGBITS, BODY, len(code), SHF.ALLOC | SHF.EXECINSTR, sh_name=TEXT)
    return named_file(code + data, text, *sections, segments=[load(BODY, len(code), PF.R | PF.X), *segments])


def all_branch_to_the_first(count: int) -> bytes:
    return code_file(b"".join(b"\x53\x0f\x84" + (-7 * n - 7).to_bytes(4, "little", signed=True) for n in range(count)))


LEAVES = b"\x85\xff\x74\x01\xc3\xe9\x0b\0\0\0"


def functions_in_one_another(count: int) -> bytes:
    """Each goes on in the middle of the one before, with another frame."""
    one = b"\x53\x31\xc0\xe8\0\0\0\0\x0f\x84" + (-0x13).to_bytes(4, "little", signed=True) + b"\x5b\xc3"
    return code_file(one.ljust(16, b"\x90") * count)


def jump_tables(count: int) -> bytes:
    jump = b"\x48\x8d\x05\0\0\0\0\x48\x63\x0c\x90\x48\x01\xc1\xff\xe1"
    return code_file((b"\x83\xfa\x0f\x77\x10" + jump) * count)


def begins_everywhere(count: int) -> bytes:
    """A symbol and a pointer for each byte."""
    code = b"\x53\x90\x5b\xc3" * count
    symbols = b"".join(RECORDS[Sym, "little"].pack(0, 2, 0, 2, BODY + n, 1) for n in range(len(code)))
    pointers = b"".join((BODY + n).to_bytes(8, "little") for n in range(len(code)))
    at = BODY + len(code)
    tables = section(SHT.SYMTAB, at, len(symbols), sh_link=1, sh_entsize=24)
    return code_file(code, tables, data=symbols + pointers, segments=[load(at, len(symbols) + len(pointers))])


def calls_that_do_not_return(count: int) -> bytes:
    """Each function ends in a call of the one before, the first in a trap: one after the other is found out."""
    calls = (b"\x50\xe8" + (-16 * (n > 0) - 6).to_bytes(4, "little", signed=True) for n in range(count))
    return code_file(b"\x50\x0f\x0b".ljust(16, b"\xcc") + b"".join(call.ljust(16, b"\xcc") for call in calls))


def described_code(code: bytes, rows: bytes = b"") -> bytes:
    """One function by its call frame information."""
    at = (BODY + len(code) + 7) // 8 * 8
    frames = Frames(address=at)
    frames.plain_fde(frames.cie(), BODY, len(code), rows)
    size = len(frames.data)
    cfi = section(SHT.PROGBITS, at, size, SHF.ALLOC, sh_name=EH_FRAME)
    return code_file(code, cfi, data=bytes(at - BODY - len(code)) + frames.data, segments=[load(at, size)])


def rows_that_no_section_has(count: int) -> bytes:
    """Each second one: CFA = *(rsp + 40) + 8."""
    row = bytes([0x41, 0x0F, 5, 0x77, 40, 0x06, 0x23, 8, 0x41, 0x0C, 7, 8])
    return described_code(b"\x90" * (2 * count + 1), row * count)


def pushes(count: int) -> bytes:
    return described_code(b"\x53" * count)


def frames_of_all_sizes(count: int) -> bytes:
    """`sub rsp, n`: each with another number."""
    return described_code(b"".join(b"\x48\x81\xec" + (8 * n).to_bytes(4, "little") for n in range(1, count + 1)))


def shared_relocations(count: int) -> bytes:
    body = bytes(24 * count)
    at = BODY + 16
    tables = [section(SHT.RELA, at, len(body))] * count
    return code_file(b"\xc3" * 16, *tables, data=body, segments=[load(at, len(body))] * min(count, 64))


# -- objects and archives


def objects_file(body: bytes, *sections: Shdr) -> bytes:
    text = section(SHT.PROGBITS, BODY, 64, SHF.ALLOC | SHF.EXECINSTR, sh_name=TEXT)
    return named_file(body, text, *sections, kind=ET.REL)


def relocation_tables(count: int) -> bytes:
    body = bytes(24 * count)
    cfi = section(SHT.PROGBITS, BODY, 0, SHF.ALLOC, sh_name=EH_FRAME)
    return objects_file(body, cfi, *[section(SHT.RELA, BODY, len(body), sh_info=3)] * count)


def relocated_sections(count: int) -> bytes:
    """Sections of relocations and what they apply to, each looked for among all others."""
    one, all_sections = section(SHT.RELA, BODY, 0), []
    for number in range(count):
        all_sections += [section(SHT.GNU_SFRAME, BODY, 0), one._replace(sh_info=3 + 2 * number)]
    return objects_file(b"", *all_sections)


def frame_sections(count: int) -> bytes:
    frames = Frames(address=0)
    frames.plain_fde(frames.cie(), 0, 30)
    size = len(frames.data)
    cfi = section(SHT.PROGBITS, BODY, size, SHF.ALLOC, sh_name=EH_FRAME)
    return objects_file(bytes(frames.data) * count, *[cfi._replace(sh_offset=BODY + size * n) for n in range(count)])


def group_sections(count: int) -> bytes:
    frames = Frames(address=0)
    cie = frames.cie()
    frames.plain_fde(cie, 0, 30)
    body = bytes(frames.data) + bytes(4 * count)
    cfi = section(SHT.PROGBITS, BODY, len(frames.data), SHF.ALLOC, sh_name=EH_FRAME)
    return objects_file(body, cfi, *[section(SHT.GROUP, BODY, len(body))] * count)


def sframe_sections(count: int) -> bytes:
    body = shared_rows(count)
    return objects_file(body, *[section(SHT.GNU_SFRAME, BODY, len(body), SHF.ALLOC)] * count)


# -- sections


def shared_rows(count: int) -> bytes:
    """V3 functions of the same rows, two bytes each."""
    index = b"".join(struct.pack("<qII", 64 * n, 64, 0) for n in range(count))
    rows = b"".join(struct.pack("<BBB", n, 0x02, 8) for n in range(60))
    block = struct.pack("<HBBB", 60, 0, 0, 0) + rows
    header = struct.pack("<" + HEADER_CODE, MAGIC, 3, 0, 3, 0, -8, 0, count, 60, len(block), 0, len(index))
    return header + index + block


def many_entries(count: int) -> bytes:
    """CIEs, and functions of each that overlap."""
    frames = Frames(address=cfi.ADDRESS)
    for n in range(count):
        frames.plain_fde(frames.cie(), 0x1800 + n % 64, 256, bytes([0x41, 0x0E, 16]))
    return b"\0" + bytes(frames.data)


def one_long_program(count: int) -> bytes:
    """Of a CIE, which holds for all its functions."""
    frames = Frames(address=cfi.ADDRESS)
    cie = frames.cie(bytes([0x0C, 7, 8, 0x90, 1]) + bytes([0x0E, 8]) * 16 * count)
    for n in range(count):
        frames.plain_fde(cie, 0x1800 + n, 1)
    return b"\0" + bytes(frames.data)


def one_long_expression(count: int) -> bytes:
    """Of a CIE; each row of its function is another rule with it."""
    expression = bytes([0x77, 8]) + bytes([0x96]) * 16 * count
    frames = Frames(address=cfi.ADDRESS)
    cie = frames.cie(bytes([0x0F]) + uleb(len(expression)) + expression)
    rows = b"".join(bytes([0x41, 0x11, 16]) + sleb(-n) for n in range(count))
    frames.plain_fde(cie, 0x2400, 0x1000, rows)
    return b"\0" + bytes(frames.data)


def states(count: int) -> bytes:
    """Each row another rule."""
    frames = Frames(address=cfi.ADDRESS)
    cie = frames.cie()
    frames.plain_fde(cie, 0x2400, 0x1C00, b"".join(bytes([0x41, 0x0E]) + uleb(8 * n) for n in range(count)))
    return b"\0" + bytes(frames.data)


# -- files that have a section


def with_record(data: bytes, entries: int) -> bytes:
    """A record of this many bytes that stay unchanged; the original ends where the record begins."""
    old = [(n, data[n : n + 1]) for n in range(entries)]
    return data + undo_record.encode_record(undo_record.UndoRecord(len(data), old, 0), [data[:entries]])


def recorded_sections(count: int) -> bytes:
    body = EMPTY_SECTION
    sections = [section(SHT.GNU_SFRAME, BODY, len(body), SHF.ALLOC, sh_name=SFRAME)]
    sections += [section(SHT.PROGBITS, BODY, 1, SHF.ALLOC | SHF.EXECINSTR)] * count
    return with_record(named_file(body, *sections, segments=[load(0, BODY)]), count)


def own_segments(count: int) -> bytes:
    """Segments that are of a section alone, and a dynamic section that could name a place in each."""
    count = min(count, 64)
    body = EMPTY_SECTION + bytes([1] * 16) * 16 * count
    sframe = Phdr(PT.GNU_SFRAME, PF.R, BODY, BODY, BODY, 28, 28, 8)
    dynamic = Phdr(PT.DYNAMIC, PF.R, BODY + 28, 0, 0, len(body) - 28, 0, 8)
    return many(1, body, section(SHT.PROGBITS, 0, 0), segments=[sframe, dynamic, *[load(BODY, 28)] * count])


CASES: dict[str, tuple[ModuleType, Callable[[int], bytes], int]] = {
    "note sections": (elf, note_sections, 64),
    "note sections of a linked file": (inject, note_sections_of_a_linked_file, 64),
    "note segments": (elf, note_segments, 18),
    "endless names": (elf, endless_names, 64),
    "symbol tables": (add, symbol_tables, 64),
    "relocation tables": (objects, relocation_tables, 64),
    "relocated sections": (objects, relocated_sections, 64),
    "frame sections": (objects, frame_sections, 64),
    "section groups": (objects, group_sections, 64),
    "sframe sections": (objects, sframe_sections, 16),
    "long names": (objects, lambda n: archive([(b"//", b"x" * 60 * n), *[(b"/%d" % one, b"") for one in range(n)]]), 200),
    "shared rows": (decode, shared_rows, 40),
    "shared rows, looked up": (lookup, shared_rows, 40),
    "pieces": (merge, lambda n: shared_rows(1) * n, 40),
    "entries": (cfi, many_entries, 64),
    "a long program": (cfi, one_long_program, 64),
    "a long expression": (cfi, one_long_expression, 300),
    "states": (cfi, states, 200),
    "a record": (remove, recorded_sections, 64),
    "segments of a section alone": (remove, own_segments, 16),
    "branches to the first": (synthesize, all_branch_to_the_first, 100),
    "functions that leave to the next": (synthesize, lambda n: code_file(LEAVES.ljust(16, b"\xcc") * n), 40),
    "functions in one another": (synthesize, functions_in_one_another, 40),
    "jump tables": (synthesize, jump_tables, 80),
    "begins everywhere": (synthesize, begins_everywhere, 16),
    "calls that do not return": (synthesize, calls_that_do_not_return, 40),
    "pushes": (instructions, pushes, 2000),
    "shared relocations": (synthesize, shared_relocations, 64),
}


def decoded_table(data: bytes) -> None:
    made = make_table(ElfFile(memoryview(data)))
    assert made.table is not None, made.why


def test_code_of_many_segments_is_searched_once() -> None:
    """Segments that all have the same bytes, at other addresses."""
    code = b"\x90" * 1000
    segments = [load(BODY, len(code), PF.R | PF.X)._replace(p_vaddr=BODY * n) for n in range(1, 65)]
    elf = ElfFile(memoryview(many(1, code, section(SHT.PROGBITS, BODY, len(code)), segments=segments)))
    assert 4 * len(code) <= sum(len(part) for _, part in readable_code(elf)) <= len(elf.data)


def functions_without_a_size(count: int) -> bytes:
    """Each in a section of its own, which is in all that come before."""
    rows = b"".join(RECORDS[Sym, "little"].pack(0, 2, 0, 1, BODY + 8 * n, 0) for n in range(count))
    code = [section(SHT.PROGBITS, BODY + 8 * n, 8 * (2 * count - n), SHF.EXECINSTR) for n in range(count)]
    return many(1, rows, section(SHT.SYMTAB, BODY, len(rows), sh_link=1), *code)


def name_all(data: bytes) -> None:
    elf = ElfFile(memoryview(data))
    columns = FunctionColumns(elf)
    addresses = [one.header.sh_addr + 1 for one in elf.sections if one.header.sh_flags & SHF.EXECINSTR]
    assert len(columns.functions_at(addresses)) == len(addresses)


@pytest.mark.parametrize(("run", "make"), [(decoded_table, rows_that_no_section_has), (name_all, functions_without_a_size)])
def test_tables_and_ends_of_functions_cost_what_their_size_allows(
    run: Callable[[bytes], None], make: Callable[[int], bytes]
) -> None:
    small, large = make(100), make(100 * GROWTH)
    run(small)
    (before, _), (after, _) = work(run, small), work(run, large)
    assert after < SLACK * GROWTH * before


def within(costs: Sequence[float], limits: Sequence[float]) -> bool:
    return all(cost <= limit for cost, limit in zip(costs, limits, strict=True))


@pytest.mark.full
@pytest.mark.parametrize("name", CASES)
def test_costs_what_its_size_allows(name: str) -> None:
    target, make, count = CASES[name]
    small, large = make(count), make(count * GROWTH)
    target.run(small)  # what is only done once
    header = BODY if target in (synthesize, instructions) else 0  # of code alone: what is before it costs nothing
    allowed = SLACK * (len(large) - header) / (len(small) - header)
    limits = [max(before, 10_000) * allowed for before in work(target.run, small)]
    # Memory is counted for all threads, and the test runner's own allocates when tests move between workers: that passes,
    # and what the work itself costs is the same each time.
    costs = [work(target.run, large)]
    while not within(costs[-1], limits) and len(costs) < 3:
        costs.append(work(target.run, large))
    assert within(costs[-1], limits), (costs, limits)


# Large enough that what is kept for each byte shows; a child, as the limit holds for all that a process has mapped.
IN_MEMORY = """
import sys
from tests.fuzz.limits import address_space, limited
from tests.fuzz.targets import instructions
from tests.hostile import test_linear_cost
make, count = getattr(test_linear_cost, sys.argv[1]), int(sys.argv[2])
instructions.run(make(100))
data = make(count)
with limited(len(data), address_space(), 60):
    instructions.run(data)
"""


@pytest.mark.full
@pytest.mark.parametrize(("make", "count"), [("pushes", 960_000), ("frames_of_all_sizes", 137_000)])
def test_has_the_memory_that_the_docs_promise(make: str, count: int) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run([sys.executable, "-c", IN_MEMORY, make, str(count)], env=environment, check=True)
