"""Recognises padding between functions (no-ops, traps, zeros) with a state machine of each machine's patterns. Compiled.

The patterns (machines.py) form a tree, whose nodes are states: each byte leads to the next state, the last byte of a pattern to
state 0. To find padding in a file, use elf.columns.Areas.
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
MAX_PADDING = 64  # bytes: how far to search for padding between two functions


@cache
def padding_states(machine: int) -> array[int]:
    """Return the next state, or FAIL, at `state * 256 + byte`. State 0: only whole patterns so far; state 1: after a prefix."""
    patterns = MACHINES[machine].padding
    table = [array("H", [FAIL]) * 256 for _ in range(2)]
    for next_states in table[:]:
        for prefix in patterns.prefixes:
            next_states[prefix] = 1
    starts = [(0, pattern) for pattern in patterns.unprefixed + patterns.prefixed] + [(1, pattern) for pattern in patterns.prefixed]
    for start, pattern in starts:
        next_states = table[start]
        for byte in pattern[:-1]:
            if next_states[byte] == FAIL:
                next_states[byte] = len(table)
                table.append(array("H", [FAIL]) * 256)
            next_states = table[next_states[byte]]
        next_states[pattern[-1]] = 0
    return array("H", b"".join(table))


def padding_size(
    states: Column, data: Bytes, pos: cython.Py_ssize_t, most: cython.Py_ssize_t, whole: cython.bint
) -> cython.Py_ssize_t:
    """Return the bytes of padding at data[pos], at most `most`. `whole`: a no-op that `most` cuts off does not count."""
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
