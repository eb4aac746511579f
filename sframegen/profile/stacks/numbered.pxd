cimport cython

@cython.final
cdef class Numbered:
    cdef readonly object room
    cdef tuple columns
    cdef readonly Py_ssize_t count
    cdef public unsigned long long[::1] first
    cdef public unsigned int[::1] second
    cdef unsigned int[::1] index
    cdef Py_ssize_t slots, capacity
    cdef unsigned long long factor, mask

    cpdef Py_ssize_t number_of(self, unsigned long long first, unsigned long long second) except -9
    cpdef Py_ssize_t append(self, unsigned long long first, unsigned long long second) except -9
    cpdef Py_ssize_t find(self, unsigned long long first, unsigned long long second) except -9
    cdef Py_ssize_t find_slot(self, unsigned long long first, unsigned long long second) except -9
    cdef Py_ssize_t first_slot(self, unsigned long long first, unsigned long long second) except -9
    cdef int rebuild_index(self) except -9
