cdef class Numbers:
    cdef const unsigned char[::1] data
    cdef Py_ssize_t length
    cdef bint big

    cdef unsigned long long number(self, Py_ssize_t pos, Py_ssize_t width) except? -1
