"""LIEF, as a command: rewrite.py INPUT OUTPUT [add-library NAME | set-rpath PATH]."""

from __future__ import annotations

import sys

import lief

source, target, *change = sys.argv[1:]
binary = lief.parse(source)
assert isinstance(binary, lief.ELF.Binary)
match change:
    case ["add-library", name]:
        binary.add_library(name)
    case ["set-rpath", path]:
        binary.add(lief.ELF.DynamicEntryRunPath(path))
binary.write(target)
