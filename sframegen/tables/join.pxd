from sframegen.elf.columns cimport Areas
from sframegen.format.columns cimport Blocks, Functions, Words

cdef class Groups:
    cdef public unsigned char[::1] may_follow
    cdef public unsigned int[::1] function
    cdef public unsigned long long[::1] whole
    cdef public unsigned int[::1] first
    cdef public unsigned char[::1] head
    cdef public unsigned char[::1] alone
    cdef public unsigned int[::1] sharers
    cdef public unsigned long long[::1] best
