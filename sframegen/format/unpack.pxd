cimport cython

from sframegen.format.columns cimport Functions
from sframegen.format.fre_bytes cimport fde_type_of, fre_type_known, is_masked, start_width, without_fre_type, word_size_known, words_size
from sframegen.format.section_bytes cimport SectionBytes

@cython.final
cdef class Unpacker(SectionBytes):
    cdef readonly int fault
    cdef readonly long long at, first, first_row, rows
    cdef object view, numbering
    cdef Functions columns
    cdef unsigned char[::1] attribute
    cdef unsigned long long[::1] block_at
    cdef unsigned int[::1] row_at
    cdef Py_ssize_t slot_mask
    cdef unsigned char[::1] slot_bytes, slot_type
    cdef unsigned int[::1] slot_rule

    cdef int set_fault(self, int fault, long long at) except -1
