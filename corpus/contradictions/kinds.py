"""What is wrong with the CFI of a place, by what it says there, what the code does, and the instruction before."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from .found import Place

EQUATION = re.compile(r"\(cfa, ra, fp\) = \((\w+)(?: \+ (\d+))?, (.*), (.*)\)")
MOVES = re.compile(r"(push|pop)|(add|sub) [rs]?sp, (?:sp, )?#?(0x[0-9a-f]+|\d+)$|lea rsp, \[rsp ([+-]) (0x[0-9a-f]+|\d+)\]$")
FPS = ("rbp", "x29")
FEW = 16  # bytes: two or three instructions


class Said(NamedTuple):
    base: str
    offset: int
    ra: str
    fp: str


def said(text: str) -> Said:
    match = EQUATION.match(text)
    return Said(match[1], int(match[2] or 0), match[3], match[4]) if match else Said("", 0, "", "")


def before(place: Place) -> str:
    """The instruction before the place."""
    here = next(number for number, line in enumerate(place.instructions) if line.startswith(">"))
    return place.instructions[here - 1].partition(": ")[2] if here else ""


def moved(instruction: str) -> int | None:
    """Bytes that it adds to SP's distance from the CFA."""
    match = MOVES.match(instruction)
    if match is None:
        return None
    if match[1]:
        return 8 if match[1] == "push" else -8
    number = int(match[3] or match[5], 0)
    return number if match[2] == "sub" or match[4] == "-" else -number


def is_by_entry(place: Place) -> bool:
    claim = said(place.claim)
    return claim.fp in FPS and (claim.base, claim.offset) in (("rsp", 8), ("sp", 0))


def is_late(place: Place) -> bool:
    """The CFI still says what held before one instruction, for a few more."""
    claim, proof = said(place.claim), said(place.proof)
    return claim.base == proof.base and place.size <= FEW and proof.offset - claim.offset == moved(before(place))


def is_by_fp(place: Place) -> bool:
    claim, proof = said(place.claim), said(place.proof)
    return claim.base in FPS and proof.base not in FPS


def is_of_fp(place: Place) -> bool:
    claim, proof = said(place.claim), said(place.proof)
    return claim[:2] == proof[:2] and claim.fp != proof.fp


# In this order: what is reported of each, and which it is.
KINDS: dict[str, tuple[str, Callable[[Place], bool]]] = {
    "no rows": ("The CFI has the rule of an entry, and the code has a frame", is_by_entry),
    "late": ("The row comes an instruction or two late", is_late),
    "FP is the caller's": ("The CFA is counted from FP, which is not yet set, or is again the caller's", is_by_fp),
    "place of FP": ("The caller's FP is elsewhere", is_of_fp),
    "distance": ("The CFA's distance from its register is wrong", lambda _place: True),
}


def kind(place: Place) -> str:
    return next(name for name, (_, matches) in KINDS.items() if matches(place))
