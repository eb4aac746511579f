cimport cython

from cfi.search cimport bisect_right
from sframegen.base.columns cimport Fdes, Rows
from sframegen.elf.columns cimport Spans
from sframegen.format.columns cimport Functions

cdef enum:  # cfi.expression
    PC_PERIOD = 16

cdef enum:  # sframegen.conversion.split.RuleOutcome
    ROW = 0
    REPEATED = 1
    LEFT_OUT = 2

cdef class CieColumns:
    cdef public const unsigned char[::1] frame_flags, reason

cdef class RuleColumns:
    cdef public const unsigned char[::1] outcome, fde_type
    cdef public const unsigned int[::1] value, pattern_at, pattern_start, pattern_rule

@cython.final
cdef class Splitter:
    cdef Fdes fdes
    cdef Rows rows
    cdef CieColumns cies
    cdef RuleColumns rules
    cdef Functions functions
    cdef unsigned long long[::1] uncovered_start
    cdef unsigned int[::1] uncovered_size
    cdef unsigned char[::1] uncovered_reason
    cdef Spans floating
    cdef Py_ssize_t function_count, row_count, uncovered_count, floating_range, end, unaligned_reason
    cdef unsigned long long base, limit

    cdef int split_fde_range(self, Py_ssize_t fde, unsigned long long low, unsigned long long limit) except -1
    cdef unsigned long long row_address(self, Py_ssize_t row) noexcept
    cdef Py_ssize_t add_function(self, Py_ssize_t row, unsigned long long begin, int frame_flags) except -1
    cdef int add_repeated(self, Py_ssize_t pattern, unsigned long long begin, unsigned long long end, int frame_flags) except -1
    cdef bint has_unknown_residue(self, unsigned long long address) except -1
