"""What mutation starts from: small files and sections, by the tests' writers and by the machine's compiler; made when asked for.

Those of the compiler differ from machine to machine, so that no recipe that is kept may begin with them.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from functools import cache, partial
from pathlib import Path
from typing import Any

import sframegen
from sframegen.elf.records import ET, PT, SHF, SHT, Phdr
from sframegen.format.abi import AARCH64, ABIS, AMD64, S390X, Abi
from sframegen.format.encode import Encoder
from sframegen.format.layouts import LAYOUTS, V1, V2, V3, Layout
from sframegen.format.model import OUTERMOST, FdeType, FunctionTable, Kind, Rule, Where
from sframegen.registry.structures import JitList, JitNode, encode
from tests.support.inputs.cfi_writer import Frames
from tests.support.inputs.jit_writer import STRIDE, JitWriter, entry_of
from tests.support.inputs.linker_inputs import (
    Writer,
    inject_bytes,
    small_file,
    with_many_sections,
    with_many_segments,
    without_sections,
)
from tests.support.inputs.sframe_files import write_sframe_elf

ADDRESS = 0x3000
SOURCE = """
__attribute__((noinline)) int leaf(int n) { volatile char b[n]; b[0] = n; return b[0]; }
int twice(int n) { return leaf(n) + leaf(n + 1); }
"""
SHARED = ("-O2", "-nostdlib", "-shared", "-fPIC", "-Wl,--build-id", "-Wl,-z,noseparate-code", "-Wl,-z,norelro")
DEBUG = ("-g1", "-fno-asynchronous-unwind-tables")
PROGRAM = SOURCE + "int puts(const char *); int main(int n, char **v) { puts(*v); return twice(n); }\n"
# As lld, mold and gold write them.
MAPS = {
    "map-lld": b"""             VMA              LMA     Size Align Out     In      Symbol
             238              238       1a     1 .interp
             238              238       1a     1         <internal>:(.interp)
            1640             1640      10c    16 .text
            1640             1640       22    16         /usr/lib/crt1.o:(.text)
            1640             1640       22     1                 _start
            1670             1670       40    16         lib/libx.a(one.o):(.text.f(int))
""",
    "map-mold": b"""               VMA       Size Align Out     In      Symbol
          0x002002         28     1 .interp
          0x003040        512    16 .text
          0x003040         38    16         a.o:(.text)
          0x003040          0     1                 main
""",
    "map-gold": b"""Archive member included because of file (symbol)

x.a(one.o)     a.o (one)

Memory map

 ** file header
                0x0000000000000000       0x40
.text           0x0000000000000500      0x1f2
 .text          0x0000000000000500       0x22 /usr/lib/crt1.o
                0x0000000000000500                _start
 .text.a_long_name
                0x0000000000000530       0x10 x.a(one.o)
""",
}
MORE = "".join(f"int f{n}(int n) {{ volatile char b[n]; b[0] = n; return leaf(b[0]); }}\n" for n in range(20))
TEMPLATE = """
#include <new>
template <class T> struct Kept { T value; Kept(T v) : value(v) {} ~Kept() { value = T(); } T take(T n) { return value += n; } };
int one(int n) { Kept<int> kept(n); try { return *new int(kept.take(n)); } catch (const std::bad_alloc &) { return 0; } }
long two(long n) { Kept<long> kept(n); return kept.take(n); }
"""


@cache
def seed(name: str) -> bytes:
    made: bytes = (WRITTEN | COMPILED)[name]()
    return made


def compiled(source: str, *flags: str, result: str = "out") -> bytes:
    """The file `result` that gcc makes of it, the same in every directory."""
    with tempfile.TemporaryDirectory() as directory:
        language = "c++" if "#include <new>" in source else "c"
        command = ["gcc", *flags, f"-ffile-prefix-map={directory}=.", "-o", "out", "-x", language, "-"]
        subprocess.run(command, input=source.encode(), cwd=directory, check=True)
        return Path(directory, result).read_bytes()


def with_section(data: bytes, **options: Any) -> bytes:
    """The file as add-section makes it."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, "file")
        file.write_bytes(data)
        sframegen.add_section(file, verify=False, **options)
        return file.read_bytes()


def sframe_table(abi: Abi, layout: Layout) -> FunctionTable:
    """Functions of every kind that the version has."""
    saved = Where(None, abi.fixed_ra_offset or -8, deref=True)
    rules = [
        Rule(Where(abi.sp, abi.cfa_adjustment + 8), saved if abi.fixed_ra_offset else None),
        Rule(Where(abi.sp, abi.cfa_adjustment + 16), saved, Where(None, -16, deref=True)),
        Rule(Where(abi.fp, abi.cfa_adjustment + 1 << 12), saved, Where(None, -16, deref=True)),
        OUTERMOST,
    ]
    kinds = [Kind(), Kind(mask=True, rep_size=16)]
    if layout.flex:
        kinds += [Kind(signal=True), Kind(FdeType.FLEX)]
        rules.append(Rule(Where(10, 8, deref=True), Where(abi.fp, 8, deref=True), Where(abi.fp, 0, deref=True)))
    table = FunctionTable(kinds=kinds, rules=rules)
    for number in range(3 * len(kinds)):
        kind = kinds[number % len(kinds)]
        numbers = [len(rules) - 1 - row if kind.fde_type else (number + row) % 4 for row in range(3)]
        rows = [(row * (5 if kind.mask else 100 * (1 + number)), rule) for row, rule in enumerate(numbers)]
        table.append(0x1000 + number * 0x240, 0x200 + number, number % len(kinds), rows)
    return table


def sframe(abi: Abi, layout: Layout) -> bytes:
    said_by_anyone = layout._replace(outermost=True)  # rows without words in version 2, too
    return bytes(Encoder(sframe_table(abi, layout), abi, said_by_anyone, share=abi.shares_rows).encode(ADDRESS))


def sframe_file(abi: Abi, layout: Layout) -> bytes:
    with tempfile.TemporaryDirectory() as directory:
        return write_sframe_elf(Path(directory, "file"), sframe(abi, layout), abi, ADDRESS).read_bytes()


def frames(*, eh: bool, big: bool = False, dwarf64: bool = False) -> bytes:
    """A section with the usual CIEs, and an FDE with each group of instructions."""
    made = Frames(eh=eh, big=big, dwarf64=dwarf64)
    plain = made.cie()
    encoded = made.cie(augmentation="zPLR", data=bytes([0, *bytes(8), 0x1B, 0x1B]), version=1) if eh else made.cie(version=3)
    signal = made.cie(augmentation="zRS", data=b"\x10") if eh else made.cie(version=4)
    programs = [
        bytes([0x41, 0x0E, 16, 0x86, 2, 0x43, 0x0D, 6, 0x0A, 0x50, 0x0C, 7, 8, 0x0B]),  # push, frame pointer, remember, restore
        bytes([0x02, 9, 0x0F, 3, 0x77, 8, 6, 0x03, 1, 0, 0x10, 6, 2, 0x76, 0x78]),  # expressions
        bytes([0x41, 0x05, 6, 3, 0x11, 6, 0x7E, 0x09, 16, 3, 0x42, 0x07, 16, 0x08, 6, 0xC6, 0x2E, 32, 0x2D]),
        bytes([0x0F, 11, 0x77, 8, 0x80, 0, 0x3F, 0x1A, 0x3B, 0x2A, 0x33, 0x24, 0x22]),  # the PLT's
    ]
    for number, program in enumerate(programs):
        start, size = 0x2000 + number * 0x100, 0x80 + number
        made.plain_fde(plain, start, size, program)
        width = 4 if eh else 8
        made.fde(encoded, made.number(start - 0x1000 - len(made.data) - 8, width), made.number(size, width), program)
        if eh:
            made.fde(signal, made.number(start, 8), made.number(size, 8), program)
    return bytes(made.data)


def library_with_frames() -> bytes:
    """Code, CFI in `.eh_frame` that describes it, and symbols."""
    writer = Writer("little", 2)
    text = writer.put(".text", SHT.PROGBITS, SHF.ALLOC | SHF.EXECINSTR, b"\x90" * 128, 64)
    made = Frames(address=0)
    cie = made.cie(augmentation="zR", data=b"\x1b")
    at = len(writer.data)
    for number in range(3):
        place = at + len(made.data) + 8
        start = made.number(text.sh_addr + 40 * number - place, 4)
        made.fde(cie, start, made.number(40, 4), bytes([0x41, 0x0E, 16, 0x44, 0x0E, 8]))
    writer.put(".eh_frame", SHT.PROGBITS, SHF.ALLOC, bytes(made.data))
    end = len(writer.data)
    writer.put(".strtab", SHT.STRTAB, 0, b"\0one\0leaf\0", 1)
    symbols = writer.symbols((1, 0x12, ".text", text.sh_addr), (5, 0x12, ".text", text.sh_addr + 40))
    writer.put(".symtab", SHT.SYMTAB, 0, symbols, link=".strtab")
    return writer.finish([Phdr(PT.LOAD, 5, 0, 0, 0, end, end, 0x1000), Phdr(PT.NULL, 0, 0, 0, 0, 0, 0, 0)])


def relocatable() -> bytes:
    """An object with two functions, whose call frame information is relocated, and which are in a group."""
    made = Frames(address=0)
    cie = made.cie(augmentation="zR", data=b"\x1b")
    fdes = [made.fde(cie, bytes(4), made.number(32, 4), bytes([0x41, 0x0E, 16, 0x44, 0x0E, 8])) for _ in range(2)]
    writer = Writer("little", 0)
    writer.put(".text", SHT.PROGBITS, SHF.ALLOC | SHF.EXECINSTR | SHF.GROUP, b"\x90" * 64)
    writer.put(".eh_frame", SHT.PROGBITS, SHF.ALLOC, bytes(made.data))
    writer.put(".strtab", SHT.STRTAB, 0, b"\0one\0two\0", 1)
    symbols = writer.symbols((0, 3, ".text", 0), (1, 0x12, ".text", 0), (5, 0x12, ".text", 32))
    writer.put(".symtab", SHT.SYMTAB, 0, symbols, link=".strtab")
    relocations = b"".join(struct.pack("<QQq", fde + 8, 1 << 32 | 2, 32 * number) for number, fde in enumerate(fdes))
    writer.put(".rela.eh_frame", SHT.RELA, 0, relocations, link=".symtab")
    writer.put(".group", SHT.GROUP, 0, struct.pack("<II", 1, 1), 4, link=".symtab")
    for name in writer.headers:  # nothing has an address; relocations apply to section 2, the group is called by symbol 2
        writer.headers[name] = writer.headers[name]._replace(sh_addr=0)
    writer.headers[".rela.eh_frame"] = writer.headers[".rela.eh_frame"]._replace(sh_info=2, sh_flags=SHF.INFO_LINK)
    writer.headers[".group"] = writer.headers[".group"]._replace(sh_info=2, sh_entsize=4)
    data = bytearray(writer.finish([]))
    data[16:18] = ET.REL.to_bytes(2, "little")
    data[32:40] = bytes(8)  # e_phoff
    return bytes(data)


def archive(objects: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Of (name, contents), with a symbol index and a table of long names."""
    parts = [(b"//", b"a_long_member_name.o/\nanother_long_member_name.o/\n"), *objects]
    at = [8 + 60 + 12 + 8]
    for _, data in parts:
        at.append(at[-1] + 60 + (len(data) + 1) // 2 * 2)
    index = (2).to_bytes(4, "big") + at[1].to_bytes(4, "big") + at[-2].to_bytes(4, "big") + b"one\0two\0"
    out = b"!<arch>\n"
    for name, data in [(b"/", index), *parts]:
        out += b"%-16s%-12d%-6d%-6d%-8o%-10d`\n" % (name, 0, 0, 0, 0o644, len(data)) + data + b"\n" * (len(data) % 2)
    return out


JIT_AT, JIT_TEXT = 0x20_0000, 0x1000


def jit_memory(number: int) -> bytes:
    """A list of two regions, one of a chain of two tables. The first byte says the ABI, for targets/jit.py."""
    abi = ABIS[number]
    places = [JIT_AT + at for at in (32, 80, 128, 256, 384)]  # two nodes, three tables
    rules = [Rule(Where(abi.sp, 16), Where(None, -8, deref=True) if abi.fixed_ra_offset else None), OUTERMOST]
    tables = [bytearray(32 + 4 * STRIDE) for _ in range(3)]
    writers = [JitWriter(table, at, abi.byte_order) for table, at in zip(tables, places[2:], strict=True)]
    for count, writer in enumerate(writers):
        if count == 1:
            writers[0].extend(writer)
        for entry in range(2 * (count % 2), 4):
            writer.append(entry_of(0x40, 0x80 * entry + 0x200 * (count == 1), rules[entry % 2], abi))
    writers[0].remove(0x80)
    order = abi.byte_order
    parts = {
        JIT_AT + 8: encode(JitList(1, 0, places[0]), order),
        places[0]: encode(JitNode(places[1], 1, JIT_TEXT, JIT_TEXT + 0x1000, places[2]), order),
        places[1]: encode(JitNode(0, 3, JIT_TEXT + 0x1000, JIT_TEXT + 0x2000, places[4]), order),
        **{at: bytes(table) for at, table in zip(places[2:], tables, strict=True)},
    }
    memory = bytearray(512)
    memory[0] = number
    for at, data in parts.items():
        memory[at - JIT_AT : at - JIT_AT + len(data)] = data
    return bytes(memory)


WRITTEN: dict[str, Callable[[], bytes]] = {
    "nothing": bytes,
    "program": small_file,
    "big-endian": partial(small_file, "big"),
    "library": library_with_frames,
    "tail": partial(small_file, library=True, blocked=256),
    "no-sections": lambda: without_sections(small_file()),
    "many-sections": lambda: with_many_sections(small_file(), 300),
    "many-segments": lambda: with_many_segments(small_file(), 40),
    "injected": lambda: inject_bytes(small_file()),
    "unloaded": lambda: inject_bytes(small_file(), unloaded=True),
    "injected-tail": lambda: inject_bytes(small_file(library=True, blocked=256)),
    "object": relocatable,
    "object-sframe": lambda: with_section(seed("object"), optimize="none"),
    "archive": lambda: archive([(b"/0", seed("object")), (b"/22", seed("object")), (b"short.o/", b"text")]),
    # The first byte is for targets/cfi.py: number of the ABI, 4 .debug_frame, 16 version 3.
    "cfi-eh": lambda: bytes([0 | 16]) + frames(eh=True),
    "cfi-eh-arm": lambda: bytes([1]) + frames(eh=True),
    "cfi-eh-big": lambda: bytes([2 | 16]) + frames(eh=True, big=True, dwarf64=True),
    "cfi-debug": lambda: bytes([0 | 4]) + frames(eh=False),
    "cfi-debug-64": lambda: bytes([0 | 4 | 16]) + frames(eh=False, dwarf64=True),
    **{f"sframe-{abi.name}-{layout.version}": partial(sframe, abi, layout) for abi in ABIS for layout in LAYOUTS.values()},
    **{name: partial(bytes, text) for name, text in MAPS.items()},
    **{f"jit-{abi.name}": partial(jit_memory, number) for number, abi in enumerate(ABIS)},
    "sframe-file": partial(sframe_file, AMD64, V3),
    "sframe-file-2": partial(sframe_file, AARCH64, V2),
    "sframe-file-big": partial(sframe_file, S390X, V2),
    "sframe-pieces": lambda: sframe(AMD64, V3) + bytes(4) + sframe(AMD64, V2) + sframe(AMD64, V1),
}
COMPILED: dict[str, Callable[[], bytes]] = {
    "gcc-library": partial(compiled, SOURCE, *SHARED),
    "gcc-stripped": lambda: without_sections(compiled(SOURCE, *SHARED, "-s")),
    "gcc-debug": partial(compiled, SOURCE, *SHARED, *DEBUG),
    "gcc-compressed": partial(compiled, SOURCE + MORE, *SHARED, *DEBUG, "-gz=zlib"),
    "gcc-added": lambda: with_section(compiled(SOURCE, *SHARED)),
    "gcc-unloaded": lambda: with_section(compiled(SOURCE + MORE, *SHARED), unloaded=True),
    "gcc-added-2": lambda: with_section(compiled(SOURCE, *SHARED), version=2),
    "gcc-program": partial(compiled, PROGRAM, "-O2", "-pie", "-Wl,-z,lazy", "-Wl,-z,noseparate-code"),
    "gcc-map": partial(compiled, SOURCE, *SHARED, "-save-temps", "-Wl,-Map=map", result="map"),
    "gcc-object": partial(compiled, SOURCE, "-O2", "-c"),
    "gcc-object-debug": partial(compiled, SOURCE, "-O2", "-c", *DEBUG),
    "gcc-object-groups": partial(compiled, TEMPLATE, "-O1", "-c"),
    "gcc-archive": lambda: archive([(b"/0", seed("gcc-object")), (b"/22", seed("gcc-object-groups"))]),
}


def available(names: Iterable[str]) -> dict[str, bytes]:
    """Those seeds that can be made on this machine."""
    return {name: seed(name) for name in names if name in WRITTEN or shutil.which("g++")}
