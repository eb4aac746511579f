cimport cython

from sframegen.stack.walking.step cimport CallerRule, StackCursor
from sframegen.stack.walking.step cimport END_LOOP, END_NO_RETURN, END_OUTERMOST, END_UNKNOWN_REGISTER, RULE_SIGNAL

@cython.final
cdef class CodeRule:
    cdef readonly CallerRule rule
    cdef readonly bint signal
    cdef readonly object how
    cdef readonly object failing

@cython.final
cdef class StackWalker:
    cdef object view
    cdef StackCursor cursor
    cdef object fallback
    cdef set signal_frames

    cdef int step(self, CodeRule rule) except -9
