cimport cython

from cfi.search cimport bisect_left, bisect_right

@cython.final
cdef class Blocks:
    cdef object asked
    cdef object frames
    cdef dict moved, met, called, facts, known_targets, known_slots
    cdef const unsigned char[::1] marks
    cdef const unsigned char[::1] flows
    cdef const unsigned int[::1] at
    cdef const unsigned int[::1] ends
    cdef const unsigned int[::1] effects
    cdef const unsigned long long[::1] addresses
    cdef Py_ssize_t pieces, piece, points, size
    cdef readonly Py_ssize_t rows
    cdef unsigned long long[::1] starts
    cdef unsigned int[::1] bases
    cdef unsigned int[::1] code_ends
    cdef unsigned int[::1] step_state
    cdef unsigned int[::1] step_effects
    cdef unsigned int[::1] step_after
    cdef unsigned char[::1] leads
    cdef int[::1] state_of
    cdef int[::1] walked_with
    cdef readonly unsigned char[::1] notes
    cdef readonly unsigned int[::1] row_start
    cdef readonly unsigned int[::1] row_end
    cdef readonly unsigned int[::1] row_state
    cdef Py_ssize_t nothing
    cdef bint emits, ascend
    cdef readonly bint returns
    cdef list work
    cdef set different
    cdef readonly list exits
    cdef Py_ssize_t steps, changes, last_row
    cdef readonly Py_ssize_t contradiction

    cdef Py_ssize_t place(self, unsigned long long address) except -2
    cdef int is_in(self, Py_ssize_t piece, unsigned long long address) except -1
    cdef Py_ssize_t begin_of(self, Py_ssize_t place) except -2
    cdef Py_ssize_t piece_of(self, Py_ssize_t place) except -2
    cpdef unsigned long long address_of(self, Py_ssize_t place) except? 77
    cdef Py_ssize_t lead(self, unsigned long long address, bint exact) except -2
    cdef int reach(self, unsigned long long source, unsigned long long target, Py_ssize_t state) except -1
    cdef int change(self, Py_ssize_t state) except -1
    cdef int row(self, Py_ssize_t start, Py_ssize_t end, Py_ssize_t state) except -1
    cdef int sort_rows(self) except -1
    cdef Py_ssize_t first_point(self, Py_ssize_t place) except -1
    cdef int block(self, Py_ssize_t leader) except -1
    cdef Py_ssize_t next_leader(self, Py_ssize_t place, Py_ssize_t limit) except -1
    cdef Py_ssize_t after(self, Py_ssize_t state, Py_ssize_t effects) except -1
    cdef Py_ssize_t call(self, Py_ssize_t point, Py_ssize_t piece, Py_ssize_t state) except -2
    cdef int comes_back(self, Py_ssize_t point) except -1
    cdef int leave(self, Py_ssize_t point, int flow, unsigned long long here, unsigned long long end, Py_ssize_t state) except -1
    cdef int facts_of(self, Py_ssize_t state) except -1
