cimport cython

from sframegen.profile.stacks.call_tree cimport CallTree

@cython.final
cdef class PathBytes:
    cdef CallTree tree
    cdef const unsigned int[::1] numbers
    cdef unsigned char[::1] text
    cdef object view
