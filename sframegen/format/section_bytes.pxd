cimport cython

from sframegen.base.columns cimport ByteReader
from sframegen.format.fre_bytes cimport fre_type_known, is_masked, start_width, word_size_known, words_size

cdef class Fields:
    cdef readonly long long index_size, start_width, size_at, fre_offset_at, attribute_size
    cdef readonly long long num_fres_at, num_fres_width, info_at, info2_at, rep_size_at, default_rep_size
    cdef readonly long long info_unused, info2_unused, padding_at
    cdef readonly bint attribute_in_block, outermost

cdef class SectionBytes(ByteReader):
    cdef Fields fields
    cdef bint relative
    cdef readonly long long functions
    cdef long long index_at, fres_at, fres_end, sign
    cdef unsigned long long address, mask
    cdef readonly long long entry, block, rows_at, count, attribute_at
    cdef readonly unsigned long long start, size
    cdef readonly int info, info2, rep_size

    @cython.final
    cdef unsigned long long start_of(self, long long function) except? -1
    @cython.final
    cdef bint read_entry(self, long long function) except -1
    @cython.final
    cdef int set_entry(self, long long function, unsigned long long start, unsigned long long size, long long block) except -1
    @cython.final
    cdef int read_attribute(self) except -1

@cython.final
cdef class Seeker(SectionBytes):
    cdef readonly long long function, row_offset, at
    cdef readonly int fault
    cdef public long long scanned

    cdef Py_ssize_t set_fault(self, int fault, long long at) except -9
    cdef Py_ssize_t seek_row(self, unsigned long long pc) except -9
    cdef Py_ssize_t find_row(self, long long offset) except -9
