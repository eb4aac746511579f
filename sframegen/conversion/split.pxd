from cfi.search cimport bisect_right
from cfi.columns cimport Fdes, Rows
from sframegen.conversion.resolve cimport PieceColumns
from sframegen.elf.columns cimport Spans
from sframegen.format.columns cimport Functions

cdef class Cies:
    cdef public const unsigned char[::1] flavour
    cdef public const unsigned char[::1] barred

cdef class Alignment:
    cdef public long long period
    cdef public Spans floating
    cdef public Py_ssize_t unaligned

cdef class RuleFates:
    cdef public const unsigned char[::1] fate
    cdef public const unsigned int[::1] value
    cdef public const unsigned char[::1] fde_type
    cdef public const unsigned int[::1] pattern_at
    cdef public const unsigned int[::1] pattern_start
    cdef public const unsigned int[::1] pattern_rule
    cdef public Alignment alignment

cdef class UnsaidColumns:
    cdef public unsigned long long[::1] start
    cdef public unsigned int[::1] size
    cdef public unsigned char[::1] reason
