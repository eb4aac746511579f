cimport cython

from sframegen.code.function.marks cimport BY_NAME, COMES_BACK, CONTRADICTS, ENDS, OVERRUNS
from sframegen.code.whole_file.evidence cimport Evidence
from sframegen.elf.columns cimport Spans

@cython.final
cdef class KnownStarts:
    cdef public set known, pointed_at, called
    cdef bytearray is_examined
