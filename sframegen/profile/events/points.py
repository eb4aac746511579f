"""A place in code where an event happens, a tracepoint or a probe: its perf event, and which of its events count."""

from __future__ import annotations

import ctypes
from enum import Enum
from struct import Struct
from typing import NamedTuple

from sframegen.profile.events.attributes import EventAttributes, open_event
from sframegen.profile.events.cpu_rings import online_cpus

MAX_CONDITIONS = 8
COMPARISONS = ("==", "!=", "<", "<=", ">", ">=", "&")  # by their number in the kernel program
CONDITION_SIGNED, CONDITION_MEMORY, CONDITION_NUMBER = 1, 2, 4
WORD = (1 << 64) - 1

_CONDITION = Struct("=QQIBBBx")


class PointKind(Enum):
    """The value is the kernel program's."""

    TRACEPOINT = "on_tracepoint"
    USER = "on_user_probe"
    KERNEL = "on_kernel_probe"


class Condition(NamedTuple):
    """Compares `size` bytes of what the kernel program gets, at `offset`; with CONDITION_MEMORY, of the memory `displacement` bytes
    after the address that is there; with CONDITION_NUMBER, `displacement` itself.
    """

    comparison: str
    value: int
    size: int
    offset: int = 0
    displacement: int = 0
    flags: int = 0

    def packed(self) -> bytes:
        how = COMPARISONS.index(self.comparison)
        return _CONDITION.pack(self.value & WORD, self.displacement & WORD, self.offset, self.size, self.flags, how)


class ProbePoint(NamedTuple):
    """`type`, `config`, and for probes `name` and `offset`: as perf_event_open takes them."""

    kind: PointKind
    type: int
    config: int
    name: bytes = b""  # of a file, or of a function of the kernel
    offset: int = 0
    conditions: tuple[Condition, ...] = ()

    def open(self, shown: str) -> int:
        """Open the event and return its descriptor. `shown`: the user's name of it. Raises EventError."""
        text = ctypes.create_string_buffer(self.name)
        place = ctypes.addressof(text) if self.name else 0
        attributes = EventAttributes(self.type, config=self.config, period=1, config1=place, config2=self.offset)
        return open_event(attributes, -1, min(online_cpus()), name=shown)  # the program runs for events on all CPUs

    def packed_conditions(self) -> bytes:
        packed = b"".join(condition.packed() for condition in self.conditions)
        return len(self.conditions).to_bytes(8, "little") + packed.ljust(_CONDITION.size * MAX_CONDITIONS, b"\0")


CONDITIONS_SIZE = 8 + _CONDITION.size * MAX_CONDITIONS
