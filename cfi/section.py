"""The reader's input: a section's bytes, where they are loaded, and all that differs between .eh_frame and .debug_frame."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from sframegen.base.columns import Bytes


class CfiSection(NamedTuple):
    """`eh`: .eh_frame's rules, else .debug_frame's.

    | | .eh_frame | .debug_frame |
    | --- | --- | --- |
    | CIE id | 0 | all ones |
    | FDE's CIE pointer | distance back from itself | offset in the section |
    | its size in 64-bit DWARF | 4 | 8 |
    | pointers | in the encoding that augmentation R names | plain addresses |

    An entry of length 0 is a terminator; linkers leave them in the middle, in both.
    """

    name: str
    data: Bytes
    address: int
    byte_order: Literal["little", "big"]
    eh: bool
    text_base: int = 0  # for DW_EH_PE_textrel
    data_base: int = 0  # for DW_EH_PE_datarel
    memory: Callable[[int], int] | None = None  # the 8 bytes at an address, for DW_EH_PE_indirect
    fde_count: int = -1  # where the section's end is not known: stop at the first terminator after this many FDEs
    more: bool = False  # a further section of the file and name of the one before: their FDEs are one list
    known: Callable[[int], bool] | None = None  # whether the pointer at an offset is what is loaded; None: all are
    unknown: Iterable[int] = ()  # offsets of other fields that are not what is loaded


class FollowedRegisters(NamedTuple):
    """The DWARF numbers of the registers whose rules are kept; the return address is the CIE's own column."""

    fp: int
    sp: int
    ra_state: int  # RA_SIGN_STATE; -1 where return addresses are never signed
