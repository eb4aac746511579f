from sframegen.elf.columns cimport Areas
from sframegen.format.columns cimport Blocks, Functions, Words
from sframegen.format.fre_bytes cimport fre_type_for, is_masked, start_width

cdef extern from *:
    void prefetch "__builtin_prefetch" (const void *address) noexcept

cdef class Groups:
    cdef public unsigned char[::1] may_follow
    cdef public unsigned char[::1] head
    cdef public unsigned char[::1] several
    cdef public unsigned int[::1] function
    cdef public unsigned int[::1] like
    cdef public unsigned int[::1] sharers
    cdef public unsigned int[::1] joined_size
    cdef public unsigned int[::1] repeated
    cdef public unsigned int[::1] first
    cdef public unsigned int[::1] run
    cdef public unsigned int[::1] chosen
    cdef public unsigned long long[::1] whole
    cdef public unsigned long long[::1] best
