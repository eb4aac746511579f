cimport cython

from cfi.search cimport bisect_left, bisect_right

@cython.final
cdef class Shown:
    cdef const unsigned char[::1] live
    cdef set entries
    cdef readonly bint proving
    cdef readonly Py_ssize_t count
    cdef const unsigned long long[::1] marks
    cdef const unsigned long long[::1] at_calls
    cdef const unsigned long long[::1] end_piece
    cdef const unsigned long long[::1] piece_start
    cdef const unsigned long long[::1] piece_end
    cdef const unsigned long long[::1] end_entry
    cdef const unsigned long long[::1] entry
    cdef const unsigned long long[::1] end_row
    cdef const unsigned long long[::1] row_start
    cdef const unsigned long long[::1] row_word
    cdef const unsigned long long[::1] end_exit
    cdef const unsigned long long[::1] exit_source
    cdef const unsigned long long[::1] exit_target
    cdef const unsigned long long[::1] exit_as_entered
    cdef const unsigned long long[::1] end_call
    cdef const unsigned long long[::1] callee
    cdef const unsigned long long[::1] call_kind
    cdef const unsigned long long[::1] end_taken
    cdef const unsigned long long[::1] taken
    cdef const unsigned long long[::1] end_table
    cdef const unsigned long long[::1] table

    cpdef unsigned long long start(self, Py_ssize_t number) except? 77
    cdef int is_one_of(self, Py_ssize_t number, addresses) except -1
    cdef int is_entered(self, Py_ssize_t number) except -1
    cpdef int is_credible(self, Py_ssize_t number) except -1
    cdef int keeps_exits(self, Py_ssize_t number) except -1
    cdef int goes_on_after(self, Py_ssize_t number, callees) except -1
    cdef Py_ssize_t row(self, Py_ssize_t number, unsigned long long address, bint after) except -1
    cdef Py_ssize_t state_at(self, Py_ssize_t number, unsigned long long address) except -2
    cdef list taken_by(self, Py_ssize_t number)
    cpdef list callees_of(self, Py_ssize_t number)

@cython.final
cdef class Places:
    cdef const unsigned long long[::1] starts
    cdef const unsigned long long[::1] ends

    cpdef Py_ssize_t number(self, unsigned long long address) except -2
    cdef int begins(self, unsigned long long address) except -1
