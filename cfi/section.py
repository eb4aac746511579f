"""The reader's input (the bytes and properties of a CFI section), and the faults that a section can have.

Compiled loops report a fault by number and offset. A fault costs one FDE if it is known which code the damaged entry describes
and where the next entry begins; otherwise it costs the section:

| fault | lost |
| --- | --- |
| an entry's length or CIE pointer | the section: where the next entry begins, or what this one means, is not known |
| a CIE, its instructions too | the section: all FDEs that use it start from it |
| an FDE's address, size or augmentation data cut off | the section: which code would be without a rule is not known |
| an FDE's address, indirect or relocated in an unknown way | that FDE: its address is UNKNOWN_START, and it is counted |
| an FDE's instructions | that FDE: its code is left out, counted and reported |
| more different rows than MAX_STATES | the section: a limit on memory, not a fault of one FDE |
"""

from __future__ import annotations

from sframegen.base.quick_typing import TYPE_CHECKING, Literal, NamedTuple

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

    An entry of length 0 is a terminator; linkers leave them in the middle of both kinds of section.
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
    more: bool = False  # the section before has the same file and name: the FDEs of both are one list
    known: Callable[[int], bool] | None = None  # True if the pointer at an offset has the value that is loaded; None: all have
    unknown: Iterable[int] = ()  # offsets of other fields that do not have the value that is loaded


class FollowedRegisters(NamedTuple):
    """The DWARF numbers of the registers whose rules are kept; the return address is the CIE's own column."""

    fp: int
    sp: int
    ra_state: int  # RA_SIGN_STATE; -1 where return addresses are never signed


# remember_state nests once or twice in real code. 64 state numbers are 256 bytes; compilers never nest deeper.
MAX_REMEMBERED = 64
# libxul's 2.5 million rows are 1,322 different ones. Each costs about a kilobyte until the section is written.
MAX_STATES = 1 << 15

SCAN_FAULTS = (
    "",
    "entry's length is cut off",
    "entry reaches past the end of the section",
    "entry is too short for its CIE pointer",
    "FDE's CIE pointer leads out of the section",
)
RUN_FAULTS = (
    "",
    "instruction or operand is cut off",
    "unknown call frame instruction",
    "unknown pointer encoding",
    "an indirect pointer leads nowhere",
    "DW_CFA_restore_state without a remembered state",
    f"more than {MAX_REMEMBERED} remembered states",
    "DW_CFA_set_loc moves backwards",
    f"more than {MAX_STATES} different rows",
)
TOO_MANY_STATES = 8  # in RUN_FAULTS: the only fault that is not the running FDE's own
MAX_REPORTED = 20  # faulty FDEs that are kept with place and reason; further ones are only counted
