"""Which functions may share an FDE with the one before them: nothing but padding is between the two. Compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    import cython
except ImportError:
    from sframegen.base import cython_shadow as cython  # type: ignore[no-redef]

if not cython.compiled:
    from sframegen.format.fre_bytes import is_masked
if TYPE_CHECKING:
    from sframegen.base.columns import Bytes, Column
    from sframegen.elf.columns import Areas
    from sframegen.format.columns import Functions

COMPILED: bool = cython.compiled


@cython.locals(symbols="const unsigned char[::1]", values="unsigned long long[::1]")
def symbol_values(symbols: Bytes, big: cython.bint, values: Column) -> int:
    """Fills the values of all defined symbols of a symbol table (raw entries of 24 bytes) that name places; returns how many."""
    count: cython.Py_ssize_t = 0
    entry: cython.Py_ssize_t
    kind: cython.int
    i: cython.Py_ssize_t
    value: cython.ulonglong
    for entry in range(0, len(symbols) - 23, 24):
        kind = symbols[entry + 4] & 0x0F
        if kind == 3 or kind == 4 or (symbols[entry + 6] == 0 and symbols[entry + 7] == 0):  # section, file, undefined
            continue
        value = 0
        for i in range(8):
            value = value * 256 + symbols[entry + 8 + (i if big else 7 - i)]
        values[count] = value
        count += 1
    return count


@cython.locals(
    kind_bytes="const unsigned char[::1]",
    symbols="const unsigned long long[::1]",
    unsaid="const unsigned long long[::1]",
    may_follow="unsigned char[::1]",
    start="const unsigned long long[::1]",
    size="const unsigned int[::1]",
    kind="const unsigned short[::1]",
)
def followers(
    functions: Functions,
    kind_bytes: Bytes,
    areas: Areas,
    symbols: Column,
    unsaid: Column,
    max_gap: cython.ulonglong,
    may_follow: bytearray,
) -> None:
    """Marks each function that may share an FDE with the one before it.

    Both are of one kind, not of PC type MASK; between them are at most `max_gap` bytes, all of which the area's states accept as
    padding, without any of the places that `symbols` and `unsaid` name. Functions and these ascend.
    """
    start = functions.start
    size = functions.size
    kind = functions.kind
    function: cython.Py_ssize_t
    ahead: cython.Py_ssize_t
    area: cython.Py_ssize_t = 0
    symbol: cython.Py_ssize_t = 0
    left: cython.Py_ssize_t = 0
    low: cython.ulonglong
    high: cython.ulonglong
    for function in range(1, len(start)):
        ahead = function + 16
        if cython.compiled and ahead < len(start):
            areas.fetch(area, start[ahead] - 1)
        low = start[function - 1] + size[function - 1]
        high = start[function]
        if kind[function] != kind[function - 1] or high - low > max_gap:
            continue
        if is_masked(kind_bytes[3 * kind[function]]):
            continue
        while symbol < len(symbols) and symbols[symbol] < low:
            symbol += 1
        while left < len(unsaid) and unsaid[left] < low:
            left += 1
        if (symbol < len(symbols) and symbols[symbol] < high) or (left < len(unsaid) and unsaid[left] < high):
            continue
        while area < len(areas.end) and areas.end[area] <= start[function - 1]:
            area += 1
        if area == len(areas.end) or high >= areas.end[area]:
            continue
        if areas.padding_end(area, low, high, True) == high:
            may_follow[function] = 1
