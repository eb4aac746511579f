cimport cython

@cython.final
cdef class InstructionReader:
    cdef object teacher
    cdef object disassemble
    cdef bint took
    cdef const unsigned char[::1] data
    cdef Py_ssize_t record_size
    cdef Py_ssize_t id_low_at
    cdef Py_ssize_t id_high_at
    cdef Py_ssize_t length_at
    cdef Py_ssize_t bytes_at
    cdef Py_ssize_t mnemonic_at
    cdef Py_ssize_t operands_at
    cdef const unsigned char[::1] pairs
    cdef int prefix
    cdef unsigned short[::1] slot_of
    cdef unsigned char[::1] names
    cdef unsigned char[::1] looks
    cdef unsigned char[::1] takes
    cdef long long[::1] direct
    cdef long long[::1] by_slot
    cdef list mnemonics
    cdef object needle
    cdef list known
    cdef dict slots
    cdef unsigned long long[::1] pages
    cdef unsigned long long mask
    cdef unsigned long long value
    cdef tuple columns
    cdef unsigned int[::1] offsets
    cdef unsigned int[::1] at
    cdef unsigned int[::1] ends
    cdef unsigned int[::1] effects
    cdef unsigned char[::1] flows
    cdef unsigned long long[::1] addresses
    cdef unsigned long long[::1] taken
    cdef unsigned int[::1] taken_at
    cdef readonly long long consumed
    cdef long long texts

    cdef Py_ssize_t say(self, bytes raw, Py_ssize_t where, unsigned long long address, long long size) except -1
    cdef Py_ssize_t slot(self, bytes raw, Py_ssize_t begin) except -1
    cdef Py_ssize_t meaning(self, bytes raw, Py_ssize_t where, Py_ssize_t slot, unsigned long long address, long long size) except -1
    cdef int is_named(self, Py_ssize_t slot, Py_ssize_t pos) except -1
    cdef int has_needle(self, Py_ssize_t pos) except -1
    cdef Py_ssize_t end(self, Py_ssize_t pos) except -1
    cdef Py_ssize_t last_number(self, Py_ssize_t pos, Py_ssize_t end) except -1
    cdef Py_ssize_t number(self, Py_ssize_t pos) except -1
    cdef int relative(self, Py_ssize_t pos, unsigned long long end) except -1
    cdef Py_ssize_t register(self, Py_ssize_t pos) except -1
    cdef int takes_address(self, int take, Py_ssize_t pos, unsigned long long end) except -1
