from sframegen.elf.columns cimport Areas
from sframegen.format.columns cimport Blocks, Functions, Words
from sframegen.format.fre_bytes cimport fre_type_for, is_masked, start_width

cdef extern from *:
    void prefetch "__builtin_prefetch" (const void *address) noexcept

cdef class Groups:
    cdef public unsigned char[::1] may_follow, head, several
    cdef public unsigned int[::1] function, like, sharers, joined_size, repeated, first, run, chosen
    cdef public unsigned long long[::1] whole, best
