"""The header that all versions share, and the bits of all records, each declared once; layouts.py has what differs."""

from __future__ import annotations

import struct
from typing import NamedTuple

MAGIC = 0xDEE2

F_FDE_SORTED = 0x1
F_FRAME_POINTER = 0x2  # all functions keep the frame pointer
F_FDE_FUNC_START_PCREL = 0x4

# sfda_func_info
FRE_TYPE_MASK, PCTYPE_MASK_BIT, PAUTH_KEY_B_BIT, SIGNAL_BIT = 0x0F, 0x10, 0x20, 0x80
# sfda_func_info2
FDE_TYPE_MASK = 0x1F
# FRE info byte
CFA_BASE_SP_BIT, MANGLED_RA_BIT = 0x01, 0x80
# control word of flexible FDEs
FLEX_REGISTER_BIT, FLEX_DEREF_BIT, FLEX_UNUSED_BIT, FLEX_REGISTER_SHIFT = 0x1, 0x2, 0x4, 3
DATAWORD_COUNT_SHIFT, DATAWORD_SIZE_SHIFT = 1, 5
DATAWORD_COUNT_MASK, DATAWORD_SIZE_MASK = 0x0F, 0x03

DATAWORD_WIDTHS = (1, 2, 4)  # bytes, by fre_dataword_size
MAX_FUNCTION_ROWS = 0xFFFF


class Header(NamedTuple):
    magic: int
    version: int
    flags: int
    abi_arch: int
    cfa_fixed_fp_offset: int
    cfa_fixed_ra_offset: int
    auxhdr_len: int
    num_fdes: int
    num_fres: int
    fre_len: int
    fdeoff: int  # from the header's end, as freoff
    freoff: int


HEADER_CODE = "HBBBbbBIIIII"
HEADER_SIZE = struct.calcsize("<" + HEADER_CODE)
assert HEADER_SIZE == 28
