cimport cython

from sframegen.stack.walking.step cimport CallerRule, StackCursor, WalkedMachine
from sframegen.stack.walking.step cimport END_COPY_TOO_SHORT, END_GUESS_FAILED, END_OTHER_STACK, END_OUTERMOST, END_UNKNOWN_REGISTER
from sframegen.stack.walking.step cimport RULE_OUTERMOST, RULE_SIGNAL

# Further members of frames.End, and those of CodeKind and Search: a test compares them.
cdef enum:  # sframegen.stack.walking.frames.End
    END_NO_MAPPING = 3, END_NO_TABLE = 4, END_NO_RULE = 5, END_TOO_DEEP = 10, END_DAMAGED_TABLE = 11

cdef enum:  # sframegen.profile.walk.steps.CodeKind
    CODE_RETURNS = 1, CODE_RETURNS_FROM_SIGNAL = 2, CODE_STARTS_THREAD = 4, CODE_ONLY_RETURNS = 8

cdef enum:  # sframegen.profile.walk.steps.Search
    SEARCH_NO_RULE = 0, SEARCH_NO_TABLE = -1, SEARCH_DAMAGED = -2

@cython.final
cdef class SpanColumns:
    cdef public const unsigned long long[::1] start
    cdef public const unsigned long long[::1] end
    cdef public const unsigned long long[::1] bias
    cdef public const unsigned int[::1] file

@cython.final
cdef class TableColumns:
    cdef public const unsigned int[::1] words
    cdef public unsigned long long base
    cdef public unsigned long long pages
    cdef public unsigned long long index_at
    cdef public unsigned long long rows_at
    cdef public unsigned long long rules_at
    cdef public unsigned long long rows
    cdef public unsigned long long rules
    cdef public bint final

@cython.final
cdef class Steps:
    cdef readonly StackCursor cursor
    cdef object code_kinds
    cdef list tables
    cdef public unsigned long long[::1] frames
    cdef CallerRule rule, guess
    cdef bint guessed
    cdef bint final
    cdef unsigned long long stack_start, stack_size, mask, address_mask
    cdef public Py_ssize_t depth
    cdef public Py_ssize_t missing
    cdef Py_ssize_t span

    cdef int walk_frame(self, SpanColumns spans) except -9
    cdef bint is_pushed(self, Py_ssize_t rule, unsigned long long file, unsigned long long pc_in_file) except -9
    cdef int step_without_rule(self, SpanColumns spans, unsigned long long file, unsigned long long pc_in_file) except -9
    cdef int step(self, SpanColumns spans, CallerRule rule) except -9
    cdef bint find_span(self, SpanColumns spans, unsigned long long address) except -9
    cdef Py_ssize_t find_rule(self, unsigned long long file, unsigned long long address) except -9
    cdef int set_rule(self, const unsigned int[::1] words, Py_ssize_t at) except -9
    cdef unsigned long long sign_extend(self, unsigned long long word) except? 999
    cdef bint returns_to(self, SpanColumns spans, unsigned long long pc) except -9
