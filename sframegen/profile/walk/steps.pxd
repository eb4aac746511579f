cimport cython

from sframegen.profile.walk.columns cimport MachineColumns, SpanColumns, TableColumns

@cython.final
cdef class Steps:
    cdef MachineColumns machine
    cdef object code
    cdef list tables
    cdef public unsigned long long ra_mask
    cdef public unsigned long long[::1] frames
    cdef public unsigned long long[::1] values
    cdef unsigned long long[::1] saved
    cdef public unsigned long long known
    cdef public unsigned long long pc
    cdef unsigned long long lowest, stack_start, word, mask, address_mask, guess_reach
    cdef public bint exact
    cdef public bint guessed
    cdef bint elsewhere
    cdef const unsigned char[::1] stack
    cdef public Py_ssize_t depth
    cdef public Py_ssize_t missing
    cdef Py_ssize_t span
    cdef int flags, cfa_register, ra_register, fp_register
    cdef long long cfa_offset, ra_offset, fp_offset

    cdef int frame(self, SpanColumns spans) except -9
    cdef bint find_span(self, SpanColumns spans, unsigned long long address) except -9
    cdef Py_ssize_t find_rule(self, unsigned long long file, unsigned long long address) except -9
    cdef int set_rule(self, const unsigned int[::1] words) except -9
    cdef Py_ssize_t extended(self, Py_ssize_t word) except? -9
    cdef bint is_known(self, int register) except -9
    cdef int read(self, unsigned long long address) except -9
    cdef unsigned long long byte(self, Py_ssize_t at) except? 999
    cdef bint is_elsewhere(self, unsigned long long sp) except -9
    cdef int step(self, SpanColumns spans, bint guess) except -9
    cdef bint returns_to(self, SpanColumns spans, unsigned long long pc) except -9
    cdef unsigned long long interrupted(self, unsigned long long pc) except? 999
