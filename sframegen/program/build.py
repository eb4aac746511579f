"""Which of the two builds runs: hot loops compiled by Cython, or the same files interpreted."""

from __future__ import annotations

from importlib import import_module
from typing import Literal

MODULES = (
    "cfi.columns",
    "cfi.machine",
    "cfi.numbers",
    "cfi.scan",
    "sframegen.checks.against_cfi.sweep",
    "sframegen.checks.specification.section_walk",
    "sframegen.code.function.blocks",
    "sframegen.code.decoding.instruction_columns",
    "sframegen.conversion.endings",
    "sframegen.elf.columns",
    "sframegen.format.columns",
    "sframegen.format.pack",
    "sframegen.format.section_bytes",
    "sframegen.tables.join",
    "sframegen.conversion.split",
    "sframegen.conversion.resolve",
    "sframegen.conversion.tally",
)


def build_kind() -> Literal["compiled", "interpreted"]:
    """`compiled` only if every hot loop is."""
    return "compiled" if all(import_module(name).COMPILED for name in MODULES) else "interpreted"
