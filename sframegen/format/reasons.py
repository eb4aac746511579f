"""Why a section cannot express a rule: a closed list of reasons."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from sframegen.format.model import FdeType
from sframegen.format.words import RuleWords, encode_rule

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sframegen.format.abi import Abi
    from sframegen.format.layouts import Layout
    from sframegen.format.model import Rule, Where


class Reason(Enum):
    """Why code is left out. The value is what users read."""

    RA_COLUMN = "the return address column is not the ABI's"
    NO_CFA = "the CFA has no rule"
    CFA_EXPRESSION = "the CFA is an expression that is neither register + n nor *(register + n)"
    CFA_EXPRESSION_UNALIGNED = "the CFA depends on the PC's low bits, in code that is not aligned for it"
    CFA_SCALE = "the CFA's offset is not a multiple of what the ABI scales it by"
    REGISTER = "a rule names a register that stack tracers do not have"
    RA_RULE = "the return address has a rule that SFrame has no words for"
    RA_SIGNED = "the return address is signed in a way that SFrame does not know"
    FP_UNDEFINED = "the caller's FP is lost"
    FP_RULE = "the caller's FP has a rule that SFrame has no words for"
    SP_RULE = "the caller's SP is not the CFA"
    OFFSET_RANGE = "an offset needs more than 32 bits"
    OUTERMOST = "an outermost frame, which readers of this version do not know"
    FLEX = "the rule needs a flexible FDE, which this version does not have"
    SIGNAL = "a signal frame, which this version does not mark"
    UNREADABLE = "its call frame instructions cannot be read"


def unsaid(rule: Rule, words: RuleWords) -> Reason | None:
    """Why no FDE type of the version can say a rule; None where one can."""
    if any(words.of(rule)):
        return None
    abi, layout = words.abi, words.layout
    if rule.cfa is None:
        return Reason.OUTERMOST
    if (rule.cfa.offset - abi.cfa_adjustment) % abi.cfa_scale:
        return Reason.CFA_SCALE
    if encode_rule(rule, FdeType.FLEX, abi, layout._replace(flex=True)) is not None:
        return Reason.FLEX
    registers = {where.register for where in (rule.cfa, rule.ra, rule.fp) if where is not None} - {None}
    if not registers <= set(abi.base_registers):
        return Reason.REGISTER
    if (rule.ra is None and abi.fixed_ra_offset) or _is_cfa_plus_n(rule.ra):
        return Reason.RA_RULE
    return Reason.FP_RULE if _is_cfa_plus_n(rule.fp) else Reason.OFFSET_RANGE


def sayable(rules: Iterable[Rule], abi: Abi, layout: Layout) -> bool:
    """True if the version can say all of them."""
    return all(map(any, map(RuleWords(abi, layout).of, rules)))


def _is_cfa_plus_n(where: Where | None) -> bool:
    """RA or FP = cfa + n, not what is stored there: the one form that has no control word."""
    return where is not None and where.register is None and not where.deref
