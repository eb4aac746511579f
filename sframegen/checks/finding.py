"""A finding of a check, how bad it is, and for which readers of sections files are checked."""

from __future__ import annotations

from enum import IntEnum
from typing import Literal, NamedTuple, get_args

Consumer = Literal["kernel", "glibc", "gnu", "all"]
CONSUMERS: tuple[Consumer, ...] = get_args(Consumer)


class Severity(IntEnum):
    """How bad a finding is."""

    NOTE = 0  #: good to know
    WARNING = 1  #: nothing goes wrong because of it, or a stack trace ends early
    ERROR = 2  #: the section says something wrong, or is not accepted


class Instruction(NamedTuple):
    """An instruction near a finding."""

    address: int  #: link-time address
    text: str  #: in Intel's syntax or Arm's
    here: bool  #: the finding's address is in it; the finding holds before it is executed


class Finding(NamedTuple):
    """One thing that is wrong with a section."""

    rule: str  #: the check's stable name
    severity: Severity  #: how bad it is
    message: str  #: one line
    consumer: str = ""  #: whose demand it is; empty for the specification's rules
    offset: int | None = None  #: bytes from the start of the section
    address: int | None = None  #: link-time address of the code
    instructions: tuple[Instruction, ...] = ()  #: near the address, if the finding is about instructions
