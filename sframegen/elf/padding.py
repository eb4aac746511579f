"""The padding of assemblers and linkers between functions, for each machine: no-ops, traps, zeros. Recognised byte by byte."""

from __future__ import annotations

from array import array
from functools import cache

from sframegen.elf.code_bytes.machines import MACHINES

FAIL = 0xFFFF  # no state: the bytes are not padding


@cache
def padding_states(machine: int) -> array[int]:
    """The next state for each state * 256 + byte. State 0: all bytes so far are padding; FAIL: they are not."""
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
