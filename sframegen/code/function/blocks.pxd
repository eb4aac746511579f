cimport cython

from cfi.search cimport bisect_left, bisect_right
from sframegen.code.function.marks cimport IS_CALLED, IS_LAST, MAY_RETURN, NEVER_RETURNS, UNRESOLVED
from sframegen.code.isa.effects cimport BRANCH, CALL, CONTRADICTION, DIRECT, FLOW_MASK, INDIRECT, INSIDE, JUMP, RETURN, SLOT

@cython.final
cdef class BasicBlocks:
    cdef object call_returns, acts_alike, frames
    cdef dict after_effects, joined, after_calls, facts, known_returns, tables
    cdef const unsigned char[::1] marks, flows
    cdef const unsigned int[::1] at, ends, effects
    cdef unsigned int[::1] bases, code_ends, step_state, step_effects, step_after
    cdef const unsigned long long[::1] addresses
    cdef unsigned long long[::1] starts
    cdef Py_ssize_t pieces, piece, points, size, unknown_state, steps_left, changes, last_row
    cdef readonly Py_ssize_t rows
    cdef readonly unsigned int[::1] row_start, row_end, row_state
    cdef unsigned char[::1] is_leader
    cdef int[::1] state_of, walked_with
    cdef readonly unsigned char[::1] notes
    cdef bint emits_rows, rows_ascend
    cdef readonly bint returns, complete
    cdef list worklist
    cdef set distinct_states
    cdef readonly list exits
    cdef readonly Py_ssize_t contradiction

    cdef Py_ssize_t offset_of(self, unsigned long long address) except -2
    cdef int is_in(self, Py_ssize_t piece, unsigned long long address) except -1
    cdef Py_ssize_t instruction_start(self, Py_ssize_t offset) except -2
    cdef Py_ssize_t piece_at(self, Py_ssize_t offset) except -2
    cpdef unsigned long long address_of(self, Py_ssize_t offset) except? 77
    cpdef Py_ssize_t mark_leader(self, unsigned long long address, bint exact) except -2
    cpdef int propagate_state(self, unsigned long long source, unsigned long long target, Py_ssize_t state) except -1
    cdef int count_change(self, Py_ssize_t state) except -1
    cdef int add_row(self, Py_ssize_t start, Py_ssize_t end, Py_ssize_t state) except -1
    cdef int sort_rows(self) except -1
    cdef int walk_block(self, Py_ssize_t leader) except -1
    cdef Py_ssize_t next_leader(self, Py_ssize_t offset, Py_ssize_t limit) except -1
    cdef Py_ssize_t state_after(self, Py_ssize_t state, Py_ssize_t effects) except -1
    cdef Py_ssize_t walk_call(self, Py_ssize_t point, Py_ssize_t piece, Py_ssize_t state) except -2
    cdef bint may_return(self, Py_ssize_t point) except -1
    cdef int leave_block(self, Py_ssize_t point, int flow, unsigned long long here, unsigned long long end, Py_ssize_t state) except -1
    cdef int facts_of(self, Py_ssize_t state) except -1
