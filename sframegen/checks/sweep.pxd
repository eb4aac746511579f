cimport cython

from sframegen.elf.columns cimport Spans
from sframegen.format.columns cimport Functions

cdef enum:  # sframegen.checks.finding.Verdict
    EQUAL = 0
    ABSENT = 1
    INEXPRESSIBLE = 2
    WRONG = 3
    UNDESCRIBED = 4
    SILENT = 5

@cython.final
cdef class Terms:
    cdef const unsigned char[::1] expressible, compared
    cdef int barred

@cython.final
cdef class VerdictRanges:
    cdef unsigned long long[::1] start, end
    cdef unsigned int[::1] function
    cdef int[::1] expected, given
    cdef unsigned char[::1] flavours
    cdef readonly long long count, total
    cdef unsigned long long last_end
    cdef long long last_expected, last_given
    cdef int last_flavours

    cdef int add(
        self, unsigned long long start, unsigned long long end, Py_ssize_t function, long long expected, long long given, int flavours
    ) except -1

@cython.final
cdef class RuleWalker:
    cdef const unsigned int[::1] order
    cdef Functions functions
    cdef const int[::1] rule_numbers, without_rows
    cdef const unsigned char[::1] flavours, periods
    cdef Py_ssize_t position, row, function
    cdef unsigned long long low, end, period, until
    cdef int flavour

    cdef Py_ssize_t open_function(self, Py_ssize_t position, unsigned long long limit) except -9
    cdef Py_ssize_t rule_at(self, unsigned long long at, unsigned long long limit) except -9
