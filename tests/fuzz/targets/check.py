"""`check`: whatever a file and its section hold, findings or a refusal; a finding can be printed."""

from __future__ import annotations

from contextlib import suppress

import sframegen
from sframegen.base.errors import SframegenError
from tests.support.memory_files import written

SEEDS = (
    "sframe-file", "sframe-file-2", "sframe-file-big", "injected", "injected-tail", "unloaded", "gcc-unloaded", "library",
    "gcc-library", "gcc-added", "gcc-added-2",
)  # fmt: skip


def run(data: bytes) -> None:
    with suppress(SframegenError):
        for finding in sframegen.check(written(data)).findings:
            str(finding)
