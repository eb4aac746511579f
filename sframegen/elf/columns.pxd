cimport cython

from cfi.search cimport bisect_right
from sframegen.elf.code_bytes.padding cimport padding_size

cdef extern from *:
    void prefetch "__builtin_prefetch" (const void *address) noexcept

@cython.final
cdef class Spans:
    cdef public unsigned long long[::1] start, end

    cpdef Py_ssize_t number(self, unsigned long long address) except -2
    cdef int begins(self, unsigned long long address) except -1

@cython.final
cdef class Areas:
    cdef const unsigned char[::1] data
    cdef const unsigned short[::1] padding
    cdef public unsigned long long[::1] start, end, segment
    cdef unsigned long long[::1] offset
    cdef public const unsigned char[::1] category

    cdef Py_ssize_t prefetch_byte(self, Py_ssize_t area, unsigned long long address) except -9
    cdef unsigned long long bytes_before(self, Py_ssize_t area, unsigned long long address, unsigned long long count) except? 0
    cdef Py_ssize_t next_area(self, Py_ssize_t area, unsigned long long address) except -1
    cdef Py_ssize_t file_offset(self, Py_ssize_t area, unsigned long long address) except -9
    cdef unsigned long long padding_end(self, Py_ssize_t area, unsigned long long low, unsigned long long high, bint whole) except? 0
