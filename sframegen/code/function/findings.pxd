cimport cython

from cfi.search cimport bisect_right
from sframegen.code.function.blocks cimport Blocks

@cython.final
cdef class Numbers:
    cdef unsigned long long[::1] values
    cdef Py_ssize_t count

    cdef int append(self, unsigned long long value) except -1
    cpdef object column(self)

@cython.final
cdef class Findings:
    cdef object outside
    cdef set stubs
    cdef dict callees_by_slot
    cdef const unsigned long long[::1] code_starts
    cdef const unsigned long long[::1] code_ends
    cdef object frames
    cdef dict numbers, callees
    cdef const unsigned long long[::1] words
    cdef list states
    cdef readonly Numbers marks, at_calls, overrun
    cdef readonly Numbers end_piece, end_entry, end_row, end_exit, end_call, end_taken, end_table
    cdef readonly Numbers piece_start, piece_end, entry, row_start, row_word
    cdef readonly Numbers exit_source, exit_target, exit_as_entered, callee, call_kind, taken, table

    cdef int end_function(self, unsigned long long marks, entries) except -1
    cdef unsigned long long add_points(self, Blocks blocks) except? 77
    cdef int note_call(self, Blocks blocks, Py_ssize_t point) except -1
    cdef int add_calls(self) except -1
    cdef int add_rows(self, Blocks blocks) except -1
    cdef Py_ssize_t number(self, Py_ssize_t state) except -1
    cdef int add_taken(self, list takes) except -1
    cdef int is_code(self, unsigned long long address) except -1
    cdef int reaches(self, unsigned long long address) except -1
