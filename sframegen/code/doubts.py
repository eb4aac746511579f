"""What an analysis is told not to take for granted, though code and data suggest it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable


class Doubts(NamedTuple):
    """What is asked before it is believed."""

    enters: Callable[[int], bool]  #: whether a function may begin at an address
    continues: Callable[[int, int], bool]  #: whether control may get from a call to behind it, from a jump to its table's target
