"""Adds an SFrame section to existing ELF binaries, made from their DWARF call frame information.

The public names are those of `sframegen.api`, which is loaded when one of them is first used: `import sframegen` costs nothing.
"""

from __future__ import annotations

__version__ = "0.3.0"  # setup reads it here
TYPE_CHECKING = False  # like typing's, which takes a while to import: cli/start.py is to be imported next
if TYPE_CHECKING:
    from sframegen.api import *  # noqa: F403 - type checkers take a wildcard for names that are passed on

    __all__: list[str]
else:  # type checkers would take any name for a public one

    def __getattr__(name: str) -> object:
        from importlib import import_module  # noqa: PLC0415 - see above

        from sframegen.program.own_packages import refuse_strangers  # noqa: PLC0415

        refuse_strangers()
        api = import_module("sframegen.api")  # `from sframegen import api` would ask this function for it
        if name == "__all__":
            return api.__all__
        if name in api.__all__:
            return getattr(api, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted([*__getattr__("__all__"), "__all__", "__version__"])
