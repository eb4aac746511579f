"""Rules -> entries of tables of code made at run time, as a compiler writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sframegen.registry.jit_tables import CFA_SP, FP_SAVED, IS_OUTERMOST, IS_SIGNAL, RA_SAVED, RA_SIGNED, rule_of_entry
from sframegen.registry.structures import JitEntry

if TYPE_CHECKING:
    from sframegen.format.abi import Abi
    from sframegen.format.model import Rule


def entry_of(size: int, ip_off: int, rule: Rule, abi: Abi, *, signal: bool = False) -> JitEntry:
    """Return the entry for a rule. Raises ValueError for a rule that entries cannot express."""
    info = IS_SIGNAL * signal | RA_SAVED * (rule.ra is not None) | FP_SAVED * (rule.fp is not None) | RA_SIGNED * rule.ra_signed
    info |= IS_OUTERMOST if rule.cfa is None else CFA_SP * (rule.cfa.register == abi.sp)
    entry = JitEntry(size, ip_off, *(where.offset if where else 0 for where in rule[:3]), info)  # type: ignore[call-arg]
    if rule_of_entry(entry, abi) != rule:
        raise ValueError(f"an entry of a table cannot say {rule}")
    return entry
