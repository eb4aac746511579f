cimport cython

from cfi.search cimport bisect_right
from sframegen.base.columns cimport Fdes, Rows
from sframegen.conversion.resolve cimport PieceColumns
from sframegen.elf.columns cimport Spans
from sframegen.format.columns cimport Functions

cdef class Cies:
    cdef public const unsigned char[::1] flavour
    cdef public const unsigned char[::1] barred

cdef class Alignment:
    cdef public long long period
    cdef public Spans floating
    cdef public Py_ssize_t unaligned

cdef class RuleFates:
    cdef public const unsigned char[::1] fate
    cdef public const unsigned int[::1] value
    cdef public const unsigned char[::1] fde_type
    cdef public const unsigned int[::1] pattern_at
    cdef public const unsigned int[::1] pattern_start
    cdef public const unsigned int[::1] pattern_rule
    cdef public Alignment alignment

cdef class UnsaidColumns:
    cdef public unsigned long long[::1] start
    cdef public unsigned int[::1] size
    cdef public unsigned char[::1] reason

@cython.final
cdef class Splitter:
    cdef Fdes fdes
    cdef Rows rows
    cdef Cies cies
    cdef RuleFates rules
    cdef Functions functions
    cdef UnsaidColumns unsaid
    cdef Py_ssize_t made, stored, left, floating, end
    cdef unsigned long long base, limit

    cdef int cut(self, Py_ssize_t fde, unsigned long long low, unsigned long long limit) except -1
    cdef unsigned long long start_of(self, Py_ssize_t row) noexcept
    cdef Py_ssize_t add_function(self, Py_ssize_t row, unsigned long long begin, int flavour) except -1
    cdef int add_repeated(self, Py_ssize_t pattern, unsigned long long begin, unsigned long long end, int flavour) except -1
    cdef bint floats(self, unsigned long long address) except -1
