"""What an FRE and the attribute of its function are in bytes: FRE types, data words, FDE types. A new FRE type goes here.

The compiled loops take the same functions from `fre_bytes.pxd`, inline; this module itself is not compiled. Masks: layouts.py.
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
    """True if a version has the FRE type in a function's `info`."""
    return info & FRE_TYPE_MASK <= LAST_FRE_TYPE


def start_width(info: int) -> int:
    """Bytes of each row's start, in a function with that `info`."""
    return 1 << (info & FRE_TYPE_MASK)


def fre_type_for(start: int) -> int:
    """The FRE type with the narrowest row starts that hold this one."""
    return (start > 0xFF) + (start > 0xFFFF)


def without_fre_type(info: int) -> int:
    """What remains of a function's `info`: bits that are the same whatever its rows are."""
    return info & ~FRE_TYPE_MASK


def is_masked(info: int) -> bool:
    """True if the function is of PC type MASK: its rows repeat."""
    return info & PCTYPE_MASK_BIT != 0


def fde_type_of(info2: int) -> int:
    """The FDE type."""
    return info2 & FDE_TYPE_MASK


def fde_type_known(info2: int) -> bool:
    """True if a version has the FDE type."""
    return info2 & FDE_TYPE_MASK <= LAST_FDE_TYPE


def word_size_known(row_info: int) -> bool:
    """True if data words have a size that a version has."""
    return row_info >> DATAWORD_SIZE_SHIFT & DATAWORD_SIZE_MASK < len(DATAWORD_WIDTHS)


def words_size(row_info: int) -> int:
    """Bytes of data words that follow an FRE info byte."""
    return (row_info >> DATAWORD_COUNT_SHIFT & DATAWORD_COUNT_MASK) << (row_info >> DATAWORD_SIZE_SHIFT & DATAWORD_SIZE_MASK)
