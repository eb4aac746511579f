"""Reads the headers of an object of the usual form without making a Python object for each: a merge opens thousands. Compiled.

The usual form is what assemblers write: one SFrame section, with one relocation for each function, in order. Of other objects, and
of damaged ones, nothing is said here: `ElfFile` and `described_sections` read them, and name what is wrong. Types: object_scan.pxd.
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
FIELDS = 6  # numbers for each code section: see `ObjectScan.read`


class ObjectScan(ByteReader):
    """A scanner that reads one object after the other. After `read` it has the SFrame section's place and size."""

    def __init__(self) -> None:
        ByteReader.__init__(self, b"", False)
        self.headers_at = self.sections = self.names_at = self.names_end = 0
        self.sframe = self.sframe_at = self.sframe_size = 0
        self.relocations_at = self.relocations_size = 0
        self.symbols_at = self.symbols_size = 0
        self.mask = 0xFFFFFFFFFFFFFFFF
        self.no_limit = 1 << 63
        self.code_of = zeros("I", 0xFF00)  # by section: its number among those of code, counted from 1; else 0
        self.sframe_name = b".sframe"

    @cython.locals(found="unsigned long long[::1]")
    def read(self, data: Bytes, big: bool, machine: int, found: Column) -> int:
        """Read the headers of an object for a machine. Returns the number of its sections of code, or UNUSUAL.

        `found`: six numbers of each: its number, the place and the length of its name, its place, its size, and the bytes of its
        relocations. Places are offsets in the file.
        """
        code: cython.Py_ssize_t
        ByteReader.__init__(self, data, big)
        if not self.begins_well(machine):
            return -1
        code = self.read_sections(found)
        return code if code >= 0 and self.read_relocations(found) else -1

    def begins_well(self, machine: cython.longlong) -> cython.bint:
        """Read the ELF header and the place of section names; return False if they do not have the usual form."""
        strings: cython.Py_ssize_t
        if self.length < 64 or self.data[0] != 0x7F or self.data[1] != 0x45 or self.data[2] != 0x4C or self.data[3] != 0x46:
            return False
        if self.data[4] != 2 or self.data[5] != (2 if self.big else 1) or self.data[6] != 1:
            return False
        if self.number(16, 2) != 1 or self.number(18, 2) != machine:  # ET_REL
            return False
        if self.number(32, 8) != 0 or self.number(56, 2) != 0 or self.number(58, 2) != 64:  # program headers; size of a header
            return False
        self.sections = self.number(60, 2)
        strings = self.number(62, 2)
        if strings == 0 or strings >= self.sections or self.sections >= 0xFF00:
            return False
        if not self.is_inside(self.number(40, 8), self.sections * 64):
            return False
        self.headers_at = self.number(40, 8)
        strings = self.headers_at + strings * 64
        if not self.is_inside(self.number(strings + 24, 8), self.number(strings + 32, 8)):
            return False
        self.names_at = self.number(strings + 24, 8)
        self.names_end = self.names_at + self.number(strings + 32, 8)
        return True

    def is_inside(self, at: cython.ulonglong, size: cython.ulonglong) -> cython.bint:
        length: cython.ulonglong = self.length
        return at <= length and size <= length - at

    def read_sections(self, found: Column) -> cython.Py_ssize_t:
        """Find the code sections, the SFrame section and the symbol table."""
        section: cython.Py_ssize_t
        header: cython.Py_ssize_t
        kind: cython.longlong
        flags: cython.longlong
        name: cython.Py_ssize_t
        length: cython.Py_ssize_t
        at: cython.ulonglong
        size: cython.ulonglong
        total: cython.ulonglong = 0
        left: cython.Py_ssize_t = 0x10000  # bytes of names: strings.py accepts as many of any table
        code: cython.Py_ssize_t = 0
        self.sframe = self.symbols_at = self.symbols_size = 0
        for section in range(self.sections):
            header = self.headers_at + section * 64
            self.code_of[section] = 0
            name = self.names_at + self.number(header, 4)
            if name >= self.names_end:
                return -1
            length = self.length_of(name)
            left -= length
            kind = self.number(header + 4, 4)
            flags = self.number(header + 8, 8) & 0x806  # SHF_COMPRESSED | SHF_ALLOC | SHF_EXECINSTR
            at = self.number(header + 24, 8)
            size = self.number(header + 32, 8)
            if kind == 8 or (size == 0 and kind != 2):  # SHT_NOBITS, SHT_SYMTAB
                continue
            if kind == 0 or size == 0:  # SHT_NULL
                return -1
            total += size if self.is_inside(at, size) else self.no_limit
            if left < 0 or total > self.length or (flags & 0x800 and (flags & 6 == 6 or kind == 2)):
                return -1
            if kind == 0x6FFFFFF4:  # SHT_GNU_SFRAME
                if self.sframe or flags & 0x800 or self.number(header + 16, 8) != 0:
                    return -1
                self.sframe = section
                self.sframe_at = at
                self.sframe_size = size
            elif kind == 1 and self.is_named_sframe(name, length):  # SHT_PROGBITS: from an older assembler
                return -1
            elif kind == 2 and self.symbols_at == 0:  # SHT_SYMTAB
                self.symbols_at = at
                self.symbols_size = size
            if flags & 6 == 6:
                if (code + 1) * 6 > len(found) or (length > 1 and self.data[name + 1] == 0x7A):  # .zdebug is compressed
                    return -1
                found[code * 6] = section
                found[code * 6 + 1] = name
                found[code * 6 + 2] = length
                found[code * 6 + 3] = at
                found[code * 6 + 4] = size
                found[code * 6 + 5] = 0
                code += 1
                self.code_of[section] = code
        return code if self.sframe else -1

    def read_relocations(self, found: Column) -> cython.bint:
        """Find the relocations of the SFrame section, and count those of the code."""
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
            target = self.number(header + 44, 4)
            if target < self.sections and self.code_of[target]:
                found[(self.code_of[target] - 1) * 6 + 5] += self.number(header + 32, 8)
            if target == self.sframe:
                if self.relocations_size or self.number(header + 8, 8) & 0x800:
                    return False
                self.relocations_at = self.number(header + 24, 8)
                self.relocations_size = self.number(header + 32, 8)
        return True

    def length_of(self, name: cython.Py_ssize_t) -> cython.Py_ssize_t:
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

    @cython.locals(number="unsigned short[::1]", offset="unsigned long long[::1]")
    def locate_functions(self, index_at: int, step: int, relative: bool, kind: int, number: Column, offset: Column) -> bool:
        """Find the section and the offset of each function, as `Described` has them. False: they are not of the usual form.

        `index_at`: place of the index in the SFrame section. `step`: bytes of an entry. `relative`: as the section's. `kind`: type
        of the relocations.
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
        wanted: cython.longlong = kind
        from_entry: cython.bint = relative
        if self.relocations_size != len(number) * 24:
            return False
        for function in range(len(number)):
            at = self.relocations_at + function * 24
            symbol = self.number(at + (8 if self.big else 12), 4)
            if self.number(at, 8) != entry:
                return False
            if symbol == 0 or self.number(at + (12 if self.big else 8), 4) != wanted:
                return False
            addend = self.number(at + 16, 8)
            if symbol >= self.symbols_size // 24:
                return False
            at = self.symbols_at + symbol * 24
            section = self.number(at + 6, 2)
            value = self.number(at + 8, 8)
            if section == 0 or section >= self.sections or value > length or (addend > length and self.mask - addend > length):
                return False
            value = (value + addend - (0 if from_entry else entry)) & self.mask
            size = self.number(self.headers_at + section * 64 + 32, 8)
            if value > size:
                return False
            number[function] = section
            offset[function] = value
            entry += width
        return True
