"""What a change does to a file, decided before a byte is written."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Plan:
    """What changes in a file. `str()` is a line for each change."""

    lines: tuple[str, ...]  #: each change, as text for people
    section_address: int | None = None  #: link-time address of the new section; None if none is added to a linked file
    section_offset: int | None = None  #: file offset of the new section, in bytes; None likewise

    def __str__(self) -> str:
        return "\n".join(self.lines)


def plan_of(change: object, section_address: int | None = None, section_offset: int | None = None) -> Plan:
    """A change that `str()` describes."""
    return Plan(tuple(str(change).splitlines()), section_address, section_offset)


def json_lines(plan: Plan | None) -> list[str] | None:
    """As all results have it in JSON."""
    return None if plan is None else list(plan.lines)
