cdef class Entries:
    cdef public unsigned long long[::1] start
    cdef public unsigned long long[::1] body
    cdef public unsigned long long[::1] end
    cdef public unsigned long long[::1] cie

cdef class Fdes:
    cdef public unsigned long long[::1] start
    cdef public unsigned long long[::1] size
    cdef public unsigned int[::1] cie

cdef class Programs:
    cdef public unsigned long long[::1] start
    cdef public unsigned long long[::1] end

cdef class Rows:
    cdef public unsigned int[::1] first_row
    cdef public unsigned int[::1] start
    cdef public unsigned int[::1] rule

cdef class ByteReader:
    cdef const unsigned char[::1] data
    cdef Py_ssize_t length
    cdef bint big

    cdef unsigned long long number(self, Py_ssize_t pos, Py_ssize_t width) except? -1
