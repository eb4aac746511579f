"""`check --instructions`: whatever code, CFI and section are, verdicts count bytes, and findings can be printed."""

from __future__ import annotations

import json
from contextlib import suppress

import sframegen
from sframegen.base.errors import FormatError
from tests.support.memory_files import written

SEEDS = ("gcc-library", "gcc-added", "gcc-added-2", "gcc-stripped", "library")


def run(data: bytes) -> None:
    with suppress(FormatError):
        report = sframegen.check(written(data), instructions=True)
        assert all(count >= 0 for code in report.instructions.values() for count in code.values())
        json.dumps(report.to_json())
        for finding in report.findings:
            assert finding.instructions or not finding.rule.startswith("instructions-") or finding.rule == "instructions-more"
            str(finding)
