cimport cython

from sframegen.format.columns cimport Blocks, Functions, Words
from sframegen.format.fre_bytes cimport fde_type_known, fre_type_for, start_width
from sframegen.format.section_bytes cimport Fields

cdef extern from *:
    void prefetch "__builtin_prefetch" (const void *address) noexcept

cdef inline long long slot_of(long long key, long long mask) noexcept

@cython.final
cdef class Output:
    cdef unsigned char[::1] data
    cdef bint big

    cdef Py_ssize_t put(self, Py_ssize_t pos, long long value, Py_ssize_t width) except -1

cdef int put_attribute(
    Output out, Py_ssize_t at, Py_ssize_t function, Functions functions, Words words, Fields fields, Blocks blocks
) except -1
