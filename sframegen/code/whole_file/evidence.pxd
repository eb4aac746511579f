cimport cython

from cfi.search cimport bisect_left
from sframegen.code.function.marks cimport BY_NAME, CONTRADICTS, GOES_ON, SHOWS_ITSELF

@cython.final
cdef class Evidence:
    cdef const unsigned char[::1] live
    cdef set entries
    cdef readonly bint proving
    cdef readonly Py_ssize_t count
    cdef const unsigned long long[::1] marks, at_calls, overrun, end_piece, piece_start, piece_end, end_entry, entry, end_row
    cdef const unsigned long long[::1] row_start, row_word, end_exit, exit_source, exit_target, exit_as_entered, end_call, callee
    cdef const unsigned long long[::1] call_kind, end_taken, taken, end_table, table

    cpdef unsigned long long start(self, Py_ssize_t number) except? 77
    cdef int has_entry_in(self, Py_ssize_t number, addresses) except -1
    cdef int has_known_entry(self, Py_ssize_t number) except -1
    cpdef int is_credible(self, Py_ssize_t number) except -1
    cdef int exits_as_entered(self, Py_ssize_t number) except -1
    cdef int continues_after_calls(self, Py_ssize_t number, callees) except -1
    cdef Py_ssize_t first_row_at(self, Py_ssize_t number, unsigned long long address) except -1
    cdef Py_ssize_t state_at(self, Py_ssize_t number, unsigned long long address) except -2
    cdef list pieces_of(self, Py_ssize_t number)
    cdef list entries_of(self, Py_ssize_t number)
    cdef list taken_by(self, Py_ssize_t number)
    cpdef list callees_of(self, Py_ssize_t number)
