cimport cython

from sframegen.profile.stacks.call_tree cimport CallTree

@cython.final
cdef class PathTexts:
    cdef CallTree tree
    cdef const unsigned int[::1] numbers
    cdef unsigned int[::1] path
    cdef const unsigned char[::1] joined
    cdef const unsigned long long[::1] starts
    cdef unsigned char[::1] room
    cdef object view

    cdef int make_room(self, Py_ssize_t size) except -1

@cython.final
cdef class PathNumbers:
    cdef CallTree tree
    cdef const unsigned int[::1] numbers
    cdef const unsigned char[::1] inlined
    cdef unsigned char[::1] room
    cdef object view
