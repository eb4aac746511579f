"""The public functions: what `import sframegen` offers. docs/library.md says how to use them, and what stays.

Each is imported when it is first used: a command needs one of them, and imports of the others take longer than some commands.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cfi.errors import FormatError, SframegenError, VerificationError
    from linker.files.read_back import Reader
    from linker.files.refusals import Refusal, RefusedError
    from sframegen.api.added import Summary
    from sframegen.api.adding import add_section
    from sframegen.api.changing import convert, remove
    from sframegen.api.converted import VersionChange
    from sframegen.api.merged import Merged
    from sframegen.api.merging import merge
    from sframegen.api.planned import Plan
    from sframegen.api.reading import check, read
    from sframegen.api.removed import SectionRemoval
    from sframegen.checks.against_cfi.comparison import Verdict
    from sframegen.checks.check import Consumer
    from sframegen.checks.check_report import CheckReport
    from sframegen.checks.finding import Finding, Instruction, Severity
    from sframegen.conversion.coverage import FunctionFates
    from sframegen.elf.compressed import Compression
    from sframegen.format.decode import SframeSection
    from sframegen.format.layouts import FormatVersion
    from sframegen.format.model import FdeType, FunctionTable, Kind, Rule, Where
    from sframegen.tables.optimize import LevelName

    __all__ = [
        "CheckReport", "Compression", "Consumer", "FdeType", "Finding", "FormatError", "FormatVersion", "FunctionFates",
        "FunctionTable", "Instruction", "Kind", "LevelName", "Merged", "Plan", "Reader", "Refusal", "RefusedError", "Rule",
        "SectionRemoval", "Severity", "SframeSection", "SframegenError", "Summary", "Verdict", "VerificationError",
        "VersionChange", "Where",
        "add_section", "check", "convert", "merge", "read", "remove",
    ]  # fmt: skip
else:  # type checkers would take any name for a public one
    _MODULES = {
        "cfi.errors": ("FormatError", "SframegenError", "VerificationError"),
        "linker.files.read_back": ("Reader",),
        "linker.files.refusals": ("Refusal", "RefusedError"),
        "sframegen.api.added": ("Summary",),
        "sframegen.api.adding": ("add_section",),
        "sframegen.api.changing": ("convert", "remove"),
        "sframegen.api.converted": ("VersionChange",),
        "sframegen.api.merged": ("Merged",),
        "sframegen.api.merging": ("merge",),
        "sframegen.api.planned": ("Plan",),
        "sframegen.api.reading": ("check", "read"),
        "sframegen.api.removed": ("SectionRemoval",),
        "sframegen.checks.against_cfi.comparison": ("Verdict",),
        "sframegen.checks.check": ("Consumer",),
        "sframegen.checks.check_report": ("CheckReport",),
        "sframegen.checks.finding": ("Finding", "Instruction", "Severity"),
        "sframegen.conversion.coverage": ("FunctionFates",),
        "sframegen.elf.compressed": ("Compression",),
        "sframegen.format.decode": ("SframeSection",),
        "sframegen.format.layouts": ("FormatVersion",),
        "sframegen.format.model": ("FdeType", "FunctionTable", "Kind", "Rule", "Where"),
        "sframegen.tables.optimize": ("LevelName",),
    }
    _MODULE_OF = dict(sorted((name, module) for module, names in _MODULES.items() for name in names))
    __all__ = list(_MODULE_OF)

    def __getattr__(name: str) -> object:
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(_MODULE_OF[name]), name)
        return found
