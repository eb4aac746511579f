"""How soon a profile looks at what has happened: at once, or seldom enough to go on for days."""

from __future__ import annotations

import math
from typing import NamedTuple

from sframegen.profile.limits import WORKERS


class Pace(NamedTuple):
    """Seconds, and samples."""

    wait: float = 0.1  # at most, for news
    gather: float = 0.0  # after the first news, for more of it
    check: float = 1.0  # between two looks at what nobody reports
    count_interval: float = 1.0  # between two readings of the counts in the kernel: a stack is sent again after that
    publish: int = 1  # samples of a process walked here, after which the kernel gets its mappings
    workers: int = 1 + WORKERS  # that make tables: one more, since each waits for our next turn when it is done
    lazy: bool = False  # what processes map is read, and tables are made, once a sample needs it


AT_ONCE = Pace()
SPARING = Pace(wait=1.0, gather=1.0, check=10.0, count_interval=math.inf, publish=8, workers=2, lazy=True)  # `cut` reads the counts
TURNS = 10  # at least, in an interval


def sparing(interval: float) -> Pace:
    """Return the pace of a profile that is cut into intervals of that length."""
    return SPARING._replace(gather=min(SPARING.gather, interval / TURNS))
