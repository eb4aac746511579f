"""Tells whether the hot loops are compiled by Cython in this installation, or interpreted from the same files."""

from __future__ import annotations

import os
import sys
from importlib.machinery import EXTENSION_SUFFIXES

TYPE_CHECKING = False  # like typing's, which takes longer to import than `--version` to print
if TYPE_CHECKING:
    from typing import Literal

# The modules with hot loops. setup.py reads this list, too.
MODULES = (
    "sframegen.base.columns",
    "cfi.machine",
    "cfi.scan",
    "linker.merge.object_scan",
    "sframegen.checks.sweep",
    "sframegen.checks.specification.section_walk",
    "sframegen.code.context.function_starts",
    "sframegen.code.decoding.instruction_columns",
    "sframegen.code.function.blocks",
    "sframegen.code.function.findings",
    "sframegen.code.whole_file.boundaries",
    "sframegen.code.whole_file.evidence",
    "sframegen.code.whole_file.function_ranges",
    "sframegen.code.whole_file.interprocedural",
    "sframegen.code.whole_file.proof",
    "sframegen.conversion.final_calls",
    "sframegen.conversion.resolve",
    "sframegen.conversion.split",
    "sframegen.conversion.byte_counts",
    "sframegen.elf.code_bytes.padding",
    "sframegen.elf.columns",
    "sframegen.elf.function_scan",
    "sframegen.format.columns",
    "sframegen.format.pack",
    "sframegen.format.section_bytes",
    "sframegen.format.unpack",
    "sframegen.profile.events.timed_records",
    "sframegen.profile.report.formats.path_bytes",
    "sframegen.profile.report.tree_passes",
    "sframegen.profile.stacks.call_tree",
    "sframegen.profile.stacks.numbered",
    "sframegen.profile.tables.paginate",
    "sframegen.profile.walk.steps",
    "sframegen.stack.walking.step",
    "sframegen.stack.walking.walk",
    "sframegen.tables.join",
    "sframegen.tables.narrow",
)

# A compiled module that setup.py generates, with the code that all compiled modules share.
SHARED_MODULE = "cfi.compiled_shared"


def version_line() -> str:
    """Return what `--version` prints."""
    return f"sframegen {sys.modules['sframegen'].__version__} ({build_kind()})"


def build_kind() -> Literal["compiled", "interpreted"]:
    """Return `compiled` if all hot loops are, else `interpreted`, without importing them."""
    return "compiled" if all(is_compiled(name) for name in MODULES) else "interpreted"


def is_compiled(name: str) -> bool:
    """Return True if the module has a compiled file, which imports prefer."""
    path = os.path.join(packages_directory(), *name.split("."))  # noqa: PTH118 - without pathlib, which takes longer
    return any(os.path.exists(path + suffix) for suffix in EXTENSION_SUFFIXES)  # noqa: PTH110


def packages_directory() -> str:
    return os.path.dirname(os.path.dirname(os.path.realpath(str(sys.modules["sframegen"].__file__))))  # noqa: PTH120
