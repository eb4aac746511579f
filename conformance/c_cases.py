"""Cases -> tables in C: sframe_cases.c."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from conformance.case import Case
    from conformance.rules import Place, Rule

KINDS = {"none": "SFRAME_NONE", "rule": "SFRAME_RULE", "outermost": "SFRAME_OUTERMOST"}
VERDICTS = {"valid": "SFRAME_VALID", "invalid": "SFRAME_INVALID", "open": "SFRAME_OPEN"}
BYTES_A_LINE = 24
HEAD = '// SPDX-License-Identifier: Apache-2.0\n/* Made by `make conformance`: do not edit. */\n#include "sframe_conformance.h"\n'


def c_source(cases: Iterable[Case]) -> str:
    cases = list(cases)
    numbers: dict[Rule, int] = {}
    bodies = [line for number, case in enumerate(cases) for line in _body(number, case, numbers)]
    rules = [f"\t{{ {_rule(one)} }}," for one in numbers]
    table = [line for number, case in enumerate(cases) for line in _row(number, case)]
    parts = [
        HEAD,
        *("static const struct sframe_rule rules[] = {", *rules, "};", ""),
        *bodies,
        *("const struct sframe_case sframe_cases[] = {", *table, "};", ""),
        "const unsigned sframe_case_count = sizeof sframe_cases / sizeof *sframe_cases;",
    ]
    return "\n".join(parts) + "\n"


def _body(number: int, case: Case, numbers: dict[Rule, int]) -> Iterator[str]:
    """Answers of several rules are neighbours in a table of their own."""
    yield f"static const uint8_t section_{number}[] = {{"
    data = case.section or b"\0"  # C has no empty arrays
    for at in range(0, len(data), BYTES_A_LINE):
        yield "\t" + ",".join(map(str, data[at : at + BYTES_A_LINE])) + ","
    yield "};"
    probes = []
    for place, probe in enumerate(case.probes):
        places = [numbers.setdefault(answer, len(numbers)) for answer in probe.answers]
        if len(places) > 1:
            texts = ", ".join(f"{{ {_rule(answer)} }}" for answer in probe.answers)
            yield f"static const struct sframe_rule answers_{number}_{place}[] = {{ {texts} }};"
            where = f"answers_{number}_{place}"
        else:
            where = f"&rules[{places[0]}]" if places else "NULL"
        probes.append(f"\t{{ {probe.pc:#x}, {where}, {len(places)} }},")
    yield f"static const struct sframe_probe probes_{number}[] = {{"
    yield from probes
    yield "};"


def _row(number: int, case: Case) -> Iterator[str]:
    yield f'\t{{ "{case.name}", "{case.why}",'
    start, end = case.code
    yield f"\t  {case.version}, {case.machine.abi}, {VERDICTS[case.verdict]}, {case.address:#x}, {start:#x}, {end:#x},"
    yield f"\t  section_{number}, {len(case.section)}, probes_{number}, {len(case.probes)} }},"


def _rule(rule: Rule) -> str:
    if rule.kind != "rule":
        return f".kind = {KINDS[rule.kind]}"
    places = ", ".join(_place(place) for place in (rule.cfa, rule.ra, rule.fp))
    return f"SFRAME_RULE, {places}, {int(rule.ra_signed)}, {int(rule.signal)}, {int(rule.key_b)}"


def _place(place: Place | None) -> str:
    if place is None:
        return "{ SFRAME_KEPT, 0, 0 }"
    base = "SFRAME_CFA" if place.register is None else str(place.register)
    return f"{{ {base}, {place.offset}, {int(place.deref)} }}"
