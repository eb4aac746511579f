"""Prints which room imports which, arrows that run up, and circles between modules. Exit status 1: there is one of the last two.

A room is a folder of modules: cfi, and each folder of sframegen/ and linker/ with what is in it. All imports count: those inside of
functions, and those for annotations only.
"""

from __future__ import annotations

import ast
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("cfi", "sframegen", "linker")
# From the lowest up: a room imports from those before it only.
ORDER = (
    "sframegen.base",
    "cfi",
    "sframegen.elf",
    "sframegen.program",
    "sframegen.format",
    "sframegen.tables",
    "sframegen.conversion",
    "sframegen.detached",
    "sframegen.registry",
    "sframegen.backtrace",
    "sframegen.code",
    "sframegen.stack",
    "linker.files",
    "linker.inject",
    "linker.existing",
    "linker.objects",
    "linker.merge",
    "sframegen.checks",
    "sframegen.profile",
    "sframegen.api",
    "sframegen.packages",
    "sframegen.fleet",
    "sframegen.cli",
)
# Importing these executes no code but the names of the API, which are loaded on first use.
FACES = {"sframegen", "linker"}
Graph = dict[str, set[str]]  # importing name -> imported names


def imported(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Full names in the imports among a module's nodes."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def modules(files: Mapping[str, Iterable[ast.AST]]) -> Graph:
    """`files`: the product's, with their nodes. Returns their modules, and which of them each imports."""
    names = {file: file.removesuffix(".py").replace("/", ".").removesuffix(".__init__") for file in files}
    ours = set(names.values())

    def module_of(name: str) -> str:
        while name and name not in ours:
            name = name.rpartition(".")[0]
        return name

    imports = {name: {module_of(other) for other in imported(files[file])} for file, name in names.items()}
    return {name: others - FACES - {"", name} for name, others in imports.items() if name not in FACES}


def room_of(module: str) -> str:
    if module == "sframegen.__main__":
        return "sframegen.cli"
    return "cfi" if module.startswith("cfi.") else ".".join(module.split(".")[:2])


def rooms(graph: Graph) -> Graph:
    arrows: Graph = {room_of(module): set() for module in graph}
    for module, others in graph.items():
        arrows[room_of(module)] |= {room_of(other) for other in others} - {room_of(module)}
    return arrows


def upward(graph: Graph) -> list[str]:
    """Imports of a room that is not below, and rooms without a place in the order."""
    places = {room: place for place, room in enumerate(ORDER)}
    unknown = [f"{room} has no place in the order" for room in rooms(graph) if room not in places]
    return unknown or [
        f"{module} imports {other}"
        for module, others in sorted(graph.items())
        for other in sorted(others)
        if places[room_of(other)] > places[room_of(module)]
    ]


def circle(graph: Graph) -> list[str]:
    """Modules that import one another in a circle; empty without one."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return [*error.args[1]]
    return []


def main() -> int:
    paths = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    graph = modules({path.relative_to(ROOT).as_posix(): ast.walk(ast.parse(path.read_bytes())) for path in paths})
    arrows = rooms(graph)
    for room in sorted(arrows, key=lambda room: ORDER.index(room) if room in ORDER else len(ORDER)):
        count = sum(room_of(module) == room for module in graph)
        print(f"{room:22} {count:3} modules  imports {', '.join(sorted(arrows[room])) or 'nothing'}")
    against, around = upward(graph), circle(graph)
    circles = "a circle" if around else "no circle"
    print(f"{len(arrows)} rooms, {sum(map(len, arrows.values()))} arrows, {len(against)} upward, {circles}")
    print(*against, *([" <- ".join(around)] if around else []), sep="\n")
    return bool(against or around)


if __name__ == "__main__":
    sys.exit(main())
