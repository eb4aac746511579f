"""One row of CFI -> what SFrame can say of it, or why it can say nothing. Pure; called once for each distinct row of a file."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from cfi.expression import PC_PERIOD, Term, evaluate
from cfi.opcodes import RuleKind
from sframegen.format.words import encode_rule, fde_type_of
from sframegen.model import OUTERMOST, Rule, Where

if TYPE_CHECKING:
    from cfi.rules import CfiRule, RegisterRule
    from sframegen.abi import Abi


class Reason(Enum):
    """Why code is left out. The value is what users read."""

    RA_COLUMN = "the return address column is not the ABI's"
    NO_CFA = "the CFA has no rule"
    CFA_REGISTER = "the CFA is not based on SP or FP"
    CFA_EXPRESSION = "the CFA is an expression that is not SP or FP plus a constant"
    CFA_EXPRESSION_UNALIGNED = "the CFA depends on the PC's low bits, in code that is not aligned for it"
    RA_RULE = "the return address is not at its fixed place on the stack"
    RA_SIGNED = "the return address is signed, which this ABI does not do"
    FP_UNDEFINED = "the caller's FP is lost"
    FP_RULE = "the caller's FP is not in its register or on the stack"
    SP_RULE = "the caller's SP is not the CFA"
    OFFSET_RANGE = "an offset needs more than 32 bits"


class Repeated(NamedTuple):
    """Rules that depend on the PC modulo PC_PERIOD: (offset in the period, rule), ascending from 0. PC type MASK says them."""

    rows: tuple[tuple[int, Rule], ...]


def translate_rule(rule: CfiRule, abi: Abi) -> Rule | Repeated | Reason:
    """The SFrame rule of a CFI row.

    Example, AMD64: CFA = rsp + 16, ra at cfa - 8, rbp at cfa - 16 becomes (cfa, ra, fp) = (sp + 16, *(cfa - 8), *(cfa - 16)).
    """
    if rule.ra_column != abi.ra:
        return Reason.RA_COLUMN
    if rule.ra.kind is RuleKind.UNDEFINED:
        return OUTERMOST
    plain = _cfa(rule.cfa, abi, None)
    if plain is not Reason.CFA_EXPRESSION:
        return _row(rule, plain, abi)
    # A PLT that GNU ld describes in one go: the CFA changes with the place in the 16-byte entry.
    rows: list[tuple[int, Rule]] = []
    for residue in range(PC_PERIOD):
        row = _row(rule, _cfa(rule.cfa, abi, residue), abi)
        if isinstance(row, Reason):
            return row
        if not rows or rows[-1][1] != row:
            rows.append((residue, row))
    return Repeated(tuple(rows))


def _row(rule: CfiRule, cfa: Where | Reason, abi: Abi) -> Rule | Reason:
    """The whole row, once its CFA is known."""
    if isinstance(cfa, Reason):
        return cfa
    if not _sp_is_cfa(rule.sp, cfa, abi):
        return Reason.SP_RULE
    ra = _saved(rule.ra)
    if isinstance(ra, Reason) or (abi.fixed_ra_offset and ra != Where(None, abi.fixed_ra_offset, deref=True)):
        return Reason.RA_RULE
    if rule.ra_state:
        return Reason.RA_SIGNED
    fp = _saved(rule.fp)
    if isinstance(fp, Reason):
        return Reason.FP_UNDEFINED if rule.fp.kind is RuleKind.UNDEFINED else Reason.FP_RULE
    row = Rule(cfa, ra, fp)
    if fde_type_of(row, abi) is None:
        return Reason.CFA_REGISTER
    return row if encode_rule(row, abi) is not None else Reason.OFFSET_RANGE


def _cfa(rule: RegisterRule, abi: Abi, residue: int | None) -> Where | Reason:
    """CFA = register + n; `residue`: the PC modulo PC_PERIOD, where an expression may use it."""
    if rule.kind is RuleKind.REGISTER:
        return Where(rule.a, rule.b)
    if rule.kind is not RuleKind.VAL_EXPRESSION:
        return Reason.NO_CFA
    term = evaluate(rule.expression, abi.byte_order, abi.ra, residue)
    return Where(*term) if term and term.register is not None and not term.deref else Reason.CFA_EXPRESSION


def _sp_is_cfa(sp: RegisterRule, cfa: Where, abi: Abi) -> bool:
    """SFrame implies it: after the unwinding step, SP = CFA."""
    if sp.kind is RuleKind.VAL_EXPRESSION:
        return evaluate(sp.expression, abi.byte_order, abi.ra, cfa=Term(*cfa)) == Term(*cfa)
    return sp.kind is RuleKind.UNSPECIFIED or (sp.kind is RuleKind.VAL_OFFSET and sp.a == 0)


def _saved(rule: RegisterRule) -> Where | Reason | None:
    """Where a register of the caller is: None in its register, or *(cfa + n)."""
    if rule.kind in (RuleKind.UNSPECIFIED, RuleKind.SAME_VALUE):
        return None
    if rule.kind is RuleKind.OFFSET:
        return Where(None, rule.a, deref=True)
    return Reason.FP_RULE
