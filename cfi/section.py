"""The reader's input (the bytes and properties of a CFI section), and the faults that a section can have.

Compiled loops report a fault by number and offset. A fault costs one FDE if it is known which code the damaged entry describes
and where the next entry begins; otherwise it costs the section:

| fault | what is lost |
| --- | --- |
| an entry's length or CIE pointer | the section, because it is unknown where the next entry begins, or what this one means |
| a CIE, or its instructions | the section, because all FDEs that use the CIE depend on it |
| an FDE's address, size or augmentation data is cut off | the section, because it is unknown which code lacks a rule |
| an FDE's address is indirect, or relocated in an unknown way | that FDE: its address is UNKNOWN_START, and it is counted |
| an FDE's instructions | that FDE: its code is left out, counted and reported |
| more different rows than MAX_STATES | the section, because this limit on memory is not the fault of one FDE |
"""

from __future__ import annotations

from sframegen.base.quick_typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from sframegen.base.columns import Bytes


class CfiSection(NamedTuple):
    """A section's bytes and how to read them. `eh`: True for the format of .eh_frame, False for that of .debug_frame.

    | | .eh_frame | .debug_frame |
    | --- | --- | --- |
    | CIE id | 0 | all ones |
    | FDE's CIE pointer | distance back from itself | offset in the section |
    | its size in 64-bit DWARF | 4 | 8 |
    | pointers | in the encoding that augmentation R names | plain addresses |

    An entry of length 0 is a terminator; linkers also leave terminators in the middle of sections of both kinds.
    """

    name: str
    data: Bytes
    address: int
    byte_order: Literal["little", "big"]
    eh: bool
    text_base: int = 0  # for DW_EH_PE_textrel
    data_base: int = 0  # for DW_EH_PE_datarel
    memory: Callable[[int], int] | None = None  # returns the 8 bytes at an address, for DW_EH_PE_indirect
    fde_count: int = -1  # if the section's size is unknown: reading stops at the first terminator after this many FDEs
    continues: bool = False  # True: the previous section has the same file and name, so that the FDEs of both form one list
    # Returns False if relocation changes the pointer at an offset in an unknown way; None: it never does.
    has_known_pointer: Callable[[int], bool] | None = None
    unknown_fields: Iterable[int] = ()  # offsets of other fields that relocation changes in an unknown way


class FollowedRegisters(NamedTuple):
    """The DWARF numbers of the registers whose rules are kept. The return address is not among them: each CIE names its column."""

    fp: int
    sp: int
    ra_state: int  # RA_SIGN_STATE; -1 where return addresses are never signed


# In real code, DW_CFA_remember_state nests once or twice. 64 state numbers take 256 bytes.
MAX_REMEMBERED = 64
# A state is the rules of all followed registers in one row. The 2.5 million rows of libxul have 1,322 different states. Each takes
# about a kilobyte until the section is written.
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
TOO_MANY_STATES = 8  # index in RUN_FAULTS of the only fault that is not the FDE's own
MAX_REPORTED = 20  # faulty FDEs of which the offset and reason are kept; further ones are only counted
