"""CPython 3.14 writes its C stack, from callbacks of different functions of C. Arguments: rounds, and whether it does."""

from __future__ import annotations

import faulthandler
import functools
import sys


def dump(*_values: object) -> int:
    if sys.argv[2] == "dump":
        faulthandler.dump_c_stack(sys.stdout)  # type: ignore[attr-defined]  # of 3.14
    return 0


for _ in range(int(sys.argv[1])):
    dump()
    sorted([2, 1], key=dump)
    max(map(dump, [1]))
    functools.reduce(dump, [1, 2])
