cimport cython

# Members of frames.End and of RuleFlag: a test compares them.
cdef enum:  # sframegen.stack.walking.frames.End
    END_OUTERMOST = 0, END_NO_RETURN = 1, END_GUESS_FAILED = 6, END_UNREADABLE = 7, END_NOT_ASCENDING = 8
    END_UNKNOWN_REGISTER = 9, END_COPY_TOO_SHORT = 13, END_OTHER_STACK = 15, END_NO_STACK = 24, END_LOOP = 26

cdef enum:  # sframegen.stack.walking.step.RuleFlag
    RULE_CFA_DEREF = 1, RULE_RA_REGISTER = 2, RULE_RA_DEREF = 4, RULE_FP = 8
    RULE_FP_REGISTER = 0x10, RULE_FP_DEREF = 0x20, RULE_OUTERMOST = 0x40, RULE_SIGNAL = 0x80

@cython.final
cdef class CallerRule:
    cdef public unsigned long long cfa_offset
    cdef public unsigned long long ra_offset
    cdef public unsigned long long fp_offset
    cdef public int cfa_register
    cdef public int ra_register
    cdef public int fp_register
    cdef public int flags
    cdef public bint guess
    cdef public bint sp_is_cfa

@cython.final
cdef class WalkedMachine:
    cdef public int sp
    cdef public int fp
    cdef public unsigned long long sp_offset
    cdef readonly bint little
    cdef readonly CallerRule guess
    cdef readonly CallerRule signal
    cdef public CallerRule returning
    cdef const long long[::1] context_pc
    cdef const long long[::1] context_places

@cython.final
cdef class StackCursor:
    cdef readonly WalkedMachine machine
    cdef object memory
    cdef unsigned long long ra_mask, mask, guess_reach
    cdef int past_end
    cdef public unsigned long long[::1] values
    cdef unsigned long long[::1] saved
    cdef public unsigned long long known
    cdef public unsigned long long pc
    cdef public unsigned long long lowest
    cdef public unsigned long long stack_end
    cdef public unsigned long long holes
    cdef public bint exact
    cdef public bint has_stack
    cdef public bint on_other_stack
    cdef const unsigned char[::1] window
    cdef unsigned long long window_start, window_size, word
    cdef unsigned long long cfa, ra, sp, fp
    cdef bint keeps_fp

    cdef bint is_known(self, Py_ssize_t register) except -9
    cdef int find_caller(self, CallerRule rule) except -9
    cdef int go_to_caller(self, CallerRule rule) except -9
    cdef unsigned long long restore_interrupted_registers(self) except? 999
    cdef bint is_hole(self, unsigned long long address) except -9
    cdef bint has_hole(self, unsigned long long start, unsigned long long end) except -9
    cdef int read(self, unsigned long long address) except -9
    cdef unsigned long long byte(self, Py_ssize_t at) except? 999
