"""`arg1 > 1048576 && (int)arg2 < 0`: conditions on the arguments of a probe or the fields of a tracepoint."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from sframegen.elf.text import shortened
from sframegen.profile.events.attributes import EventError
from sframegen.profile.events.points import (
    COMPARISONS,
    CONDITION_MEMORY,
    CONDITION_NUMBER,
    CONDITION_SIGNED,
    MAX_CONDITIONS,
    Condition,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

TYPES = {  # size, signed
    "char": (1, True), "short": (2, True), "int": (4, True), "long": (8, True), "unsigned char": (1, False),
    "unsigned short": (2, False), "unsigned": (4, False), "unsigned int": (4, False), "unsigned long": (8, False),
}  # fmt: skip
TERM = re.compile(r"\s*(?:\(\s*([a-z ]+?)\s*\)\s*)?(\w+)\s*(==|!=|<=|>=|<|>|&)\s*(-?(?:0[xX][0-9a-fA-F]+|[0-9]{1,99}))\s*")
EXAMPLE = "such as: arg1 > 1048576 && (int)arg2 < 0"


class EventValue(NamedTuple):
    """Where an argument or field is, and what it is there; `number` alone if `offset` is None."""

    offset: int | None
    size: int = 8
    signed: bool = False
    number: int = 0
    memory: bool = False


class FilterTerm(NamedTuple):
    type: str | None
    name: str
    comparison: str
    number: int


def parse_filter(text: str) -> list[FilterTerm]:
    """Raises EventError if it is not a filter."""
    terms = []
    for part in text.split("&&"):
        match = TERM.fullmatch(part)
        if not match:
            raise EventError(f"{shortened(part.strip())}: not a condition, {EXAMPLE}")
        kind = " ".join(match[1].split()) if match[1] else None
        if kind is not None and kind not in TYPES:
            raise EventError(f"{kind}: unknown type; one of {', '.join(TYPES)}")
        number = int(match[4], 16 if "x" in match[4].lower() else 10)
        if not -(1 << 63) <= number < 1 << 64:
            raise EventError(f"{match[4]}: more than 64 bits")
        terms.append(FilterTerm(kind, match[2], match[3], number))
    if len(terms) > MAX_CONDITIONS:
        raise EventError(f"a filter has at most {MAX_CONDITIONS} conditions")
    return terms


def conditions_of(terms: list[FilterTerm], values: Mapping[str, EventValue], event: str) -> tuple[Condition, ...]:
    """Say where the values of a filter are. Raises EventError for a name that the event does not have."""
    return tuple(_condition(term, values, event) for term in terms)


def _condition(term: FilterTerm, values: Mapping[str, EventValue], event: str) -> Condition:
    value = values.get(term.name)
    if value is None:
        known = f"; it has {', '.join(values)}" if values else ""
        raise EventError(f"{event} has no {shortened(term.name)} that a filter can use{known}")
    size, signed = TYPES[term.type] if term.type else (value.size, value.signed or term.number < 0)
    flags = CONDITION_SIGNED * signed | CONDITION_MEMORY * value.memory | CONDITION_NUMBER * (value.offset is None)
    assert term.comparison in COMPARISONS
    return Condition(term.comparison, term.number, size, value.offset or 0, value.number, flags)
