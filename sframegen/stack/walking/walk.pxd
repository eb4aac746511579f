cimport cython

@cython.final
cdef class Base:
    cdef Py_ssize_t number
    cdef unsigned long long offset
    cdef bint deref

@cython.final
cdef class Described:
    cdef readonly bint signal
    cdef readonly object how
    cdef bint sp_is_cfa
    cdef readonly object failing
    cdef Base cfa, ra, fp

@cython.final
cdef class Walker:
    cdef object abi
    cdef object view
    cdef unsigned long long mask, ra_mask, guess_reach
    cdef unsigned long long[::1] values
    cdef unsigned long long known
    cdef unsigned long long pc, lowest
    cdef bint exact
    cdef Py_ssize_t sp_register, fp_register
    cdef unsigned long long sp_offset
    cdef unsigned long long stack_end
    cdef bint has_stack
    cdef set crossed
    cdef bint little
    cdef const unsigned char[::1] window
    cdef unsigned long long window_start, window_size

    cdef unsigned long long step(self, Described found) except? 999
    cdef bint is_known(self, Py_ssize_t register) except -1
    cdef unsigned long long value_of(self, Py_ssize_t register) except? 999
    cdef unsigned long long place(self, Base base, unsigned long long cfa) except? 999
    cdef unsigned long long word(self, unsigned long long address) except? 999
    cdef unsigned long long byte(self, Py_ssize_t at) except? 999
