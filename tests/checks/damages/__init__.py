"""Damage that leaves a section well formed, and wrong: a small function for each kind, and how `check` has to report it."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from sframegen.checks.finding import Finding, Severity
from tests.checks.damages import functions, rules
from tests.checks.damages.kinds import Copy, Damage
from tests.checks.damages.subject import NotHereError, NowhereError, Subject, with_section

__all__ = ["DAMAGES", "Damage", "NowhereError", "Outcome", "Subject", "tried", "with_section"]

PARTS = (rules, functions)
DAMAGES: dict[str, Damage] = {damage.name: damage for part in PARTS for damage in part.KINDS.all}
DRAWS = 60


class Outcome(NamedTuple):
    """`found`: a finding has the right severity; `named`: it also has the right rule and address, and no others if it is alone."""

    address: int
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
            address = damage.do(copy, random)
            data = copy.file()
        except NotHereError:
            continue
        return judged(damage, address, subject.new_findings(data))
    raise NowhereError


def judged(damage: Damage, address: int, findings: list[Finding]) -> Outcome:
    severity = Severity.NOTE if damage.leaves_gap else Severity.ERROR
    found = any(finding.severity >= severity for finding in findings)
    there = any((finding.rule, finding.severity, finding.address) == (damage.rule, severity, address) for finding in findings)
    others = {finding.rule for finding in findings if finding.severity and not finding.consumer} - {damage.rule}
    return Outcome(address, findings, found, there and (damage.leaves_gap or not others))
