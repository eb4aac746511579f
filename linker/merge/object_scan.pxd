cimport cython

from sframegen.base.columns cimport ByteReader

@cython.final
cdef class ObjectScan(ByteReader):
    cdef Py_ssize_t headers_at, sections, names_at, names_end, sframe
    cdef readonly Py_ssize_t sframe_at, sframe_size
    cdef Py_ssize_t relocations_at, relocations_size, symbols_at, symbols_size
    cdef unsigned long long mask, too_large
    cdef unsigned int[::1] code_numbers
    cdef const unsigned char[::1] sframe_name

    cdef bint read_elf_header(self, long long machine) except -1
    cdef bint is_in_file(self, unsigned long long at, unsigned long long size) except -1
    cdef Py_ssize_t read_sections(self, unsigned long long[::1] fields) except -9
    cdef bint read_relocations(self, unsigned long long[::1] fields) except -1
    cdef Py_ssize_t name_length(self, Py_ssize_t name) except -1
    cdef bint is_named_sframe(self, Py_ssize_t name, Py_ssize_t length) except -1
