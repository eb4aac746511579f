"""Recognises padding (no-ops, traps and zeros between functions) by each machine's table of bytes. Compiled.

To find padding in a file, use elf.columns.Areas.
"""

from __future__ import annotations

from array import array
from functools import cache
from typing import TYPE_CHECKING

try:
    import cython
except ImportError:
    from sframegen.base import cython_shadow as cython  # type: ignore[no-redef]

from sframegen.elf.code_bytes.machines import MACHINES

if TYPE_CHECKING:
    from sframegen.base.columns import Bytes, Column

COMPILED: bool = cython.compiled
FAIL = 0xFFFF  # the state for bytes that are not padding
MAX_PADDING = 64  # bytes to search for padding between two pieces of code


@cache
def padding_states(machine: int) -> array[int]:
    """Return the next state for each state * 256 + byte. State 0: all bytes so far are padding; FAIL: they are not."""
    fill = MACHINES[machine].fill
    states = [array("H", [FAIL]) * 256 for _ in range(2)]  # 0: between instructions; 1: after a prefix
    for state in states[:]:
        for prefix in fill.prefixes:
            state[prefix] = 1
    for start, instruction in [(0, code) for code in fill.alone] + [(start, code) for start in (0, 1) for code in fill.prefixed]:
        state = states[start]
        for byte in instruction[:-1]:
            if state[byte] == FAIL:
                state[byte] = len(states)
                states.append(array("H", [FAIL]) * 256)
            state = states[state[byte]]
        state[instruction[-1]] = 0
    return array("H", b"".join(states))


def padding_size(
    states: Column, data: Bytes, pos: cython.Py_ssize_t, most: cython.Py_ssize_t, whole: cython.bint
) -> cython.Py_ssize_t:
    """Return the size of the padding at data[pos], at most `most`. `whole`: do not count a no-op that is cut off by `most`."""
    size: cython.Py_ssize_t = 0
    state: cython.Py_ssize_t = 0
    i: cython.Py_ssize_t
    for i in range(most):
        state = states[(state << 8) | data[pos + i]]
        if state == 0xFFFF:  # FAIL
            break
        if state == 0 or (i + 1 == most and not whole):
            size = i + 1
    return size
