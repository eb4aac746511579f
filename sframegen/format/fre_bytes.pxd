# The functions of fre_bytes.py, which explains them. Inline: loops call them for each row.

cdef inline bint fre_type_known(int info) noexcept:
    return info & 0x0F <= 2

cdef inline int start_width(int info) noexcept:
    return 1 << (info & 0x0F)

cdef inline int fre_type_for(long long start) noexcept:
    return (start > 0xFF) + (start > 0xFFFF)

cdef inline int without_fre_type(int info) noexcept:
    return info & 0xF0

cdef inline bint is_masked(int info) noexcept:
    return info & 0x10 != 0

cdef inline int fde_type_of(int info2) noexcept:
    return info2 & 0x1F

cdef inline bint fde_type_known(int info2) noexcept:
    return info2 & 0x1F <= 1

cdef inline bint word_size_known(int row_info) noexcept:
    return (row_info >> 5) & 3 < 3

cdef inline int words_size(int row_info) noexcept:
    return ((row_info >> 1) & 0x0F) << ((row_info >> 5) & 3)
