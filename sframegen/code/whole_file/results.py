"""The results of a file's functions, put together from those of each process. Compiled."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from sframegen.code.function.findings import FindingColumns
from sframegen.code.whole_file.shown import Evidence

try:
    import cython
except ImportError:
    from sframegen.base import cython_shadow as cython  # type: ignore[no-redef]

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sframegen.base.columns import Column
    from sframegen.code.isa.frame_state import FrameState

COMPILED: bool = cython.compiled

END = "end_"


class Results:
    """Columns of all functions that were analysed. `live`: 1 for each of which no other result took the place."""

    def __init__(self) -> None:
        self.states: list[FrameState] = []
        self.columns = FindingColumns(self.states, *(array("Q", [0] * name.startswith(END)) for name in FindingColumns._fields[1:]))
        self.live = bytearray()
        self.functions: dict[int, int] = {}  # live ones, by their starts
        self._numbers: dict[FrameState, int] = {}

    def extend(self, found: FindingColumns) -> None:
        """Add results. They take the place of those that begin at the same addresses."""
        first = len(self.live)
        own = array("Q", [self._numbers.setdefault(state, len(self._numbers)) for state in found.states])
        self.states.extend(list(self._numbers)[len(self.states) :])
        for name, mine, theirs in zip(FindingColumns._fields[1:], self.columns[1:], found[1:], strict=True):
            if name.startswith(END):
                mine.extend(shifted(theirs, mine[len(mine) - 1]))  # compiled, no index is negative
            else:
                mine.extend(renumbered(theirs, own) if name == "row_word" else theirs)
        self.live += b"\1" * len(found.marks)
        for number in range(first, len(self.live)):
            start = self.columns.piece_start[self.columns.end_piece[number]]
            before = self.functions.get(start)
            if before is not None:
                self.live[before] = 0
            self.functions[start] = number

    def forget(self, functions: Iterable[int]) -> None:
        """These functions are not live any more."""
        for number in functions:
            self.live[number] = 0
            del self.functions[self.columns.piece_start[self.columns.end_piece[number]]]

    def shown(self, entries: set[int], *, proving: bool) -> Evidence:
        """Return the columns for loops. They must not grow while it is in use."""
        return Evidence(self.columns, self.live, entries, proving)


@cython.locals(into="unsigned long long[::1]")
def shifted(column: Column, by: cython.ulonglong) -> array[int]:
    """Return the numbers of a column except the first, with that added."""
    place: cython.Py_ssize_t
    found = array("Q", column[1:])
    into = found
    for place in range(len(into)):
        into[place] += by
    return found


@cython.locals(into="unsigned long long[::1]", numbers="const unsigned long long[::1]")
def renumbered(words: Column, numbers: Column) -> array[int]:
    """Return `row_word` with other numbers of states."""
    place: cython.Py_ssize_t
    found = array("Q", words)
    into = found
    for place in range(len(into)):
        into[place] = (into[place] >> 32) << 32 | numbers[into[place] & 0x7FFFFFFF]
    return found
