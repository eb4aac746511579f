"""What a section says of a PC, written by hand in tables: `rule(AMD64, "sp+16", "*(cfa-8)", "kept")`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from conformance.machines import Machine

PLACE = re.compile(r"(?P<deref>\*\()?(?P<base>[a-z]+|r\d+)(?P<offset>[+-]\d+)?\)?")


class Place(NamedTuple):
    """`base + offset`, or the 8 bytes at that address. `register`: DWARF's number; None: the CFA."""

    register: int | None
    offset: int
    deref: bool


class Rule(NamedTuple):
    """An answer of a look-up. Of a place None: the register keeps its value. Only "rule" has places."""

    kind: Literal["rule", "outermost", "none"]
    cfa: Place | None = None
    ra: Place | None = None
    fp: Place | None = None
    ra_signed: bool = False
    signal: bool = False
    key_b: bool = False

    def as_json(self) -> dict[str, Any]:
        if self.kind != "rule":
            return {"kind": self.kind}
        places = {name: place and place._asdict() for name, place in (("cfa", self.cfa), ("ra", self.ra), ("fp", self.fp))}
        return {"kind": self.kind, **places, "ra_signed": self.ra_signed, "signal": self.signal, "key_b": self.key_b}


OUTERMOST, NONE = Rule("outermost"), Rule("none")


def rule(machine: Machine, cfa: str, ra: str = "", fp: str = "kept", **marks: bool) -> Rule:
    """`ra` of nothing: where the ABI fixes it, else kept."""
    if not ra:
        ra = f"*(cfa{machine.fixed_ra:+})" if machine.fixed_ra else "kept"
    return Rule("rule", place(machine, cfa), place(machine, ra), place(machine, fp), **marks)


def place(machine: Machine, text: str) -> Place | None:
    if text == "kept":
        return None
    match = PLACE.fullmatch(text)
    assert match, text
    base = match["base"]
    registers = {"sp": machine.sp, "fp": machine.fp, "ra": machine.ra, "cfa": None}
    register = registers[base] if base in registers else int(base[1:])
    return Place(register, int(match["offset"] or 0), bool(match["deref"]))
