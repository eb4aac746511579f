"""All cases, in their order."""

from __future__ import annotations

from functools import cache

from conformance import damages
from conformance.case import Case, Combination
from conformance.features import defaults, flexible, functions, headers, rows
from conformance.machines import MACHINES

SUBJECTS = (headers, functions, rows, defaults, flexible, damages)
COMBINATIONS = tuple(Combination(version, machine) for version in (1, 2, 3) for machine in MACHINES if version in machine.versions)


@cache
def all_cases() -> tuple[Case, ...]:
    made = tuple(case for combination in COMBINATIONS for subject in SUBJECTS for case in subject.cases(combination))
    assert len({case.name for case in made}) == len(made)
    return made
