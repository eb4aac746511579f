"""Reads the headers of an object of the usual form without Python objects for each of them, because a merge opens thousands.

Assemblers write this form: one SFrame section, with one relocation for each function, in order. For all other objects, and for
damaged ones, the scan fails, and `ElfFile` and `described_sections` read them and report errors. Compiled; types: object_scan.pxd.
Numbers are literals because compiled code would look their names up: 64 is the size of an ELF header and of a section header, 24
that of a relocation (Elf64_Rela) and of a symbol (Elf64_Sym), 6 is FIELDS.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    import cython
except ImportError:
    from sframegen.base import cython_shadow as cython  # type: ignore[no-redef]

from sframegen.base.columns import ByteReader, zeros

if TYPE_CHECKING:
    from sframegen.base.columns import Bytes, Column

COMPILED: bool = cython.compiled

UNUSUAL = -1
FIELDS = 6  # numbers for each code section, as `ObjectScan.read` writes them


class ObjectScan(ByteReader):
    """A scanner that reads one object after the other. After `read`, it has the SFrame section's file offset and size."""

    def __init__(self) -> None:
        ByteReader.__init__(self, b"", False)
        self.headers_at = self.sections = self.names_at = self.names_end = 0
        self.sframe = self.sframe_at = self.sframe_size = 0
        self.relocations_at = self.relocations_size = 0
        self.symbols_at = self.symbols_size = 0
        self.mask = 0xFFFFFFFFFFFFFFFF  # of an address
        self.too_large = 1 << 63  # a size that no file has
        self.code_numbers = zeros("I", 0xFF00)  # section number -> its number among the code sections, from 1; 0 for data
        self.sframe_name = b".sframe"

    @cython.locals(fields="unsigned long long[::1]")
    def read(self, data: Bytes, big: bool, machine: int, fields: Column) -> int:
        """Read the headers of an object for a machine. Returns the number of its code sections, or UNUSUAL.

        `fields`: gets six numbers for each code section: its number, its name's file offset and length, its file offset, its size,
        and the size of its relocations.
        """
        ByteReader.__init__(self, data, big)
        if not self.read_elf_header(machine):
            return -1
        code_count: cython.Py_ssize_t = self.read_sections(fields)
        return code_count if code_count >= 0 and self.read_relocations(fields) else -1

    def read_elf_header(self, machine: cython.longlong) -> cython.bint:
        """Read the ELF header, and locate the section names. Return False if they do not have the usual form."""
        names: cython.Py_ssize_t  # the number of the section of section names, then the file offset of its header
        if self.length < 64 or self.data[0] != 0x7F or self.data[1] != 0x45 or self.data[2] != 0x4C or self.data[3] != 0x46:
            return False
        if self.data[4] != 2 or self.data[5] != (2 if self.big else 1) or self.data[6] != 1:  # ELFCLASS64, byte order, EV_CURRENT
            return False
        if self.number(16, 2) != 1 or self.number(18, 2) != machine:  # e_type is not ET_REL, e_machine
            return False
        if self.number(32, 8) != 0 or self.number(56, 2) != 0 or self.number(58, 2) != 64:  # e_phoff, e_phnum, e_shentsize
            return False
        self.sections = self.number(60, 2)  # e_shnum
        names = self.number(62, 2)  # e_shstrndx
        if names == 0 or names >= self.sections or self.sections >= 0xFF00:
            return False
        if not self.is_in_file(self.number(40, 8), self.sections * 64):  # e_shoff
            return False
        self.headers_at = self.number(40, 8)
        names = self.headers_at + names * 64
        if not self.is_in_file(self.number(names + 24, 8), self.number(names + 32, 8)):  # sh_offset, sh_size
            return False
        self.names_at = self.number(names + 24, 8)
        self.names_end = self.names_at + self.number(names + 32, 8)
        return True

    def is_in_file(self, at: cython.ulonglong, size: cython.ulonglong) -> cython.bint:
        length: cython.ulonglong = self.length
        return at <= length and size <= length - at

    def read_sections(self, fields: Column) -> cython.Py_ssize_t:
        """Find the code sections, the SFrame section and the symbol table. Returns the number of code sections, or UNUSUAL."""
        section: cython.Py_ssize_t
        header: cython.Py_ssize_t
        section_type: cython.longlong
        flags: cython.longlong
        name: cython.Py_ssize_t
        length: cython.Py_ssize_t
        at: cython.ulonglong
        size: cython.ulonglong
        total_size: cython.ulonglong = 0
        name_bytes_left: cython.Py_ssize_t = 0x10000  # of section names; other readers have the same limit
        code_count: cython.Py_ssize_t = 0
        self.sframe = self.symbols_at = self.symbols_size = 0
        for section in range(self.sections):
            header = self.headers_at + section * 64
            self.code_numbers[section] = 0
            name = self.names_at + self.number(header, 4)  # sh_name
            if name >= self.names_end:
                return -1
            length = self.name_length(name)
            name_bytes_left -= length
            section_type = self.number(header + 4, 4)  # sh_type
            flags = self.number(header + 8, 8) & 0x806  # SHF_COMPRESSED | SHF_ALLOC | SHF_EXECINSTR
            at = self.number(header + 24, 8)  # sh_offset
            size = self.number(header + 32, 8)
            if section_type == 8 or (size == 0 and section_type != 2):  # SHT_NOBITS, SHT_SYMTAB
                continue
            if section_type == 0 or size == 0:  # SHT_NULL
                return -1
            total_size += size if self.is_in_file(at, size) else self.too_large
            if name_bytes_left < 0 or total_size > self.length:
                return -1
            if flags & 0x800 and (flags & 6 == 6 or section_type == 2):  # compressed code or symbols
                return -1
            if section_type == 0x6FFFFFF4:  # SHT_GNU_SFRAME
                if self.sframe or flags & 0x800 or self.number(header + 16, 8) != 0:  # a second one, compressed, or with sh_addr
                    return -1
                self.sframe = section
                self.sframe_at = at
                self.sframe_size = size
            elif section_type == 1 and self.is_named_sframe(name, length):  # SHT_PROGBITS: from an older assembler
                return -1
            elif section_type == 2 and self.symbols_at == 0:  # SHT_SYMTAB
                self.symbols_at = at
                self.symbols_size = size
            if flags & 6 == 6:  # SHF_ALLOC | SHF_EXECINSTR
                if (code_count + 1) * 6 > len(fields) or (length > 1 and self.data[name + 1] == 0x7A):  # .zdebug is compressed
                    return -1
                fields[code_count * 6] = section
                fields[code_count * 6 + 1] = name
                fields[code_count * 6 + 2] = length
                fields[code_count * 6 + 3] = at
                fields[code_count * 6 + 4] = size
                fields[code_count * 6 + 5] = 0
                code_count += 1
                self.code_numbers[section] = code_count
        return code_count if self.sframe else -1

    def read_relocations(self, fields: Column) -> cython.bint:
        """Locate the relocations of the SFrame section, and add up the sizes of the relocations of each code section."""
        section: cython.Py_ssize_t
        header: cython.Py_ssize_t
        target: cython.Py_ssize_t
        self.relocations_at = self.relocations_size = 0
        for section in range(self.sections):
            header = self.headers_at + section * 64
            if self.number(header + 4, 4) != 4:  # SHT_RELA
                if self.number(header + 4, 4) == 9 or self.number(header + 8, 8) & 0x40:  # SHT_REL, SHF_INFO_LINK: another form
                    return False
                continue
            target = self.number(header + 44, 4)  # sh_info: the section that is relocated
            if target < self.sections and self.code_numbers[target]:
                fields[(self.code_numbers[target] - 1) * 6 + 5] += self.number(header + 32, 8)
            if target == self.sframe:
                if self.relocations_size or self.number(header + 8, 8) & 0x800:
                    return False
                self.relocations_at = self.number(header + 24, 8)
                self.relocations_size = self.number(header + 32, 8)
        return True

    def name_length(self, name: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Return the length of a section's name."""
        at: cython.Py_ssize_t = name
        while at < self.names_end and self.data[at]:
            at += 1
        return at - name

    def is_named_sframe(self, name: cython.Py_ssize_t, length: cython.Py_ssize_t) -> cython.bint:
        at: cython.Py_ssize_t
        if length != 7:
            return False
        for at in range(7):
            if self.data[name + at] != self.sframe_name[at]:
                return False
        return True

    @cython.locals(numbers="unsigned short[::1]", offsets="unsigned long long[::1]")
    def locate_functions(self, index_at: int, step: int, relative: bool, kind: int, numbers: Column, offsets: Column) -> bool:
        """Fill in each function's section number and offset, as in a DescribedSection. Return False without the usual form.

        `index_at`: offset of the FDE index in the SFrame section. `step`: bytes of an entry. `relative`: if starts count from
        their own fields. `kind`: relocation type.
        """
        function: cython.Py_ssize_t
        at: cython.Py_ssize_t
        section: cython.Py_ssize_t
        symbol: cython.longlong
        entry: cython.ulonglong = index_at
        length: cython.ulonglong = self.length
        value: cython.ulonglong
        addend: cython.ulonglong
        size: cython.ulonglong
        width: cython.ulonglong = step
        expected_type: cython.longlong = kind
        from_entry: cython.bint = relative
        if self.relocations_size != len(numbers) * 24:
            return False
        for function in range(len(numbers)):
            at = self.relocations_at + function * 24
            symbol = self.number(at + (8 if self.big else 12), 4)  # the upper half of r_info; the lower half is the type
            if self.number(at, 8) != entry:
                return False
            if symbol == 0 or self.number(at + (12 if self.big else 8), 4) != expected_type:
                return False
            addend = self.number(at + 16, 8)  # r_addend
            if symbol >= self.symbols_size // 24:
                return False
            at = self.symbols_at + symbol * 24
            section = self.number(at + 6, 2)  # st_shndx
            value = self.number(at + 8, 8)  # st_value
            if section == 0 or section >= self.sections or value > length or (addend > length and self.mask - addend > length):
                return False
            value = (value + addend - (0 if from_entry else entry)) & self.mask
            size = self.number(self.headers_at + section * 64 + 32, 8)
            if value > size:
                return False
            numbers[function] = section
            offsets[function] = value
            entry += width
        return True
