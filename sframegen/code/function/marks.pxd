# The numbers of marks.py, as constants for compiled loops. A test compares them.
cdef enum:  # sframegen.code.function.marks.FunctionMark
    COMES_BACK = 1
    RETURNS = 2
    JUMPS = 4
    KEEPS_FRAME = 8
    SHOWS_ITSELF = 16
    RETURNS_AS_ENTERED = 32
    CONTRADICTS = 64
    OVERRUNS = 256
    OVERRUN_IS_REACHED = 512

cdef enum:  # sframegen.code.function.marks.CallKind
    GOES_ON = 1
    ENDS = 2
    BY_NAME = 4

cdef enum:  # sframegen.code.function.marks.PointNote
    MAY_RETURN = 1
    NEVER_RETURNS = 2
    IS_CALLED = 4
    IS_LAST = 8
    UNRESOLVED = 16
