from sframegen.elf.columns cimport Areas
from sframegen.format.columns cimport Blocks, Functions, Words
from sframegen.format.fre_bytes cimport fre_type_for, is_masked, start_width

cdef extern from *:
    void prefetch "__builtin_prefetch" (const void *address) noexcept

cdef class Groups:
    cdef public unsigned char[::1] may_follow, begins_group, is_joined
    cdef public unsigned int[::1] function_begin, same_rows_as, sharers, joined_size, repeated, group_begin, equal_run, times_chosen
    cdef public unsigned long long[::1] function_block_size, smallest_size
