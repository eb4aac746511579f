from sframegen.elf.columns cimport Areas
from sframegen.format.columns cimport Functions

cdef extern from *:
    void prefetch "__builtin_prefetch" (const void *address) noexcept
