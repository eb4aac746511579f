cimport cython

from cfi.search cimport bisect_left
from sframegen.code.whole_file.evidence cimport Evidence
from sframegen.elf.columns cimport Spans

@cython.final
cdef class FunctionRanges:
    cdef Spans ranges
    cdef unsigned long long[::1] parent
    cdef const unsigned long long[::1] entries
    cdef dict members

    cdef Py_ssize_t find_root(self, Py_ssize_t number) except -1
    cdef int join_addresses(self, unsigned long long one, unsigned long long other) except -1
    cdef list ranges_of(self, Py_ssize_t number)
    cdef list pieces_of_unit(self, unit)
    cdef list entries_in(self, unit)
