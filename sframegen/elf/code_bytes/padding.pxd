cpdef Py_ssize_t padding_size(
    const unsigned short[::1] states, const unsigned char[::1] data, Py_ssize_t pos, Py_ssize_t most, bint whole
) except -1
