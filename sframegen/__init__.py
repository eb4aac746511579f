"""Gives existing ELF binaries an SFrame section, made from their DWARF call frame information.

What is public is in `sframegen.api` and loaded on first use: `import sframegen` itself costs nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as typing's, which takes a while to import: program.py is to be next
if TYPE_CHECKING:
    from typing import Any

    from sframegen.api import CheckReport as CheckReport
    from sframegen.api import FdeType as FdeType
    from sframegen.api import Finding as Finding
    from sframegen.api import FormatError as FormatError
    from sframegen.api import FunctionFates as FunctionFates
    from sframegen.api import FunctionTable as FunctionTable
    from sframegen.api import Instruction as Instruction
    from sframegen.api import Kind as Kind
    from sframegen.api import Merged as Merged
    from sframegen.api import Rule as Rule
    from sframegen.api import SectionRemoval as SectionRemoval
    from sframegen.api import Severity as Severity
    from sframegen.api import SframeSection as SframeSection
    from sframegen.api import Summary as Summary
    from sframegen.api import Verdict as Verdict
    from sframegen.api import VersionChange as VersionChange
    from sframegen.api import Where as Where
    from sframegen.api import add_section as add_section
    from sframegen.api import check as check
    from sframegen.api import convert as convert
    from sframegen.api import examine as examine
    from sframegen.api import find as find
    from sframegen.api import merge as merge
    from sframegen.api import read as read
    from sframegen.api import remove as remove


def __getattr__(name: str) -> Any:  # noqa: ANN401 - any public name
    from importlib import import_module  # noqa: PLC0415 - see above

    api = import_module("sframegen.api")  # `from sframegen import api` would ask this function for it
    if name in api.__all__:
        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
