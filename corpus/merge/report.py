"""The results of a run, as docs/measured/merge.json has them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .damage import Tried
    from .parts import Row


def results(rows: Sequence[Row], tried: Sequence[Tried]) -> dict[str, object]:
    """`known`: FDEs that may differ, by why."""
    return {
        "comparisons": len(rows),
        "fdes": sum(row.outcome.fdes for row in rows),
        "differences": sum(len(row.outcome.differences) for row in rows),
        "known": sum((row.outcome.known for row in rows), Counter()),
        "cases": list(map(_record, rows)),
        "damaged_objects": tried,
    }


def _record(row: Row) -> dict[str, object]:
    outcome = row.outcome
    return {
        "part": row.part,
        "machine": row.machine,
        "case": "; ".join([row.case, *outcome.notes]),
        "objects": row.objects,
        "fdes": outcome.fdes,
        "rows": outcome.rows,
        "known": outcome.known.total(),
        "differences": outcome.differences,
    }
