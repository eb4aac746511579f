from sframegen.base.columns cimport Fdes
from sframegen.elf.columns cimport Spans

cdef class PieceColumns:
    cdef public unsigned int[::1] fde
    cdef public unsigned long long[::1] start
    cdef public unsigned long long[::1] end
