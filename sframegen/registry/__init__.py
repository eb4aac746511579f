"""Which section describes which code of a process: the registry, and the proposed calls that register code in it.

The public names are loaded when they are first used. docs/registry.md and docs/jit.md say what they do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sframegen.registry.codectl_calls import CodeOption, codectl
    from sframegen.registry.interface import Caller, Memory
    from sframegen.registry.jit_writer import JitWriter
    from sframegen.registry.prctl_calls import prctl_register, prctl_unregister
    from sframegen.registry.regions import Region, Registry, RegistryError
    from sframegen.registry.sframe_calls import sframe_register, sframe_unregister
    from sframegen.registry.structures import CodeElfInfo, CodeJitInfo, JitEntry, SframeSetup

__all__ = [
    "Caller",
    "CodeElfInfo",
    "CodeJitInfo",
    "CodeOption",
    "JitEntry",
    "JitWriter",
    "Memory",
    "Region",
    "Registry",
    "RegistryError",
    "SframeSetup",
    "codectl",
    "prctl_register",
    "prctl_unregister",
    "sframe_register",
    "sframe_unregister",
]

MODULES = {
    "codectl_calls": ("CodeOption", "codectl"),
    "interface": ("Caller", "Memory"),
    "jit_writer": ("JitWriter",),
    "prctl_calls": ("prctl_register", "prctl_unregister"),
    "regions": ("Region", "Registry", "RegistryError"),
    "sframe_calls": ("sframe_register", "sframe_unregister"),
    "structures": ("CodeElfInfo", "CodeJitInfo", "JitEntry", "SframeSetup"),
}


def __getattr__(name: str) -> object:
    from importlib import import_module  # noqa: PLC0415 - only for those who use a public name

    for module, names in MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
