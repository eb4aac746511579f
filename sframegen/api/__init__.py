"""The public functions: what `import sframegen` offers. docs/library.md says how to use them, and what stays."""

from __future__ import annotations

from cfi.errors import FormatError, SframegenError, VerificationError
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
from sframegen.checks.check import CheckReport
from sframegen.checks.finding import Finding, Instruction, Severity
from sframegen.conversion.coverage import FunctionFates
from sframegen.format.decode import SframeSection
from sframegen.format.model import FdeType, FunctionTable, Kind, Rule, Where

__all__ = [
    "CheckReport", "FdeType", "Finding", "FormatError", "FunctionFates", "FunctionTable", "Instruction", "Kind", "Merged",
    "Plan", "Refusal", "RefusedError", "Rule", "SectionRemoval", "Severity", "SframeSection", "SframegenError", "Summary",
    "Verdict", "VerificationError", "VersionChange", "Where",
    "add_section", "check", "convert", "merge", "read", "remove",
]  # fmt: skip
