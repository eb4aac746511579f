"""What most cases have besides their subject: a function with an entry, a body, and a body that has a frame pointer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from conformance.rules import Rule, rule
from conformance.writer import Function, Row

if TYPE_CHECKING:
    from conformance.machines import Machine

START, SIZE = 0x1000, 0x40
BODY, BY_FP, TAIL = 4, 0x20, 0x3C


def entry(machine: Machine) -> Rule:
    return rule(machine, *machine.entry_rule)


def frame(machine: Machine) -> Rule:
    return rule(machine, *machine.frame_rule)


def frame_by_fp(machine: Machine) -> Rule:
    cfa, *rest = machine.frame_rule
    return rule(machine, cfa.replace("sp", "fp"), *rest)


def usual_rows(machine: Machine) -> tuple[Row, ...]:
    return (
        Row(0, machine.entry),
        Row(BODY, machine.frame),
        Row(BY_FP, machine.frame, base="fp"),
        Row(TAIL, machine.entry),
    )


def function(machine: Machine, start: int = START, **more: int | bool) -> Function:
    return Function(start, SIZE, usual_rows(machine), **more)  # type: ignore[arg-type]


def short(machine: Machine, start: int = START, size: int = SIZE, **more: int | bool) -> Function:
    """With one row."""
    return Function(start, size, (Row(0, machine.entry),), **more)  # type: ignore[arg-type]


def usual_answers(machine: Machine, start: int = START) -> dict[int, Rule]:
    """At both ends of each row."""
    rules = ((0, entry(machine)), (BODY, frame(machine)), (BY_FP, frame_by_fp(machine)), (TAIL, entry(machine)))
    ends = [*(at for at, _ in rules[1:]), SIZE]
    return {start + at: answer for (first, answer), end in zip(rules, ends, strict=True) for at in (first, end - 1)}
