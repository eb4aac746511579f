"""Scans a raw symbol table, without decoding it: for the functions before a few addresses, or for all symbol values. Compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    import cython
except ImportError:
    from sframegen.base import cython_shadow as cython  # type: ignore[no-redef]

from sframegen.base.columns import zeros

if TYPE_CHECKING:
    from sframegen.base.columns import Bytes, Column

COMPILED: bool = cython.compiled


@cython.locals(
    raw="const unsigned char[::1]", addresses="const unsigned long long[::1]", function_of="unsigned int[::1]",
    last_address="unsigned long long[::1]",
)  # fmt: skip
def find_last_functions(raw: Bytes, big: cython.bint, addresses: Column, function_of: Column) -> None:
    """Fill `function_of`, all zeros, with 1 + the number of the last function at or before each address; 0 if there is none.

    `raw`: Elf64_Sym entries; `big`: True if they are big-endian. `addresses` ascend. Of several functions at one address, the last
    one in the table counts.
    """
    last_address = zeros("Q", len(addresses))  # the address of each function in `function_of`
    pos: cython.Py_ssize_t
    index: cython.Py_ssize_t
    entry: cython.Py_ssize_t
    low: cython.Py_ssize_t
    high: cython.Py_ssize_t
    middle: cython.Py_ssize_t
    byte: cython.Py_ssize_t
    kind: cython.int
    value: cython.ulonglong
    for entry in range(len(raw) // 24):
        pos = 24 * entry
        kind = raw[pos + 4] & 15  # of st_info
        if (kind != 2 and kind != 10) or (raw[pos + 6] == 0 and raw[pos + 7] == 0):  # not STT_FUNC or STT_GNU_IFUNC; SHN_UNDEF
            continue
        value = 0
        for byte in range(8):
            value = value << 8 | raw[pos + 8 + (byte if big else 7 - byte)]
        low, high = 0, len(addresses)
        while low < high:  # afterwards `low` is the index of the first address that is not below `value`
            middle = (low + high) // 2
            if addresses[middle] < value:
                low = middle + 1
            else:
                high = middle
        if low < len(addresses) and (function_of[low] == 0 or last_address[low] <= value):
            last_address[low] = value
            function_of[low] = entry + 1
    for index in range(1, len(addresses)):  # if no function lies in between, the previous address' last function is also this one's
        if function_of[index] == 0:
            function_of[index] = function_of[index - 1]


@cython.locals(symbols="const unsigned char[::1]", values="unsigned long long[::1]")
def fill_symbol_values(symbols: Bytes, big: cython.bint, values: Column) -> int:
    """Fill `values` with those of all defined symbols but sections and files; return their number. `symbols`: Elf64_Sym entries."""
    count: cython.Py_ssize_t = 0
    entry: cython.Py_ssize_t
    kind: cython.int
    i: cython.Py_ssize_t
    value: cython.ulonglong
    for entry in range(0, len(symbols) - 23, 24):
        kind = symbols[entry + 4] & 0x0F
        if kind == 3 or kind == 4 or (symbols[entry + 6] == 0 and symbols[entry + 7] == 0):  # STT_SECTION, STT_FILE; SHN_UNDEF
            continue
        value = 0
        for i in range(8):
            value = value * 256 + symbols[entry + 8 + (i if big else 7 - i)]
        values[count] = value
        count += 1
    return count
