"""The results for a file, as docs/measured/blind.json has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sframegen.checks.contradictions import RIGHT, UNDECIDED

from .compare import NOT_FOUND

if TYPE_CHECKING:
    from .compare import Compared
    from .trial import Trial

PLACES = 4  # that are named, of each file


def record(trial: Trial) -> dict[str, object]:
    """Shares are percentages, rounded down: 100 only where nothing is missing."""
    kinds = trial.ranges_known.bytes_by_verdict + trial.nothing_known.bytes_by_verdict
    return {
        "file": trial.file.name,
        "code_bytes": trial.ranges_known.code_bytes,
        "functions": len(trial.functions),
        "ranges_known": _found(trial.ranges_known),
        "nothing_known": _found(trial.nothing_known),
        "different_bytes": {kind: count for kind, count in kinds.items() if kind not in (RIGHT, NOT_FOUND, UNDECIDED)},
        "different": trial.names[:PLACES],
    }


def _found(compared: Compared) -> dict[str, object]:
    return {
        "recovered": percent(compared.emitted, compared.code_bytes, 2),
        "right": percent(compared.right, compared.right + compared.different, 4),
        "different": compared.different,
        "not_comparable": compared.incomparable,
    }


def speed(one: Trial, two: Trial) -> dict[str, object]:
    """MB of code a second of one process, and on the clock of one and of two."""
    size = sum(end - start for start, end in one.functions) / 1e6
    seconds = {"of_processor_time": one.seconds[0], "one_process": one.seconds[1], "two_processes": two.seconds[1]}
    return {"file": one.file.name, "decoded_mb": round(one.decoded_bytes / 1e6, 1)} | {
        name: round(size / used, 2) for name, used in seconds.items()
    }


def percent(part: int, whole: int, digits: int) -> float | None:
    scale = 10**digits
    return part * 100 * scale // whole / scale if whole else None
