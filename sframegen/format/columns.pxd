cdef class Functions:
    cdef public unsigned long long[::1] start
    cdef public unsigned int[::1] size
    cdef public unsigned short[::1] kind
    cdef public unsigned int[::1] first_row, row_start, row_rule

cdef class Words:
    cdef public const unsigned int[::1] rule_at
    cdef public const unsigned char[::1] rule_bytes, kind_bytes

cdef class Blocks:
    cdef public unsigned char[::1] fre_type
    cdef public unsigned long long[::1] size, at
    cdef public unsigned int[::1] owner
