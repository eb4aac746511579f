cimport cython

from cfi.search cimport bisect_right
from sframegen.base.columns cimport Fdes, Rows
from sframegen.elf.columns cimport Spans
from sframegen.format.columns cimport Functions

cdef enum:  # cfi.expression
    PC_PERIOD = 16

cdef enum:  # sframegen.conversion.split.Fate
    ROW = 0
    REPEATED = 1
    LEFT_OUT = 2

cdef class Cies:
    cdef public const unsigned char[::1] flavour, barred

cdef class RuleFates:
    cdef public const unsigned char[::1] fate, fde_type
    cdef public const unsigned int[::1] value, pattern_at, pattern_start, pattern_rule

@cython.final
cdef class Splitter:
    cdef Fdes fdes
    cdef Rows rows
    cdef Cies cies
    cdef RuleFates rules
    cdef Functions functions
    cdef unsigned long long[::1] unsaid_start
    cdef unsigned int[::1] unsaid_size
    cdef unsigned char[::1] unsaid_reason
    cdef Spans floating
    cdef Py_ssize_t made, stored, left, floating_range, end, unaligned
    cdef unsigned long long base, limit

    cdef int cut(self, Py_ssize_t fde, unsigned long long low, unsigned long long limit) except -1
    cdef unsigned long long start_of(self, Py_ssize_t row) noexcept
    cdef Py_ssize_t add_function(self, Py_ssize_t row, unsigned long long begin, int flavour) except -1
    cdef int add_repeated(self, Py_ssize_t pattern, unsigned long long begin, unsigned long long end, int flavour) except -1
    cdef bint floats(self, unsigned long long address) except -1
