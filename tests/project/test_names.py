"""A public name of a module means one thing in the whole product, as the name of a module does (test_tidy.py)."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("cfi", "linker", "sframegen")

# One function for each of several things, under one name: what they are given and return is the same.
PROTOCOLS = {
    "sframegen/cli": {"command"},  # of each command, which cli/commands.py calls
    "sframegen/code/isa": {"effects", "jump_table", "matters", "pads", "point"},  # of each instruction set
    "sframegen/stack/abi": {"ends_call", "starts_thread"},  # of each machine
}
# The call of a kernel, and the model of the kernel's side of it: both have the name of the call.
CALLS = {"codectl", "sframe_register", "sframe_unregister"}
# What a command does, and the library's function for it; what `sframegen` starts, and what a command line does.
COMMANDS = {"add_section", "convert", "main"}
# To be renamed. Take a name off when it is; add none.
AMBIGUOUS = {
    "Header",
    "How",
    "Numbers",
    "Outcome",
    "Part",
    "Piece",
    "Place",
    "Sampling",
    "after",
    "check_object",
    "decode",
    "findings_of",
    "functions_of",
    "join",
    "pointed_at",
    "read",
    "sample",
    "sweep",
    "verdict",
    "within",
    "words_of",
}


def test_a_public_name_stands_for_one_thing() -> None:
    places: dict[str, set[str]] = defaultdict(set)
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        folder = path.parent.relative_to(ROOT).as_posix()
        for statement in ast.parse(path.read_bytes()).body:
            if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and not statement.name.startswith("_"):
                is_shared = statement.name in PROTOCOLS.get(folder, ())
                places[statement.name].add(folder if is_shared else path.relative_to(ROOT).as_posix())
    several = {name: sorted(found) for name, found in places.items() if len(found) > 1 and name not in CALLS | COMMANDS}
    assert {name: found for name, found in several.items() if name not in AMBIGUOUS} == {}
    assert AMBIGUOUS - several.keys() == set()
