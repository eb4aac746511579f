"""What can be wrong with a CFI section, by the number with which the compiled loops say so; they tell the offset too."""

from __future__ import annotations

# remember_state nests once or twice in real code. 64 states of 16 numbers are 8 KiB; a deeper nest is not a compiler's.
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
