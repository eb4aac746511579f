"""Translates one row of CFI to its SFrame rule, or to the reason why there is none. Runs once for each distinct row of a file."""

from __future__ import annotations

from cfi.expression import CFA, PC_PERIOD, Term, evaluate
from cfi.opcodes import RuleKind
from sframegen.base.quick_typing import TYPE_CHECKING, NamedTuple
from sframegen.format.model import OUTERMOST, FdeType, Rule, Where
from sframegen.format.words import Reason, RuleWords, why_inexpressible

if TYPE_CHECKING:
    from cfi.rules import CfiRule, RegisterRule
    from sframegen.format.abi import Abi

# These are global names because access to an Enum member takes many times as long.
UNSPECIFIED, UNDEFINED, SAME_VALUE, OFFSET, VAL_OFFSET, REGISTER, EXPRESSION, VAL_EXPRESSION, UNREADABLE = RuleKind
DEFAULT = FdeType.DEFAULT
CFA_EXPRESSION = Reason.CFA_EXPRESSION


class RepeatedPattern(NamedTuple):
    """Rules that depend on the PC modulo PC_PERIOD, for PC type MASK: (offset in the period, rule), ascending from 0."""

    rows: tuple[tuple[int, Rule], ...]


class Translator:
    """Translates CFI rules for one ABI and version of SFrame."""

    def __init__(self, words: RuleWords) -> None:
        self.words = words

    def translate(self, rule: CfiRule) -> Rule | RepeatedPattern | Reason:
        """Return the SFrame rule of a CFI row, or the reason why SFrame cannot express it.

        Example, AMD64: CFA = rsp + 16, ra at cfa - 8, rbp at cfa - 16 becomes (cfa, ra, fp) = (sp + 16, *(cfa - 8), *(cfa - 16)).
        """
        ra_column, cfa, ra, *_ = rule
        if cfa.kind is UNREADABLE:
            return Reason.UNREADABLE
        if ra_column != self.words.abi.ra:
            return Reason.RA_COLUMN
        if ra.kind is UNDEFINED:
            return why_inexpressible(OUTERMOST, self.words) or OUTERMOST
        cfa_location = Where(cfa.a, cfa.b) if cfa.kind is REGISTER else _cfa_location(cfa, self.words.abi)
        return self._translate_row(rule, cfa_location) if cfa_location is not CFA_EXPRESSION else self._translate_pattern(rule)

    def _translate_pattern(self, rule: CfiRule) -> RepeatedPattern | Reason:
        """Translate the rule of a whole PLT, as GNU ld writes it: the CFA depends on the position in the 16-byte entry."""
        rows: list[tuple[int, Rule]] = []
        previous_cfa: Where | Reason | None = None
        for residue in range(PC_PERIOD):
            cfa = _cfa_location(rule.cfa, self.words.abi, residue)
            if cfa == previous_cfa:
                continue
            row, previous_cfa = self._translate_row(rule, cfa), cfa
            if isinstance(row, Reason):
                return row
            if not self.words.encode(row)[DEFAULT]:
                return Reason.CFA_EXPRESSION
            rows.append((residue, row))
        return RepeatedPattern(tuple(rows))

    def _translate_row(self, rule: CfiRule, cfa: Where | Reason) -> Rule | Reason:
        """Translate the rest of a row, whose CFA is known."""
        if not isinstance(cfa, Where):  # isinstance with Reason, an Enum, takes many times as long
            return cfa
        _, _, ra_rule, fp_rule, sp_rule, ra_state = rule
        abi = self.words.abi
        if sp_rule.kind is not UNSPECIFIED and not _sp_is_implied(sp_rule, cfa, abi):
            return Reason.SP_RULE
        ra, fp = _register_location(ra_rule, abi), _register_location(fp_rule, abi)
        if not (ra is None or isinstance(ra, Where)):
            return Reason.RA_RULE
        signed = _ra_sign_state(ra_state, abi)
        if signed not in (0, int(abi.ra_is_signed)):
            return Reason.RA_SIGNED
        if not (fp is None or isinstance(fp, Where)):
            return Reason.FP_UNDEFINED if fp_rule.kind is UNDEFINED else Reason.FP_RULE
        row = Rule(cfa, ra, fp, signed == 1)
        return why_inexpressible(row, self.words) or row


def _location_of_term(term: Term | None) -> Where | None:
    """Return an evaluated expression as a location; None if SFrame cannot describe it."""
    if term is None or term.register is None or term.offset_after_deref:
        return None
    return Where(None if term.register == CFA else term.register, term.offset, term.deref)


def _cfa_location(rule: RegisterRule, abi: Abi, residue: int | None = None) -> Where | Reason:
    """Return the CFA that a rule of a kind other than REGISTER gives. `residue`: the PC modulo PC_PERIOD, if known."""
    if rule.kind is not VAL_EXPRESSION:
        return Reason.NO_CFA
    return _location_of_term(evaluate(rule.expression, abi.byte_order, abi.pc, residue)) or CFA_EXPRESSION


def _sp_is_implied(sp: RegisterRule, cfa: Where, abi: Abi) -> bool:
    """True if the CFI's rule for SP agrees with the caller's SP that SFrame implies: CFA + sp_offset."""
    if abi.sp_is_saved and sp.kind in (OFFSET, REGISTER):
        return True
    value = Where(abi.sp, 0) if sp.kind is SAME_VALUE else _register_location(sp, abi)
    by_cfa_rule = None if cfa.deref and abi.sp_offset else cfa._replace(offset=cfa.offset + abi.sp_offset)  # without naming the CFA
    return value is not None and value in (Where(None, abi.sp_offset), by_cfa_rule)


def _register_location(rule: RegisterRule, abi: Abi) -> Where | Reason | None:
    """Return where the caller's value of a register is saved, or the value; None if it is still in its register.

    A location is *(cfa + n) or *(register + n), a value cfa + n or register + n. Returns Reason.FP_RULE for any other rule.
    """
    match rule.kind:
        case RuleKind.UNSPECIFIED | RuleKind.SAME_VALUE:
            return None
        case RuleKind.OFFSET:
            return Where(None, rule.a, deref=True)
        case RuleKind.VAL_OFFSET:
            return Where(None, rule.a)
        case RuleKind.REGISTER:
            return Where(rule.a, 0)
        case RuleKind.VAL_EXPRESSION:
            return _location_of_term(evaluate(rule.expression, abi.byte_order, abi.pc, on_cfa=True)) or Reason.FP_RULE
        case RuleKind.EXPRESSION:
            location = _location_of_term(evaluate(rule.expression, abi.byte_order, abi.pc, on_cfa=True))
            return location._replace(deref=True) if location and not location.deref else Reason.FP_RULE
    return Reason.FP_RULE


def _ra_sign_state(rule: RegisterRule, abi: Abi) -> int | None:
    """Return the value of RA_SIGN_STATE; None if it is not a constant."""
    if rule.kind is UNSPECIFIED:
        return rule.a
    value = evaluate(rule.expression, abi.byte_order, abi.pc, on_cfa=True) if rule.kind is VAL_EXPRESSION else None
    return value.offset if value and value.register is None else None
