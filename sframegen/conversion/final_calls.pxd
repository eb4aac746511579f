from sframegen.elf.columns cimport Areas
from sframegen.format.columns cimport Functions

cdef class CallForms:
    cdef public const unsigned long long[::1] mask, value
    cdef public const unsigned char[::1] relative
