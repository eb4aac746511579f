"""The layout of the format: the header and the bits that all versions share, and a table with a row for each version.

A section is its header, then an index of FDEs, then their rows (FREs). An FDE describes a range of code, usually a function. Its
attribute (number of rows, `info`, `info2`, the period of repeated rows) is in the index entry, or in version 3 before its rows.
"""

from __future__ import annotations

import struct

from sframegen.base.quick_typing import Literal, NamedTuple, get_args

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
DATAWORD_COUNT_SHIFT, DATAWORD_SIZE_SHIFT = 1, 5
DATAWORD_COUNT_MASK, DATAWORD_SIZE_MASK = 0x0F, 0x03
# control word of flexible FDEs
FLEX_REGISTER_BIT, FLEX_DEREF_BIT, FLEX_UNUSED_BIT, FLEX_REGISTER_SHIFT = 0x1, 0x2, 0x4, 3

DATAWORD_WIDTHS = (1, 2, 4)  # bytes, by fre_dataword_size
MAX_FUNCTION_ROWS = 0xFFFF  # num_fres of version 3 has 16 bits; the other versions get the same limit


class SframeHeader(NamedTuple):
    """The header of a section, with the names of the specification."""

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
    fdeoff: int  # from the header's end, like freoff
    freoff: int


HEADER_CODE = "HBBBbbBIIIII"
HEADER_SIZE = struct.calcsize("<" + HEADER_CODE)
assert HEADER_SIZE == 28

# -- the versions

NONE = -1  # the offset of a field that a version does not have


class Layout(NamedTuple):
    """The layout of a version. Field offsets are bytes from the start of the index entry, or of the attribute before the FREs."""

    version: int
    index_size: int
    start_width: int  # bytes of the signed function start, the entry's first field
    size_at: int
    fre_offset_at: int
    attribute_in_block: bool  # True: the fields below are before the function's FREs (V3); False: they are in the index entry
    attribute_size: int  # bytes before the FREs
    num_fres_at: int
    num_fres_width: int
    info_at: int
    info2_at: int  # NONE if the version does not have the field, like rep_size_at
    rep_size_at: int
    default_rep_size: int  # period of PC type MASK without a field for it
    flex: bool  # has flexible FDEs
    signal: bool  # has the signal bit; without it, the code of signal frames is left out
    registers_as_odd_offsets: bool  # s390x: a register number n as RA or FP offset 2n + 1
    outermost: bool  # every reader treats an FRE without data words as outermost frame; in version 2 only by an erratum
    outermost_without_rows: bool  # a default FDE without FREs is an outermost frame
    flags: int  # all header flags that the version defines
    info_unused: int  # unused bits of info; info2_unused: those of info2
    info2_unused: int
    padding_at: int  # two unused bytes of the index entry


V1 = Layout(
    version=1, index_size=17, start_width=4, size_at=4, fre_offset_at=8, attribute_in_block=False, attribute_size=0,
    num_fres_at=12, num_fres_width=4, info_at=16, info2_at=NONE, rep_size_at=NONE, default_rep_size=16,
    flex=False, signal=False, registers_as_odd_offsets=False, outermost=False, outermost_without_rows=False,
    flags=F_FDE_SORTED | F_FRAME_POINTER, info_unused=0xC0, info2_unused=0, padding_at=NONE,
)  # fmt: skip
V2 = V1._replace(
    version=2, index_size=20, rep_size_at=17, default_rep_size=0, registers_as_odd_offsets=True,
    flags=F_FDE_SORTED | F_FRAME_POINTER | F_FDE_FUNC_START_PCREL, padding_at=18,
)  # fmt: skip
V3 = Layout(
    version=3, index_size=16, start_width=8, size_at=8, fre_offset_at=12, attribute_in_block=True, attribute_size=5,
    num_fres_at=0, num_fres_width=2, info_at=2, info2_at=3, rep_size_at=4, default_rep_size=0,
    flex=True, signal=True, registers_as_odd_offsets=False, outermost=True, outermost_without_rows=True,
    flags=F_FDE_SORTED | F_FDE_FUNC_START_PCREL, info_unused=0x40, info2_unused=0xE0, padding_at=NONE,
)  # fmt: skip

LAYOUTS = {layout.version: layout for layout in (V1, V2, V3)}
FormatVersion = Literal[2, 3]
FormatVersion.__doc__ = "A version of SFrame that sframegen writes; it reads version 1, too."
WRITABLE: dict[int, Layout] = {version: LAYOUTS[version] for version in get_args(FormatVersion)}
