"""Tools that tests of packages compare with: the test is skipped where one is missing."""

from __future__ import annotations

import shutil

import pytest


def needs(*programs: str) -> None:
    """Skip the test without one of these programs."""
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"no {program} on this machine")
