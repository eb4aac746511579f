"""Kinds of damage to a section, the file around it, and what it says: a small function each, and how `check` has to report it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tests.checks.damages import bounds, elf_file, fres, functions, index, rules
from tests.checks.damages.kinds import Copy, Damage, Place
from tests.checks.damages.subject import NotHereError, NowhereError, Subject, with_section

if TYPE_CHECKING:
    from random import Random

    from sframegen.checks.finding import Finding

__all__ = ["DAMAGES", "Damage", "NowhereError", "Outcome", "Place", "Subject", "tried", "with_section"]

PARTS = (bounds, index, fres, rules, functions, elf_file)
DAMAGES: dict[str, Damage] = {damage.name: damage for part in PARTS for damage in part.KINDS.all}
DRAWS = 60


class Outcome(NamedTuple):
    """`found`: at all, as severe as it is; `named`: by its rules, the first at its place, and by no other if it stands alone."""

    place: Place
    findings: list[Finding]
    found: bool
    named: bool


def tried(damage: Damage, subject: Subject, random: Random) -> Outcome:
    """Damages the file somewhere, and checks it. NowhereError where it has nothing of the kind."""
    if subject.layout.version not in damage.versions:
        raise NowhereError
    for _ in range(DRAWS):
        copy = Copy(subject)
        try:
            place = damage.do(copy, random)
            data = copy.file()
        except NotHereError:
            continue
        return judged(damage, place, subject.new_findings(data))
    raise NowhereError


def judged(damage: Damage, place: Place, findings: list[Finding]) -> Outcome:
    found = any(finding.severity >= damage.severity for finding in findings)
    rules = {finding.rule for finding in findings if finding.severity is damage.severity}
    there = any(finding.rule == damage.rules[0] and place.is_of(finding) for finding in findings)
    others = {finding.rule for finding in findings if finding.severity and not finding.consumer} - set(damage.rules)
    named = there and rules.issuperset(damage.rules) and not (damage.alone and others)
    return Outcome(place, findings, found, named)
