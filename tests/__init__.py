"""Tests of the packages as they are installed, and what the studies of corpus/ share with them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# pytest and `python -m tests.fuzz` put the checkout first on the path: its packages would hide the installed ones.
sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != ROOT] + [str(ROOT)]


def with_checkout() -> dict[str, str]:
    """The environment in which `python -m tests.NAME` and `python -m corpus.NAME` start, wherever that is."""
    return os.environ | {"PYTHONPATH": str(ROOT)}
