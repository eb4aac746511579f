cimport cython

from sframegen.code.isa.effects cimport BEGIN, CONSTANT, DIRECT, EFFECTS_SHIFT, IN_PAGE, PADDING, PADS, PAGE, RELATIVE, SLOT, STOP

@cython.final
cdef class InstructionReader:
    cdef object meanings, disassemble, needle
    cdef bint took_address
    cdef const unsigned char[::1] data, pairs
    cdef Py_ssize_t record_size, id_low_at, id_high_at, length_at, bytes_at, mnemonic_at, operands_at
    cdef int prefix
    cdef unsigned short[::1] index_of_id
    cdef unsigned char[::1] mnemonic_bytes, always_matters, takes, flows
    cdef long long[::1] direct, by_slot
    cdef list mnemonics, known_meanings
    cdef dict indexes
    cdef unsigned long long[::1] pages, addresses, taken
    cdef unsigned long long mask, value
    cdef tuple columns
    cdef unsigned int[::1] offsets, at, ends, effects, taken_at
    cdef readonly long long consumed
    cdef long long texts

    cdef Py_ssize_t read_record(self, bytes raw, Py_ssize_t record, unsigned long long address, long long size) except -1
    cdef Py_ssize_t mnemonic_index(self, bytes raw, Py_ssize_t begin) except -1
    cdef Py_ssize_t read_meaning(self, bytes raw, Py_ssize_t record, Py_ssize_t index, unsigned long long address, long long size) except -1
    cdef int has_mnemonic(self, Py_ssize_t index, Py_ssize_t pos) except -1
    cdef int has_needle(self, Py_ssize_t pos) except -1
    cdef Py_ssize_t text_end(self, Py_ssize_t pos) except -1
    cdef Py_ssize_t last_number_start(self, Py_ssize_t pos, Py_ssize_t end) except -1
    cdef Py_ssize_t parse_number(self, Py_ssize_t pos) except -1
    cdef int parse_rip_relative(self, Py_ssize_t pos, unsigned long long end) except -1
    cdef Py_ssize_t parse_x_register(self, Py_ssize_t pos) except -1
    cdef int takes_address(self, int take, Py_ssize_t pos, unsigned long long end) except -1
