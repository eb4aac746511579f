"""Faults of a CFI section, by the numbers that the compiled loops return; these also return the offset.

What a fault costs depends on whether it is known which code the damaged entry describes, and where the next entry begins:

| fault | it costs |
| --- | --- |
| an entry's length or CIE pointer | the section: where the next entry begins, or what this one means, is not known |
| a CIE, its instructions too | the section: all FDEs that use it start from it |
| an FDE's address, size or augmentation data cut off | the section: which code would be without a rule is not known |
| an FDE's address, indirect or relocated in an unknown way | that FDE: its address is UNKNOWN_START, and it is counted |
| an FDE's instructions | that FDE: its code is left out, counted and reported |
| more different rows than MAX_STATES | the section: a limit on memory, not a fault of one FDE |
"""

from __future__ import annotations

# remember_state nests once or twice in real code. 64 numbers of states are 256 bytes; a deeper nest is not a compiler's.
MAX_REMEMBERED = 64
# libxul's 2.5 million rows are 1,322 different ones. Each costs about a kilobyte until the section is written.
MAX_STATES = 1 << 15

SCAN = (
    "",
    "entry's length is cut off",
    "entry reaches past the end of the section",
    "entry is too short for its CIE pointer",
    "FDE's CIE pointer leads out of the section",
)
MACHINE = (
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
TOO_MANY_STATES = 8  # of MACHINE: the only fault of a running FDE that is in another entry
MAX_REPORTED = 20  # FDEs with faults that are kept with place and reason; of more, only the number
