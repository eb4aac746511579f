"""Which of the two builds runs: hot loops compiled by Cython, or the same files interpreted."""

from __future__ import annotations

from importlib import import_module
from typing import Literal

# setup.py reads this list, too.
MODULES = (
    "cfi.columns",
    "cfi.machine",
    "cfi.numbers",
    "cfi.scan",
    "sframegen.checks.against_cfi.sweep",
    "sframegen.checks.specification.section_walk",
    "sframegen.code.decoding.instruction_columns",
    "sframegen.code.function.blocks",
    "sframegen.conversion.endings",
    "sframegen.conversion.resolve",
    "sframegen.conversion.split",
    "sframegen.conversion.tally",
    "sframegen.elf.columns",
    "sframegen.format.columns",
    "sframegen.format.pack",
    "sframegen.format.section_bytes",
    "sframegen.profile.tables.paginate",
    "sframegen.profile.walk.columns",
    "sframegen.profile.walk.steps",
    "sframegen.tables.join",
)


def build_kind() -> Literal["compiled", "interpreted"]:
    """`compiled` only if every hot loop is."""
    return "compiled" if all(import_module(name).COMPILED for name in MODULES) else "interpreted"
