cimport cython

from cfi.search cimport bisect_right
from sframegen.format.fre_bytes cimport (
    fde_type_known,
    fde_type_of,
    fre_type_known,
    is_masked,
    start_width,
    word_size_known,
    words_size,
)
from sframegen.format.section_bytes cimport SectionBytes

@cython.final
cdef class SectionWalk(SectionBytes):
    cdef long long kept
    cdef readonly long long[::1] counts, offsets
    cdef readonly unsigned long long[::1] addresses
    cdef unsigned int[::1] slots
    cdef readonly long long[::1] rule_at, rule_uses
    cdef readonly unsigned char[::1] rule_type
    cdef readonly unsigned long long[::1] rule_address
    cdef readonly long long rules
    cdef readonly long long overflow  # FREs whose rule found no room
    cdef readonly long long stored  # FREs, those of a shared block once
    cdef readonly long long claimed  # FREs, as often as functions claim them
    cdef readonly long long without_rows  # functions that have bytes, but no FREs
    cdef readonly long long far  # functions more than 2 GiB from the section's first byte
    cdef readonly long long wrapped  # functions on the other side of the address space's end
    cdef readonly long long divides_by_zero  # functions that have bytes, and repeat with a period of 0
    cdef readonly long long divides_with_rows  # those of them whose FREs can be read
    cdef readonly bint shared  # some functions have one block
    cdef long long last  # start of the last FRE of the block that was walked

    cdef int count_breach(self, Py_ssize_t rule, long long offset, unsigned long long address) except -1
    cdef Py_ssize_t walk_rows(self) except -9
    cdef int record_rule(self, Py_ssize_t at, Py_ssize_t end, unsigned long long address) except -1
