"""The optimisation levels: "none", "fast" and "size"."""

from __future__ import annotations

from sframegen.base.quick_typing import Literal, NamedTuple, get_args


class Level(NamedTuple):
    """The settings of an optimisation level. `share`: functions with the same rows store them once.

    Neighbours may share an FDE of at most `max_rows` rows and `max_span` bytes of code. `rounds`: how often groups are chosen, as
    the choice depends on shared rows, and these on the choice. Functions are cut after rows that hold for at least `body` bytes
    of code, more than in prologues and epilogues. `longest`: adjacent pieces in the longest run whose repetitions are searched.
    """

    share: bool
    max_rows: int = 0
    max_span: int = 0
    rounds: int = 0
    body: int = 0
    longest: int = 1


# fast: FDEs have no more rows than a medium-sized function, so look-ups stay fast: joining adds rows, cutting large functions saves
# as many. size: an FDE's rows are still few enough for a linear scan.
LevelName = Literal["none", "fast", "size"]
LevelName.__doc__ = "How small a section is made: one FDE for each function, small with fast look-ups, or as small as possible."
_LEVELS = (Level(share=False), Level(True, 24, 1024, 1, 24), Level(True, 64, 65536, 3, 12, 6))
LEVELS: dict[LevelName, Level] = dict(zip(get_args(LevelName), _LEVELS, strict=True))
