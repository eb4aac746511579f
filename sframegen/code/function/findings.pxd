cimport cython

from cfi.search cimport bisect_right
from sframegen.code.function.blocks cimport BasicBlocks
from sframegen.code.function.marks cimport (
    BY_NAME, COMES_BACK, CONTRADICTS, ENDS, GOES_ON, IS_CALLED, IS_LAST, JUMPS, KEEPS_FRAME, OVERRUN_IS_REACHED, OVERRUNS, RETURNS,
    RETURNS_AS_ENTERED, SHOWS_ITSELF, UNRESOLVED,
)
from sframegen.code.isa.effects cimport BEGIN, CALL, DIRECT, FLOW_MASK, INDIRECT, IS_ENTRY, KNOWN_SP, RETURN, SLOT
from sframegen.elf.columns cimport Spans

@cython.final
cdef class WordColumn:
    cdef unsigned long long[::1] values
    cdef Py_ssize_t count

    cdef int append(self, unsigned long long value) except -1
    cpdef object to_array(self)

@cython.final
cdef class Findings:
    cdef object context, frames
    cdef set stubs
    cdef dict numbers, callees
    cdef Spans code
    cdef const unsigned long long[::1] words
    cdef unsigned long long call_alignments
    cdef list states
    cdef readonly WordColumn marks, at_calls, overrun
    cdef readonly WordColumn end_piece, end_entry, end_row, end_exit, end_call, end_taken, end_table
    cdef readonly WordColumn piece_start, piece_end, entry, row_start, row_word
    cdef readonly WordColumn exit_source, exit_target, exit_as_entered, callee, call_kind, taken, table

    cdef int finish_function(self, unsigned long long marks, entries) except -1
    cdef unsigned long long add_points(self, BasicBlocks blocks) except? 77
    cdef int note_call(self, BasicBlocks blocks, Py_ssize_t point) except -1
    cdef int add_calls(self) except -1
    cdef int add_rows(self, BasicBlocks blocks) except -1
    cdef Py_ssize_t column_state(self, Py_ssize_t state) except -1
    cdef int add_taken(self, takes) except -1
