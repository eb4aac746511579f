cimport cython

from sframegen.profile.stacks.numbered cimport Numbered

@cython.final
cdef class CallTree:
    cdef object room
    cdef readonly Numbered nodes
    cdef readonly Numbered rows
    cdef object column
    cdef public unsigned long long[::1] samples
    cdef unsigned long long node_mask

    cpdef Py_ssize_t find_or_add_row(self, unsigned long long node, unsigned long long end, unsigned long long task) except -9
    cpdef add_samples(self, Py_ssize_t row, unsigned long long samples)
    cpdef Py_ssize_t node_of(self, Py_ssize_t row) except -9
    cpdef int end_of(self, Py_ssize_t row) except -9

@cython.final
cdef class PackedFrames:
    cdef readonly Numbered numbers
    cdef public unsigned char[::1] used
