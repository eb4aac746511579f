# Binary search in columns, as in Python's `bisect`, which takes the place of these functions where nothing is compiled.
cimport cython

ctypedef fused Ascending:
    const unsigned long long[::1]
    const unsigned int[::1]

@cython.boundscheck(False)
cdef inline Py_ssize_t bisect_left(Ascending column, unsigned long long value, Py_ssize_t low, Py_ssize_t high) noexcept:
    cdef Py_ssize_t middle
    while low < high:
        middle = (low + high) // 2
        if column[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low

@cython.boundscheck(False)
cdef inline Py_ssize_t bisect_right(Ascending column, unsigned long long value, Py_ssize_t low, Py_ssize_t high) noexcept:
    cdef Py_ssize_t middle
    while low < high:
        middle = (low + high) // 2
        if column[middle] <= value:
            low = middle + 1
        else:
            high = middle
    return low
