cdef class Spans:
    cdef public unsigned long long[::1] start
    cdef public unsigned long long[::1] end

cdef class Areas:
    cdef public const unsigned char[::1] data
    cdef public const unsigned short[::1] padding
    cdef public unsigned long long[::1] start
    cdef public unsigned long long[::1] end
    cdef public unsigned long long[::1] offset
    cdef public const unsigned char[::1] fate
