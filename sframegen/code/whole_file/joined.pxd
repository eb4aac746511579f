cimport cython

from cfi.search cimport bisect_left
from sframegen.code.whole_file.shown cimport Places, Shown

@cython.final
cdef class Joined:
    cdef Places ranges
    cdef unsigned long long[::1] parent
    cdef const unsigned long long[::1] entries
    cdef dict members

    cdef Py_ssize_t root(self, Py_ssize_t number) except -1
    cdef int together(self, unsigned long long one, unsigned long long other) except -1
    cdef list unit(self, Py_ssize_t number)
    cdef bint is_range(self, Shown shown, Py_ssize_t piece, Py_ssize_t number) except -1
    cdef bint has_entries(self, Shown shown, Py_ssize_t function, Py_ssize_t number, unit) except -1
    cdef Py_ssize_t entries_match(self, Shown shown, Py_ssize_t place, Py_ssize_t end, Py_ssize_t number) except -2
    cdef Py_ssize_t first_entry(self, unsigned long long address) except -1
