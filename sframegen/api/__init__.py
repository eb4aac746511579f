"""The public functions of `import sframegen`. docs/library.md says how to use them, and which parts are stable.

The names are in `__init__.pyi`. Each is imported when it is first used: a command needs one of them, and imports of the others take
longer than some commands.
"""

from __future__ import annotations

from sframegen.program.own_packages import public_names

__all__, __getattr__ = public_names(__name__)
