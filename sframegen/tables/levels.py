"""Levels of optimisation: how small a section is made."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args


class Level(NamedTuple):
    """`share`: ranges with the same rows have them once. Neighbours share an FDE of at most this many rows and bytes of code.

    `rounds`: which of them do depends on which rows are shared, and that on which stay alone. Functions are cut after rows that
    hold for at least `body` bytes of code: those of prologues and epilogues hold for fewer. Repetitions of up to `longest` pieces
    of functions, side by side, are looked for.
    """

    share: bool
    max_rows: int = 0
    max_span: int = 0
    rounds: int = 0
    body: int = 0
    longest: int = 1


# fast: no look-up scans more rows than in a function of middling size; what joined functions cost, cuts of large ones make up for.
# size: the rows of an FDE are still few enough for a linear scan.
LevelName = Literal["none", "fast", "size"]
_LEVELS = (Level(share=False), Level(True, 24, 1024, 1, 24), Level(True, 64, 65536, 3, 12, 6))
LEVELS: dict[LevelName, Level] = dict(zip(get_args(LevelName), _LEVELS, strict=True))
