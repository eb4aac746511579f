"""Writes a row's rule as an equation: `(cfa, ra, fp) = (rsp + 16, *(cfa - 8), *(cfa - 16))`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sframegen.format.abi import Abi
    from sframegen.format.model import Rule, Where


def equation(rule: Rule, abi: Abi) -> str:
    """Return the equation of a rule. Its left side is the caller's CFA, RA and FP; its right side uses the current registers."""
    return rule.equation(partial(register_name, abi=abi), register_name(abi.ra, abi), register_name(abi.fp, abi))


def rule_fields(rule: Rule, abi: Abi) -> dict[str, Any]:
    """Return a rule as JSON fields. `cfa` is null in an outermost frame, `ra` or `fp` if it is still in its register."""
    return {
        "rule": equation(rule, abi),
        "cfa": _parts_of_place(rule.cfa, abi),
        "ra": _parts_of_place(rule.ra, abi),
        "fp": _parts_of_place(rule.fp, abi),
        "ra_signed": rule.ra_signed,
    }


def register_name(number: int, abi: Abi) -> str:
    return abi.register_names[number] if number < len(abi.register_names) else f"register {number}"


def base_name(where: Where, abi: Abi) -> str:
    return "cfa" if where.register is None else register_name(where.register, abi)


def _parts_of_place(where: Where | None, abi: Abi) -> dict[str, Any] | None:
    if where is None:
        return None
    return {"base": base_name(where, abi), "offset": where.offset, "deref": where.deref}
