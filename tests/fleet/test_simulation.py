from __future__ import annotations

import pytest

from benchmarks.fleet_simulation import Measured, simulate
from sframegen.fleet.batches import BATCH_BYTES

pytestmark = pytest.mark.once

LARGE = Measured(BATCH_BYTES, 1.0)


def test_workers_share_the_work_until_the_coordinator_is_busy() -> None:
    alone = simulate([LARGE] * 1000, 1, 0.0, 0.0)
    assert (alone.tasks, alone.seconds, alone.busy) == (1000, 1000.0, 1.0)
    assert simulate([LARGE] * 1000, 10, 0.0, 0.0).seconds == 100.0
    full = simulate([LARGE] * 1000, 1000, 0.0, 0.1)
    assert full.seconds == pytest.approx(101.0)
    assert full.coordinator == pytest.approx(0.99, abs=0.01)


def test_small_packages_cost_few_tasks() -> None:
    small = simulate([Measured(1000, 0.01)] * 64_000, 2, 0.0, 0.0)
    assert 1000 <= small.tasks < 1100
    assert small.busy > 0.99
