"""What a check found."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class Severity(IntEnum):
    NOTE = 0
    WARNING = 1
    ERROR = 2


class Finding(NamedTuple):
    """`rule`: the check's stable name. `consumer`: whose rule it is, empty for the specification's. `offset`: in the section."""

    rule: str
    severity: Severity
    message: str
    consumer: str = ""
    offset: int | None = None
    address: int | None = None
