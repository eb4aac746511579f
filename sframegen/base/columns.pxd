cdef class Entries:
    cdef public unsigned long long[::1] start, body, end, cie

cdef class Fdes:
    cdef public unsigned long long[::1] start, size
    cdef public unsigned int[::1] cie

cdef class Programs:
    cdef public unsigned long long[::1] start, end

cdef class Rows:
    cdef public unsigned int[::1] first_row, start, rule

cdef class ByteReader:
    cdef const unsigned char[::1] data
    cdef Py_ssize_t length
    cdef bint big

    cdef unsigned long long number(self, Py_ssize_t pos, Py_ssize_t width) except? -1
