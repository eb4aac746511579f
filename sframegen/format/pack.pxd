cimport cython

from sframegen.format.columns cimport Blocks, Functions, Words
from sframegen.format.fre_bytes cimport fde_type_known, fre_type_for, start_width
from sframegen.format.section_bytes cimport Fields

cdef extern from *:
    void prefetch "__builtin_prefetch" (const void *address) noexcept

cdef inline long long slot_of(long long row_hash, long long mask) noexcept

cdef int prefetch_later_functions(Functions functions, const unsigned int[::1] row_hashes, unsigned int[::1] slots, Py_ssize_t function) except -1
cdef Py_ssize_t find_same_before(Functions functions, const unsigned int[::1] row_hashes, unsigned int[::1] slots, Py_ssize_t function) except -1
cdef bint have_same_rows(Functions functions, Py_ssize_t function, Py_ssize_t other) except -1
cdef Py_ssize_t measure_block(Functions functions, Words words, Fields fields, Blocks blocks, Py_ssize_t function) except -2

@cython.final
cdef class OutputBytes:
    cdef unsigned char[::1] data
    cdef bint big

    cdef Py_ssize_t put(self, Py_ssize_t pos, long long value, Py_ssize_t width) except -1

cdef int put_attribute(
    OutputBytes out, Py_ssize_t at, Py_ssize_t function, Functions functions, Words words, Fields fields, Blocks blocks
) except -1
