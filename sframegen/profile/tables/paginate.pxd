cimport cython

from sframegen.format.columns cimport Functions

cdef class RuleNumbers:
    cdef public const unsigned short[::1] of_rule
    cdef public const unsigned char[::1] signal
    cdef public const unsigned char[::1] period
    cdef public const unsigned short[::1] without_rows

@cython.final
cdef class Paginator:
    cdef Functions functions
    cdef RuleNumbers numbers
    cdef const unsigned int[::1] order
    cdef unsigned long long max_bytes
    cdef long long max_repeated
    cdef readonly unsigned long long base
    cdef long long budget
    cdef long long start
    cdef long long size
    cdef long long end
    cdef readonly long long pages
    cdef readonly long long rows
    cdef readonly long long left_out
    cdef long long page
    cdef unsigned int last_rule

    cdef Py_ssize_t select_function(self, Py_ssize_t position) except -1
    cdef int append_function(self, unsigned int[::1] index, unsigned int[::1] rows, Py_ssize_t function) except -1
    cdef int append_row(self, unsigned int[::1] index, unsigned int[::1] rows, long long offset, unsigned int rule) except -1
