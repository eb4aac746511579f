# The numbers of effects.py, as constants for compiled loops. A test compares them.
cdef enum:  # sframegen.code.isa.effects.Flow
    NEXT = 0
    JUMP = 1
    BRANCH = 2
    INDIRECT = 3
    CALL = 4
    RETURN = 5
    STOP = 6

cdef enum:  # sframegen.code.isa.effects.PointFlag
    DIRECT = 8
    SLOT = 16
    PADS = 32

cdef enum:  # sframegen.code.isa.effects.Mark
    INSIDE = 0
    BEGIN = 1
    PADDING = 2

cdef enum:  # sframegen.code.isa.effects.Take
    RELATIVE = 1
    CONSTANT = 2
    PAGE = 3
    IN_PAGE = 4

cdef enum:  # sframegen.code.isa.effects.StateFact
    KNOWN_SP = 16
    IS_ENTRY = 32
    CONTRADICTION = 64

cdef enum:  # sframegen.code.isa.effects
    FLOW_MASK = 7
    EFFECTS_SHIFT = 6
