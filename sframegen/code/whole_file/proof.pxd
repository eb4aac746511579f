cimport cython

from sframegen.code.function.marks cimport BY_NAME, COMES_BACK, CONTRADICTS, JUMPS, KEEPS_FRAME, RETURNS, RETURNS_AS_ENTERED
from sframegen.code.whole_file.evidence cimport Evidence
from sframegen.elf.columns cimport Spans

@cython.final
cdef class Proof:
    cdef Spans ranges
    cdef const long long[::1] owner
    cdef const unsigned char[::1] as_entered
    cdef bint pushes_ra

    cdef Py_ssize_t function_at(self, unsigned long long address) except -2
    cdef int keeps_entry_frame(self, Evidence evidence, Py_ssize_t number) except -1
