"""Studies of real files, a folder each: `python -m corpus.STUDY --help`. README.md has them all."""

from __future__ import annotations

import tests  # noqa: F401 - leaves the installed packages before those of the checkout
