"""Which section describes which code of a process: the registry, and the proposed calls that register code in it.

The public names are in `__init__.pyi`, and are imported when they are first used: docs/registration.md.
"""

from __future__ import annotations

from sframegen.program.own_packages import public_names

__all__, __getattr__ = public_names(__name__)
