cimport cython

@cython.final
cdef class Meaning:
    cdef public unsigned long long what, value, distance
    cdef public bint took
    cdef public int take

@cython.final
cdef class InstructionForms:
    cdef const unsigned char[::1] data
    cdef const unsigned char[::1] one_byte
    cdef const unsigned char[::1] after_0f
    cdef const unsigned char[::1] alike
    cdef const unsigned char[::1] alike_after_0f
    cdef unsigned long long[::1] low
    cdef unsigned long long[::1] high
    cdef unsigned int[::1] whats
    cdef unsigned char[::1] kinds
    cdef unsigned long long mask, spread, key_low, key_high, left_out_low, left_out_high
    cdef Py_ssize_t base, turn, form_size, length, immediate, rex_at, exact_size
    cdef int rex, registers
    cdef bint by_pointer, in_memory, is_wide, is_narrow, has_many
    cdef readonly Py_ssize_t size
    cdef readonly unsigned long long what, number

    cpdef int begin(self, const unsigned char[::1] data) except -1
    cpdef int find(self, Py_ssize_t pos, Py_ssize_t end) except -1
    cpdef int keep(self, Py_ssize_t pos, Py_ssize_t end, Py_ssize_t size, Meaning said) except -1
    cdef int put_form(self, Py_ssize_t pos, int kind, unsigned long long what) except -1
    cdef int put_bytes(self, Py_ssize_t pos, unsigned long long what) except -1
    cdef int put(self, int kind, unsigned long long what) except -1
    cdef Py_ssize_t place(self, Py_ssize_t pos, Py_ssize_t size, unsigned long long tag) except -2
    cdef int parse(self, Py_ssize_t pos, Py_ssize_t end) except -1
    cdef int after_opcode(self, Py_ssize_t pos, Py_ssize_t at, Py_ssize_t end, int operands) except -1
    cdef int leave_out_registers(self, Py_ssize_t pos, Py_ssize_t at, int mode) except -1
    cdef int leave_out_register(self, Py_ssize_t at, int byte, int shift, int in_rex) except -1
    cdef int leave_out(self, Py_ssize_t at, unsigned long long bits) except -1
    cdef unsigned long long displacement(self, Py_ssize_t after, Py_ssize_t width) except? 77
    cdef unsigned long long constant(self, Py_ssize_t after) except? 77
