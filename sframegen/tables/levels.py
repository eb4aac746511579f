"""The optimisation levels: "none", "fast" and "size"."""

from __future__ import annotations

from sframegen.base.quick_typing import Literal, NamedTuple, get_args


class Level(NamedTuple):
    share: bool  # functions with the same rows store them once
    max_rows: int = 0  # rows of an FDE that neighbours share, at most
    max_span: int = 0  # bytes of code of such an FDE, at most
    rounds: int = 0  # how often groups are chosen, because the choice depends on shared rows, and these on the choice
    min_body: int = 0  # functions are cut after rows of at least this many bytes of code; prologues and epilogues have shorter ones
    longest_run: int = 1  # pieces in the longest runs of adjacent pieces whose repetitions are searched for


# fast: FDEs have no more rows than a medium-sized function, so that look-ups stay fast; joining adds rows, but cutting large
# functions saves as many. size: FDEs have more rows, but still few enough for a linear search.
LevelName = Literal["none", "fast", "size"]
LevelName.__doc__ = "How small a section is made: one FDE for each function, small with fast look-ups, or as small as possible."
_FAST = Level(share=True, max_rows=24, max_span=1024, rounds=1, min_body=24)
_LEVELS = (Level(share=False), _FAST, Level(share=True, max_rows=64, max_span=65536, rounds=3, min_body=12, longest_run=6))
LEVELS: dict[LevelName, Level] = dict(zip(get_args(LevelName), _LEVELS, strict=True))
