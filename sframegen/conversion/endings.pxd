from sframegen.elf.columns cimport Areas, Spans
from sframegen.format.columns cimport Functions

cdef class CallForms:
    cdef public const unsigned long long[::1] mask
    cdef public const unsigned long long[::1] value
    cdef public const unsigned char[::1] relative

cdef class FoundCalls:
    cdef public unsigned int[::1] function
    cdef public unsigned int[::1] padded_size
