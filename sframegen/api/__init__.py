"""The public functions: what `import sframegen` offers. docs/library.md says how to use them, and what stays.

Each is imported when it is first used: a command needs one of them, and imports of the others take longer than some commands.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sframegen.api.added import Outcome, Summary
    from sframegen.api.adding import add_section
    from sframegen.api.changing import convert, remove
    from sframegen.api.converted import VersionChange
    from sframegen.api.merging import Merged, merge
    from sframegen.api.planned import Plan
    from sframegen.api.reading import check, read
    from sframegen.api.removed import SectionRemoval
    from sframegen.base.errors import FormatError, Refusal, RefusedError, SframegenError, VerificationError
    from sframegen.checks.finding import CheckReport, Consumer, Finding, Instruction, Severity, Verdict
    from sframegen.conversion.coverage import FunctionFates
    from sframegen.elf.compressed import Compression
    from sframegen.format.decode import SframeSection
    from sframegen.format.layouts import FormatVersion
    from sframegen.format.model import FdeType, FunctionRow, FunctionTable, Kind, Rule, SframeFunction, Where
    from sframegen.tables.levels import LevelName

    __all__ = [  # noqa: RUF022 - in the order in which people read them
        "add_section", "read", "check", "convert", "remove", "merge", "Summary", "Outcome", "SframeSection", "CheckReport",
        "VersionChange", "SectionRemoval", "Merged", "Plan", "FunctionFates", "SframeFunction",
        "FunctionRow", "FunctionTable", "Rule", "Where", "Kind", "FdeType", "Consumer", "Finding", "Severity", "Instruction",
        "Verdict", "SframegenError", "FormatError", "VerificationError", "RefusedError", "Refusal", "FormatVersion",
        "LevelName", "Compression",
    ]  # fmt: skip
else:  # type checkers would take any name for a public one
    _MODULES = {  # in the order of docs/library.md: functions, results, what is in a section, findings, errors, types
        "sframegen.api.adding": ("add_section",),
        "sframegen.api.reading": ("read", "check"),
        "sframegen.api.changing": ("convert", "remove"),
        "sframegen.api.merging": ("merge", "Merged"),
        "sframegen.api.added": ("Summary", "Outcome"),
        "sframegen.format.decode": ("SframeSection",),
        "sframegen.checks.finding": ("CheckReport", "Consumer", "Finding", "Severity", "Instruction", "Verdict"),
        "sframegen.api.converted": ("VersionChange",),
        "sframegen.api.removed": ("SectionRemoval",),
        "sframegen.api.planned": ("Plan",),
        "sframegen.conversion.coverage": ("FunctionFates",),
        "sframegen.format.model": ("SframeFunction", "FunctionRow", "FunctionTable", "Rule", "Where", "Kind", "FdeType"),
        "sframegen.base.errors": ("SframegenError", "FormatError", "VerificationError", "RefusedError", "Refusal"),
        "sframegen.format.layouts": ("FormatVersion",),
        "sframegen.tables.levels": ("LevelName",),
        "sframegen.elf.compressed": ("Compression",),
    }
    _MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}
    __all__ = list(_MODULE_OF)

    def __getattr__(name: str) -> object:
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(_MODULE_OF[name]), name)
        return found
