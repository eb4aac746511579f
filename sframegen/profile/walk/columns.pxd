cimport cython

@cython.final
cdef class SpanColumns:
    cdef public const unsigned long long[::1] start
    cdef public const unsigned long long[::1] end
    cdef public const unsigned long long[::1] bias
    cdef public const unsigned int[::1] file

@cython.final
cdef class TableColumns:
    cdef public const unsigned int[::1] words
    cdef public unsigned long long base
    cdef public unsigned long long pages
    cdef public unsigned long long index_at
    cdef public unsigned long long rows_at
    cdef public unsigned long long rules_at
    cdef public unsigned long long rows
    cdef public unsigned long long rules
    cdef public bint guessed

@cython.final
cdef class MachineColumns:
    cdef public int sp
    cdef public int fp
    cdef public long long sp_offset
    cdef public long long context_pc
    cdef public const long long[::1] context_place
    cdef public const unsigned int[::1] guess
    cdef public const unsigned int[::1] signal
    cdef public bint sp_is_cfa
