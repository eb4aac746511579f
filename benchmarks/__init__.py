"""Measurements, a module each: `python -m benchmarks.run --help`."""

from __future__ import annotations

import tests  # noqa: F401 - leaves the installed packages before those of the checkout
