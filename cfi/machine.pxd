from sframegen.base.columns cimport Entries, Fdes, Programs, Rows

cdef enum:  # cfi.opcodes.Action
    UNKNOWN = 0, NOP = 1, ADVANCE = 2, SET_LOC = 3, SET_RULE = 4, RESTORE = 5, REMEMBER_STATE = 6, RESTORE_STATE = 7
    DEF_CFA = 8, DEF_CFA_REGISTER = 9, DEF_CFA_OFFSET = 10, DEF_CFA_EXPRESSION = 11, NEGATE_RA_STATE = 12
    NEGATE_RA_STATE_WITH_PC = 13

cdef enum:  # cfi.opcodes.Operand
    U8 = 8, ULEB = 9, SLEB = 10, LOW6 = 11, ADDRESS = 12, BLOCK = 13

cdef enum:  # cfi.opcodes.RuleKind
    UNDEFINED = 1, REGISTER = 5, VAL_EXPRESSION = 7

cdef enum:  # none: where a state has the kind, a and b of a rule, and the CFA's expression
    CFA = 1, RA = 4, FP = 7, SP = 10, RA_STATE = 13, EXPRESSION = 16

cdef enum:  # none: indexes of cfi.section.RUN_FAULTS
    CUT_OFF = 1, UNKNOWN_INSTRUCTION = 2, UNKNOWN_ENCODING = 3, BAD_INDIRECTION = 4, NOTHING_REMEMBERED = 5
    TOO_MANY_REMEMBERED = 6, BACKWARDS = 7, TOO_MANY_RULES = 8
