"""The project's own rules on its sources and documents: `python -m tools.lint` lists all that break one.

A rule is a function that yields offenders, `path:line: text`, of the files that git tracks.
"""

from __future__ import annotations

import tests  # noqa: F401 - all packages are then the installed ones, compiled or not, and never some of both
