"""Reads the bits of an FRE's info byte and of a function's attribute. A new FRE type has to be added here.

Compiled loops inline the same functions from `fre_bytes.pxd`; this module is not compiled. The masks are in layouts.py.
"""

from __future__ import annotations

from sframegen.format.layouts import (
    DATAWORD_COUNT_MASK,
    DATAWORD_COUNT_SHIFT,
    DATAWORD_SIZE_MASK,
    DATAWORD_SIZE_SHIFT,
    DATAWORD_WIDTHS,
    FDE_TYPE_MASK,
    FRE_TYPE_MASK,
    PCTYPE_MASK_BIT,
)

LAST_FRE_TYPE, LAST_FDE_TYPE = 2, 1


def fre_type_known(info: int) -> bool:
    """True if the FRE type in a function's `info` is defined."""
    return info & FRE_TYPE_MASK <= LAST_FRE_TYPE


def start_width(info: int) -> int:
    """Return how many bytes the start of a row has in a function with that `info`."""
    return 1 << (info & FRE_TYPE_MASK)


def fre_type_for(start: int) -> int:
    """Return the FRE type with the narrowest row starts that `start` fits into."""
    return (start > 0xFF) + (start > 0xFFFF)


def without_fre_type(info: int) -> int:
    """Return those bits of a function's `info` that do not depend on its rows, which are all but the FRE type."""
    return info & ~FRE_TYPE_MASK


def is_masked(info: int) -> bool:
    """True if a function is of PC type MASK, which means that its rows repeat."""
    return info & PCTYPE_MASK_BIT != 0


def fde_type_of(info2: int) -> int:
    """Return the FDE type in a function's `info2`."""
    return info2 & FDE_TYPE_MASK


def fde_type_known(info2: int) -> bool:
    """True if the FDE type in a function's `info2` is defined."""
    return info2 & FDE_TYPE_MASK <= LAST_FDE_TYPE


def word_size_known(row_info: int) -> bool:
    """True if the size of data words in an FRE info byte is defined."""
    return row_info >> DATAWORD_SIZE_SHIFT & DATAWORD_SIZE_MASK < len(DATAWORD_WIDTHS)


def words_size(row_info: int) -> int:
    """Return how many bytes of data words follow an FRE info byte."""
    return (row_info >> DATAWORD_COUNT_SHIFT & DATAWORD_COUNT_MASK) << (row_info >> DATAWORD_SIZE_SHIFT & DATAWORD_SIZE_MASK)
