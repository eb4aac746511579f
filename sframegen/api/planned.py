"""What a change does to a file, decided before a byte is written."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


@dataclass(frozen=True)
class Plan:
    """What changes in a file. `str()` is a line for each change."""

    lines: tuple[str, ...]  #: each change, as text for people
    section_address: int | None = None  #: of the new section, as linked; 0 if not loaded; None if none is added to a linked file
    section_offset: int | None = None  #: file offset of the new section, in bytes; None likewise
    file_size: int | None = None  #: of the new file, in bytes; None if a section is exchanged where it is, and likewise

    def __str__(self) -> str:
        return "\n".join(self.lines)


def plan_of(
    change: object, section_address: int | None = None, section_offset: int | None = None, file_size: int | None = None
) -> Plan:
    """A change that `str()` describes."""
    return Plan(tuple(str(change).splitlines()), section_address, section_offset, file_size)


def json_of(result: DataclassInstance, plan: Plan | None) -> dict[str, Any]:
    """A result as JSON has it: lists for tuples, and for its plan the lines of that."""
    values = asdict(replace(result, plan=None))
    lists = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
    return lists | {"plan": None if plan is None else list(plan.lines)}
