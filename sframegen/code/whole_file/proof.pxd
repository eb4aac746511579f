cimport cython

from sframegen.code.whole_file.shown cimport Places, Evidence

@cython.final
cdef class Proof:
    cdef Places ranges
    cdef const long long[::1] owner
    cdef const unsigned char[::1] as_entered
    cdef bint pushes_ra

    cdef Py_ssize_t owner_of(self, unsigned long long address) except -2
    cdef int holds(self, Evidence shown, Py_ssize_t number) except -1
