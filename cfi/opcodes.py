"""The table of call frame instructions (DWARF 5 section 6.4.2, GNU and AArch64): their names, operands and actions."""

from __future__ import annotations

from enum import IntEnum

from sframegen.base.quick_typing import NamedTuple


class Operand(IntEnum):
    """How an operand is stored. LOW6: in the low six bits of the opcode. ADDRESS: a pointer in the CIE's encoding."""

    NONE = 0
    U1 = 1
    U2 = 2
    U4 = 4
    U8 = 8
    ULEB = 9
    SLEB = 10
    LOW6 = 11
    ADDRESS = 12
    BLOCK = 13


class RuleKind(IntEnum):
    """How a rule with the numbers `a` and `b` finds a register of the caller, or the CFA."""

    UNSPECIFIED = 0
    UNDEFINED = 1
    SAME_VALUE = 2
    OFFSET = 3  # *(cfa + a)
    VAL_OFFSET = 4  # cfa + a
    REGISTER = 5  # register a; in the CFA's rule, register a + b
    EXPRESSION = 6  # *(expression); a, b: its offset and size
    VAL_EXPRESSION = 7  # the value of the expression; also used for the CFA
    UNREADABLE = 8  # of the CFA only: the FDE's instructions are faulty, so the rules of all registers are unknown


class Action(IntEnum):
    """The effect of an instruction whose operands are `a` and `b`."""

    UNKNOWN = 0
    NOP = 1
    ADVANCE = 2  # by a * code alignment
    SET_LOC = 3  # to address a
    SET_RULE = 4  # register a: (kind, b)
    RESTORE = 5  # register a gets the CIE's initial rule
    REMEMBER_STATE = 6
    RESTORE_STATE = 7
    DEF_CFA = 8  # a + b
    DEF_CFA_REGISTER = 9
    DEF_CFA_OFFSET = 10
    DEF_CFA_EXPRESSION = 11
    NEGATE_RA_STATE = 12
    NEGATE_RA_STATE_WITH_PC = 13


class CfiInstruction(NamedTuple):
    """A call frame instruction. `factor`: 1 scales the offset operand by the data alignment, -1 by its negative, 0 not at all."""

    opcode: int
    name: str
    action: Action
    operand_a: Operand = Operand.NONE
    operand_b: Operand = Operand.NONE
    kind: RuleKind = RuleKind.UNSPECIFIED  # of the rule that SET_RULE sets
    factor: int = 0


_A, _O, _K = Action, Operand, RuleKind

INSTRUCTIONS = (
    CfiInstruction(0x00, "DW_CFA_nop", _A.NOP),
    CfiInstruction(0x01, "DW_CFA_set_loc", _A.SET_LOC, _O.ADDRESS),
    CfiInstruction(0x02, "DW_CFA_advance_loc1", _A.ADVANCE, _O.U1),
    CfiInstruction(0x03, "DW_CFA_advance_loc2", _A.ADVANCE, _O.U2),
    CfiInstruction(0x04, "DW_CFA_advance_loc4", _A.ADVANCE, _O.U4),
    CfiInstruction(0x05, "DW_CFA_offset_extended", _A.SET_RULE, _O.ULEB, _O.ULEB, _K.OFFSET, 1),
    CfiInstruction(0x06, "DW_CFA_restore_extended", _A.RESTORE, _O.ULEB),
    CfiInstruction(0x07, "DW_CFA_undefined", _A.SET_RULE, _O.ULEB, kind=_K.UNDEFINED),
    CfiInstruction(0x08, "DW_CFA_same_value", _A.SET_RULE, _O.ULEB, kind=_K.SAME_VALUE),
    CfiInstruction(0x09, "DW_CFA_register", _A.SET_RULE, _O.ULEB, _O.ULEB, _K.REGISTER),
    CfiInstruction(0x0A, "DW_CFA_remember_state", _A.REMEMBER_STATE),
    CfiInstruction(0x0B, "DW_CFA_restore_state", _A.RESTORE_STATE),
    CfiInstruction(0x0C, "DW_CFA_def_cfa", _A.DEF_CFA, _O.ULEB, _O.ULEB),
    CfiInstruction(0x0D, "DW_CFA_def_cfa_register", _A.DEF_CFA_REGISTER, _O.ULEB),
    CfiInstruction(0x0E, "DW_CFA_def_cfa_offset", _A.DEF_CFA_OFFSET, _O.NONE, _O.ULEB),
    CfiInstruction(0x0F, "DW_CFA_def_cfa_expression", _A.DEF_CFA_EXPRESSION, _O.NONE, _O.BLOCK),
    CfiInstruction(0x10, "DW_CFA_expression", _A.SET_RULE, _O.ULEB, _O.BLOCK, _K.EXPRESSION),
    CfiInstruction(0x11, "DW_CFA_offset_extended_sf", _A.SET_RULE, _O.ULEB, _O.SLEB, _K.OFFSET, 1),
    CfiInstruction(0x12, "DW_CFA_def_cfa_sf", _A.DEF_CFA, _O.ULEB, _O.SLEB, factor=1),
    CfiInstruction(0x13, "DW_CFA_def_cfa_offset_sf", _A.DEF_CFA_OFFSET, _O.NONE, _O.SLEB, factor=1),
    CfiInstruction(0x14, "DW_CFA_val_offset", _A.SET_RULE, _O.ULEB, _O.ULEB, _K.VAL_OFFSET, 1),
    CfiInstruction(0x15, "DW_CFA_val_offset_sf", _A.SET_RULE, _O.ULEB, _O.SLEB, _K.VAL_OFFSET, 1),
    CfiInstruction(0x16, "DW_CFA_val_expression", _A.SET_RULE, _O.ULEB, _O.BLOCK, _K.VAL_EXPRESSION),
    CfiInstruction(0x1D, "DW_CFA_MIPS_advance_loc8", _A.ADVANCE, _O.U8),
    CfiInstruction(0x2C, "DW_CFA_AARCH64_negate_ra_state_with_pc", _A.NEGATE_RA_STATE_WITH_PC),
    CfiInstruction(0x2D, "DW_CFA_AARCH64_negate_ra_state", _A.NEGATE_RA_STATE),
    CfiInstruction(0x2E, "DW_CFA_GNU_args_size", _A.NOP, _O.ULEB),
    CfiInstruction(0x2F, "DW_CFA_GNU_negative_offset_extended", _A.SET_RULE, _O.ULEB, _O.ULEB, _K.OFFSET, -1),
    CfiInstruction(0x40, "DW_CFA_advance_loc", _A.ADVANCE, _O.LOW6),
    CfiInstruction(0x80, "DW_CFA_offset", _A.SET_RULE, _O.LOW6, _O.ULEB, _K.OFFSET, 1),
    CfiInstruction(0xC0, "DW_CFA_restore", _A.RESTORE, _O.LOW6),
)

# INSTRUCTIONS packed for cfi/machine.py: five bytes at 5 * opcode (action, operands a and b, kind, factor + 1). The
# three instructions with an operand in their low six bits have opcodes 0x40, 0x80 and 0xC0.
PACKED_INSTRUCTIONS = bytearray(5 * 256)
for _opcode, _, _action, _a, _b, _kind, _factor in INSTRUCTIONS:
    PACKED_INSTRUCTIONS[5 * _opcode : 5 * _opcode + 5] = (_action, _a, _b, _kind, _factor + 1)
