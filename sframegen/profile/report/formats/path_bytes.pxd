cimport cython

from sframegen.profile.stacks.call_tree cimport CallTree
from sframegen.profile.stacks.numbered cimport Numbered

@cython.final
cdef class NumberedBytes:
    cdef const unsigned char[::1] joined
    cdef const unsigned long long[::1] starts

@cython.final
cdef class Block:
    cdef Py_ssize_t length
    cdef unsigned char[::1] buffer
    cdef object view

    cdef int make_room(self, Py_ssize_t size) except -1
    cdef int put_text(self, NumberedBytes texts, Py_ssize_t number) except -1
    cdef int put_decimal(self, unsigned long long number) except -1
    cdef int put_varint(self, unsigned long long number) except -1
    cdef int put_block(self, Block other) except -1

@cython.final
cdef class StackTextWriter:
    cdef CallTree tree
    cdef const unsigned int[::1] numbers
    cdef NumberedBytes texts
    cdef unsigned int[::1] path
    cdef readonly Block block

    cdef int put_stack(self, Py_ssize_t node) except -1

@cython.final
cdef class SampleWriter:
    cdef CallTree tree
    cdef const unsigned int[::1] numbers
    cdef const unsigned char[::1] inlined
    cdef Block path, values
    cdef readonly Block block
    cdef unsigned long long period

    cdef int fill_path(self, Py_ssize_t node) except -1

@cython.final
cdef class LocationWriter:
    cdef Numbered locations
    cdef NumberedBytes mappings, lines
    cdef const unsigned int[::1] outer
    cdef Block fields
    cdef readonly Block block
    cdef unsigned long long no_address
