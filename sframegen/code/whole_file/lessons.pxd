cimport cython

from sframegen.code.whole_file.shown cimport Places, Evidence

@cython.final
cdef class Learned:
    cdef public set known, pointed_at, called
    cdef bytearray done
