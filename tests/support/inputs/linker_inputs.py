"""Linked files for the tests of linker/: a program to compile in every way, and a writer of small ELF files."""

from __future__ import annotations

import io
import struct
import subprocess
from pathlib import Path
from typing import Any

from linker.files.read_back import READERS
from linker.inject import undo_record
from linker.inject.apply import Change, make_injection_change, write_changed_file
from linker.inject.kernel_versions import changes_accepted_by
from linker.inject.plan import InjectionPlan, plan_injection, plan_unloaded
from linker.inject.verify import verify_injection
from sframegen.elf.file import ElfFile, Section, open_elf
from sframegen.elf.ranges import align_up
from sframegen.elf.records import (
    EHDR_SIZE,
    EM,
    ET,
    PF,
    PHDR_SIZE,
    PN_XNUM,
    PT,
    RECORDS,
    SHDR_SIZE,
    SHF,
    SHN,
    SHT,
    SYM_SIZE,
    ByteOrder,
    Ehdr,
    Phdr,
    Shdr,
    Sym,
)

SHT_HASH, SHT_DYNAMIC = 5, 6

# Thread-local storage, and a forced unwind that runs a cleanup in each of four frames: 7 + 1 + 2 + 3 + 4 = 17.
SOURCE = r"""
#include <setjmp.h>
#include <stdio.h>
#include <unwind.h>
static __thread int counter = 7;
static jmp_buf back;
static char *outer;
static struct _Unwind_Exception exception;
static void clean(int *value) { counter += *value; }
static _Unwind_Reason_Code stop(int version, _Unwind_Action action, _Unwind_Exception_Class kind,
                                struct _Unwind_Exception *what, struct _Unwind_Context *context, void *data) {
  if ((char *) _Unwind_GetCFA(context) > outer) longjmp(back, 1);
  return _URC_NO_REASON;
}
__attribute__((noinline)) static int deep(int n) {
  int kept __attribute__((cleanup(clean))) = n;
  if (n == 4) _Unwind_ForcedUnwind(&exception, stop, 0);
  return deep(n + 1) + kept;
}
__attribute__((noinline)) int entry(void) {
  outer = __builtin_frame_address(0);
  if (!setjmp(back)) deep(1);
  printf("counter %d\n", counter);
  fflush(stdout);
  return counter != 17;
}
#ifdef LOADER
#include <dlfcn.h>
int main(int argc, char **argv) {
  void *library = dlopen(argv[1], RTLD_NOW);
  if (!library) { puts(dlerror()); return 2; }
  return ((int (*)(void)) dlsym(library, "entry"))();
}
#elif !defined(LIBRARY)
int main(void) { return entry(); }
#endif
"""
FLAGS = ("-O1", "-g", "-fexceptions")
KINDS = {
    "pie": ("-fPIE", "-pie"),
    "no-pie": ("-fno-pie", "-no-pie"),
    "static": ("-fno-pie", "-static"),
    "static-pie": ("-fPIE", "-static-pie"),
    "library": ("-fPIC", "-shared", "-DLIBRARY"),
    "no-build-id": ("-fPIE", "-pie", "-Wl,--build-id=none"),
    "large-bss": ("-fPIE", "-pie"),
    "pages-2m": ("-fPIE", "-pie", "-Wl,-z,max-page-size=0x200000"),
    "pages-64k-library": ("-fPIC", "-shared", "-DLIBRARY", "-Wl,-z,max-page-size=0x10000"),
    "stripped": ("-fPIE", "-pie", "-s"),
    "sysv-hash": ("-fPIC", "-shared", "-DLIBRARY", "-Wl,--hash-style=both"),
}
LARGE_BSS = "char large[100 << 20]; char *at_large(long at) { return large + at; }\n"


def source_of(kind: str) -> str:
    return (LARGE_BSS if kind == "large-bss" else "") + SOURCE


def blocking_script() -> str:
    """A linker script for libraries in which .rodata comes first: it differs from GNU ld's own in that alone."""
    script = subprocess.run(["ld.bfd", "-shared", "--verbose"], capture_output=True, text=True, check=True).stdout.split("=" * 50)[
        1
    ]
    here = '. = SEGMENT_START("text-segment", 0) + SIZEOF_HEADERS;'
    assert here in script
    return script.replace(here, here + " .rodata : { *(.rodata .rodata.*) QUAD(1) }", 1)


def section_named(elf: ElfFile, name: str) -> Section:
    section = elf.section(name)
    assert section is not None
    return section


def elf_of(data: bytes) -> ElfFile:
    return ElfFile(memoryview(data), "file")


def with_header(data: bytes, **fields: Any) -> bytes:
    elf = elf_of(data)
    return RECORDS[Ehdr, elf.byte_order].pack(*elf.header._replace(**fields)) + data[EHDR_SIZE:]


def with_segment(data: bytes, number: int, **fields: int) -> bytes:
    elf = elf_of(data)
    at = elf.header.e_phoff + number * PHDR_SIZE
    packed = RECORDS[Phdr, elf.byte_order].pack(*elf.segments[number]._replace(**fields))
    return data[:at] + packed + data[at + PHDR_SIZE :]


def with_section(data: bytes, name: str, **fields: int) -> bytes:
    elf = elf_of(data)
    section = section_named(elf, name)
    at = elf.header.e_shoff + section.number * SHDR_SIZE
    return data[:at] + RECORDS[Shdr, elf.byte_order].pack(*section.header._replace(**fields)) + data[at + SHDR_SIZE :]


def both_findings(plan: InjectionPlan, original: ElfFile, result: Path) -> list[str]:
    """What verification finds: the same with each reader of written files, except who cannot read it."""
    first, *others = (
        [one.replace(reader, "the reader") for one in verify_injection(plan, original, result, reader)] for reader in READERS
    )
    assert all(first == other for other in others)
    return first


def section_of(size: int) -> bytes:
    """An empty V3 section for AMD64, followed by bytes that nobody reads."""
    return struct.pack("<HBBBbbBIIIII", 0xDEE2, 3, 1, 3, 0, -8, 0, 0, 0, 0, 0, 0) + bytes(range(256)) * (size // 256 + 1)


def inject(source: Path, target: Path, size: int = 3001, min_kernel: str | None = None) -> InjectionPlan:
    elf = open_elf(source)
    plan = plan_injection(elf, size, allowed=changes_accepted_by(min_kernel))
    with target.open("wb") as out:
        write_changed_file(elf, make_injection_change(plan, elf, section_of(size)[:size]), out)
    target.chmod(0o755)
    return plan


def inject_bytes(data: bytes, size: int = 28, *, unloaded: bool = False) -> bytes:
    elf = ElfFile(memoryview(data))
    out = io.BytesIO()
    plan = plan_unloaded(elf, size) if unloaded else plan_injection(elf, size)
    write_changed_file(elf, make_injection_change(plan, elf, section_of(size)[:size]), out)
    return out.getvalue()


def restored(changed: bytes) -> bytes:
    record = undo_record.read_verified(memoryview(changed))
    assert record is not None
    out = io.BytesIO()
    write_changed_file(ElfFile(memoryview(changed)), Change(()), out, record=record)
    return out.getvalue()


def without_sections(data: bytes) -> bytes:
    """The same file as sstrip leaves it: no section headers, nothing after the last loaded byte."""
    elf = ElfFile(memoryview(data))
    end = max(segment.p_offset + segment.p_filesz for segment in elf.segments if segment.p_type == PT.LOAD)
    return RECORDS[Ehdr, elf.byte_order].pack(*elf.header._replace(e_shoff=0, e_shnum=0, e_shstrndx=0)) + data[64:end]


class Writer:
    """Sections in file order, the ELF header and program headers before them, section headers after them."""

    def __init__(self, order: ByteOrder, phnum: int) -> None:
        self.order: ByteOrder = order
        self.data = bytearray(64 + phnum * 56)
        self.headers = {"": Shdr(0, 0, 0, 0, 0, 0, 0, 0, 0, 0)}

    def put(self, name: str, kind: int, flags: int, content: bytes, align: int = 8, *, shift: int = 0, link: str = "") -> Shdr:
        """A section at address (offset + shift); `link` names one that is there already."""
        self.data.extend(bytes(-len(self.data) % align))
        offset = len(self.data)
        number = list(self.headers).index(link)
        entry_size = {SHT.DYNSYM: 24, SHT.SYMTAB: 24, SHT_DYNAMIC: 16, SHT.RELA: 24}.get(kind, 0)
        info = 1 if kind in (SHT.DYNSYM, SHT.SYMTAB) else 0
        address = offset + shift if flags else 0
        self.headers[name] = Shdr(0, kind, flags, address, offset, len(content), number, info, align, entry_size)
        self.data.extend(content)
        return self.headers[name]

    def symbols(self, *symbols: tuple[int, int, str, int]) -> bytes:
        rows = [
            Sym(0, 0, 0, 0, 0, 0),
            *(Sym(name, info, 0, list(self.headers).index(s), value, 0) for name, info, s, value in symbols),
        ]
        return b"".join(RECORDS[Sym, self.order].pack(*row) for row in rows)

    def finish(self, segments: list[Phdr]) -> bytes:
        names = b"\0" + b"".join(name.encode() + b"\0" for name in [*self.headers, ".shstrtab"] if name)
        self.put(".shstrtab", SHT.STRTAB, 0, names, 1)
        self.data.extend(bytes(-len(self.data) % 8))
        ident = b"\x7fELF\2" + (b"\1" if self.order == "little" else b"\2") + b"\1" + bytes(9)
        machine = EM.X86_64 if self.order == "little" else EM.S390
        count = len(self.headers)
        header = Ehdr(ident, ET.DYN, machine, 1, 0x1000, 64, len(self.data), 0, 64, 56, len(segments), 64, count, count - 1)
        for name, section in self.headers.items():
            at = names.index(b"\0" + name.encode() + b"\0") + 1 if name else 0
            self.data.extend(RECORDS[Shdr, self.order].pack(*section._replace(sh_name=at)))
        self.data[:64] = RECORDS[Ehdr, self.order].pack(*header)
        self.data[64 : 64 + 56 * len(segments)] = b"".join(RECORDS[Phdr, self.order].pack(*segment) for segment in segments)
        return bytes(self.data)


def small_file(order: ByteOrder = "little", *, library: bool = False, blocked: int = 0) -> bytes:
    """A program or library of two kilobytes, ordered as GNU ld does; `blocked` bytes of code follow the program headers."""
    mark = "<" if order == "little" else ">"
    writer = Writer(order, 5 if library else 7)
    phsize = len(writer.data) - 64
    if blocked:
        writer.put(".init", SHT.PROGBITS, 6, b"\xcc" * blocked)
    if not library:
        interp = writer.put(".interp", SHT.PROGBITS, 2, b"/lib64/ld.so.1\0", 1)
    note = writer.put(".note.gnu.build-id", SHT.NOTE, 2, struct.pack(mark + "III", 4, 20, 3) + b"GNU\0" + bytes(range(20)), 4)
    hashes = writer.put(".hash", SHT_HASH, 2, struct.pack(mark + "IIIII", 1, 2, 1, 0, 0))
    strings = writer.put(".dynstr", SHT.STRTAB, 2, b"\0entry\0" + b"other\0" * 12, 1)
    symbols = writer.put(".dynsym", SHT.DYNSYM, 2, writer.symbols((1, 0x12, ".hash", 0x5000)), link=".dynstr")
    writer.put(".rela.dyn", SHT.RELA, 2, bytes(24), link=".dynsym")
    end_of_front = len(writer.data)
    text = writer.put(".text", SHT.PROGBITS, 6, bytes(16), 0x100, shift=0x1000)
    tags = [(1, 1), (4, hashes.sh_addr), (5, strings.sh_addr), (6, symbols.sh_addr), (10, strings.sh_size), (11, 24), (0, 0)]
    content = b"".join(struct.pack(mark + "QQ", *tag) for tag in tags)
    dynamic = writer.put(".dynamic", SHT_DYNAMIC, 3, content, 0x100, shift=0x2000, link=".dynstr")
    writer.put(".strtab", SHT.STRTAB, 0, b"\0", 1)
    writer.put(".symtab", SHT.SYMTAB, 0, writer.symbols((0, 1, ".note.gnu.build-id", note.sh_addr)), link=".strtab")

    def segment(kind: int, section: Shdr, flags: int, align: int) -> Phdr:
        return Phdr(kind, flags, section.sh_offset, section.sh_addr, section.sh_addr, section.sh_size, section.sh_size, align)

    segments = [] if library else [Phdr(PT.PHDR, 4, 64, 64, 64, phsize, phsize, 8), segment(PT.INTERP, interp, 4, 1)]
    segments += [
        Phdr(PT.LOAD, 4, 0, 0, 0, end_of_front, end_of_front, 0x1000),
        segment(PT.LOAD, text, 5, 0x1000),
        segment(PT.LOAD, dynamic, 6, 0x1000)._replace(p_memsz=0x5000),
        segment(PT.DYNAMIC, dynamic, 6, 8),
        segment(PT.NOTE, note, 4, 4),
    ]
    return writer.finish(segments)


def with_many_sections(data: bytes, count: int) -> bytes:
    """The same file with this many sections, empty ones before its own; too large numbers are where the gABI puts them."""
    elf = ElfFile(memoryview(data))
    shdr, sym = RECORDS[Shdr, elf.byte_order], RECORDS[Sym, elf.byte_order]
    extra = count - len(elf.sections) - 1
    out = bytearray(data)
    table = next(section for section in elf.sections if section.header.sh_type == SHT.SYMTAB)
    numbers = []
    for at in range(table.header.sh_offset, table.header.sh_offset + table.header.sh_size, SYM_SIZE):
        symbol = Sym(*sym.unpack_from(out, at))
        number = symbol.st_shndx + extra if 0 < symbol.st_shndx < SHN.LORESERVE else symbol.st_shndx
        escaped = SHN.LORESERVE <= number != symbol.st_shndx
        numbers.append(number if escaped else 0)
        out[at : at + SYM_SIZE] = sym.pack(*symbol._replace(st_shndx=SHN.XINDEX if escaped else number))
    out.extend(bytes(-len(out) % 8))
    index = Shdr(0, SHT.SYMTAB_SHNDX, 0, 0, len(out), 4 * len(numbers), table.number + extra, 0, 4, 4)
    mark = "<" if elf.byte_order == "little" else ">"
    out.extend(struct.pack(f"{mark}{len(numbers)}I", *numbers).ljust(align_up(4 * len(numbers), 8), b"\0"))
    headers = [Shdr(0, SHT.PROGBITS, 0, 0, 64, 0, 0, 0, 1, 0)] * extra
    for section in elf.sections[1:]:
        header = section.header
        link = header.sh_link + extra if header.sh_link else 0
        info = header.sh_info + extra if header.sh_flags & SHF.INFO_LINK else header.sh_info
        headers.append(header._replace(sh_link=link, sh_info=info))
    many, far = count >= SHN.LORESERVE, elf.shstrndx + extra >= SHN.LORESERVE
    first = Shdr(0, 0, 0, 0, 0, count * many, (elf.shstrndx + extra) * far, 0, 0, 0)
    names = SHN.XINDEX if far else elf.shstrndx + extra
    ehdr = elf.header._replace(e_shoff=len(out), e_shnum=0 if many else count, e_shstrndx=names)
    out[:64] = RECORDS[Ehdr, elf.byte_order].pack(*ehdr)
    return bytes(out) + b"".join(shdr.pack(*item) for item in [first, *headers, index])


def with_many_segments(data: bytes, count: int) -> bytes:
    """The same file with this many program headers, PT_NULL before its own, in a table at its end; PN_XNUM in the ELF header."""
    elf = ElfFile(memoryview(data))
    out = bytearray(data + bytes(-len(data) % 8))
    first = elf.header.e_shoff
    out[first : first + SHDR_SIZE] = RECORDS[Shdr, elf.byte_order].pack(*elf.sections[0].header._replace(sh_info=count))
    out[:64] = RECORDS[Ehdr, elf.byte_order].pack(*elf.header._replace(e_phoff=len(out), e_phnum=PN_XNUM))
    own = data[elf.header.e_phoff : elf.header.e_phoff + elf.phnum * PHDR_SIZE]
    return bytes(out) + bytes((count - elf.phnum) * PHDR_SIZE) + own


def with_table_behind(data: bytes, flag: int = PF.R) -> bytes:
    """The same file with its program headers after all else in the first segment with that flag, which reaches further for them."""
    elf = ElfFile(memoryview(data))
    out = bytearray(data)
    code = RECORDS[Phdr, elf.byte_order]
    first = next(s for s in elf.segments if s.p_type == PT.LOAD and s.p_flags & flag)
    size = elf.phnum * PHDR_SIZE
    offset = align_up(first.p_offset + first.p_filesz, 8)
    end = offset + size - first.p_offset
    assert not any(data[first.p_offset + first.p_filesz : offset + size])
    address = first.p_vaddr + offset - first.p_offset
    moved = {PT.LOAD: first._replace(p_filesz=end, p_memsz=end), PT.PHDR: Phdr(PT.PHDR, 4, offset, address, address, size, size, 8)}
    table = [moved[s.p_type] if s is first or s.p_type == PT.PHDR else s for s in elf.segments]
    out[64 : 64 + size] = bytes(size)
    out[offset : offset + size] = b"".join(code.pack(*segment) for segment in table)
    out[:64] = RECORDS[Ehdr, elf.byte_order].pack(*elf.header._replace(e_phoff=offset))
    return bytes(out)
