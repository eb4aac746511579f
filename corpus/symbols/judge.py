"""What llvm-symbolizer says of the same addresses, and what becomes of each difference."""

from __future__ import annotations

import json
import posixpath
import re
import subprocess
from collections import defaultdict
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from sframegen.elf.symbols import FunctionColumns, SymbolTable, symbol_tables
from tests.support.peers import Peers

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from sframegen.elf.file import ElfFile

PART = re.compile(r"\.(cold|part\.\d+|isra\.\d+|constprop\.\d+|lto_priv\.\d+|localalias)(?=\.|$)")
FUNCTION = re.compile(r"\bDW_TAG_(subprogram|inlined_subroutine|entry_point)\b")


class Outcome(Enum):
    """What is true of an address, in the words of the report."""

    EQUAL = "equal"
    ALIAS = "another symbol"
    PART = "a part"
    NO_LINE = "no line"
    NO_FUNCTION = "no function"
    OTHERS_LINE = "line of another"
    DIFFERENT = "different"


class Level(NamedTuple):
    """A function at an address, the outermost first."""

    function: str
    source: str
    line: int


Levels = tuple[Level, ...]


def symbolizer() -> str:
    """Return the newest there is."""
    return str(Peers().directory / "bin" / "llvm-symbolizer")


def levels_by_llvm(debug: Path, addresses: Iterable[int]) -> list[Levels]:
    command = [symbolizer(), "--inlines", "--functions=linkage", "--no-demangle", "--output-style=JSON", f"--obj={debug}"]
    asked = "".join(f"{address:#x}\n" for address in addresses)
    lines = subprocess.run(command, input=asked, text=True, check=True, capture_output=True).stdout.splitlines()
    return [_levels(json.loads(line)["Symbol"]) for line in lines]


def _levels(symbols: Sequence[dict[str, str | int]]) -> Levels:
    return tuple(Level(str(one["FunctionName"]), str(one["FileName"]), int(one["Line"])) for one in reversed(symbols))


class Judge:
    """Compares the answers of one file."""

    def __init__(self, debug: ElfFile, path: Path) -> None:
        self._path = path
        self._addresses: defaultdict[str, set[int]] = defaultdict(set)  # of symbols, by name
        self._known: dict[tuple[str, int, Level], Outcome] = {}
        self._functions = FunctionColumns(debug)
        for section in symbol_tables(debug):
            table = SymbolTable(debug, section)
            names = table.names
            for symbol in table:
                end = names.find(b"\0", symbol.st_name)
                self._addresses[_without_version(names[symbol.st_name : end].decode(errors="replace"))].add(symbol.st_value)

    def outcome(self, address: int, ours: Levels, theirs: Levels) -> Outcome:
        if not ours and not any(level.line for level in theirs):
            return Outcome.NO_LINE
        shared = [*zip(ours, theirs, strict=False)]
        if len(ours) > len(theirs) or not all(_same_line(*pair) for pair in shared):
            return Outcome.DIFFERENT
        if any(one.function != other.function for one, other in shared[1:]):
            return Outcome.DIFFERENT
        if len(ours) < len(theirs):
            return self._of_fewer(address, ours, theirs)
        return self._of_names(ours[0].function, _without_version(theirs[0].function))

    def _of_names(self, ours: str, theirs: str) -> Outcome:
        if ours == theirs:
            return Outcome.EQUAL
        if self._addresses[ours] & self._addresses[theirs]:
            return Outcome.ALIAS
        whole, other = PART.sub("", ours), PART.sub("", theirs)
        if whole == other or self._addresses[whole] & self._addresses[other]:
            return Outcome.PART
        return Outcome.DIFFERENT

    def _of_fewer(self, address: int, ours: Levels, theirs: Levels) -> Outcome:
        symbol = self._functions.at(address)
        key = (symbol.name if symbol else "", len(ours), theirs[-1])
        if key not in self._known:
            command = ["llvm-dwarfdump", f"--lookup={address:#x}", str(self._path)]
            text = subprocess.run(command, text=True, check=True, capture_output=True).stdout
            if not ours and FUNCTION.search(text) is None:
                self._known[key] = Outcome.NO_FUNCTION
            else:
                self._known[key] = self._of_less_lines(symbol.address if symbol else address, theirs[-1])
        return self._known[key]

    def _of_less_lines(self, start: int, level: Level) -> Outcome:
        """`start`: of the function. `level`: the innermost, which we lack."""
        [before] = levels_by_llvm(self._path, [start - 1])
        return Outcome.OTHERS_LINE if before[-1][1:] == level[1:] else Outcome.DIFFERENT


def _without_version(name: str) -> str:
    return name.partition("@")[0]


def _same_line(ours: Level, theirs: Level) -> bool:
    return ours.line == theirs.line and _same_file(ours.source, theirs.source)


def _same_file(ours: str, theirs: str) -> bool:
    """True if one path is the end of the other: a compiler may have recorded a relative directory."""
    paths = sorted(((posixpath.normpath(path) if path else "").split("/") for path in (ours, theirs)), key=len)
    return paths[1][len(paths[1]) - len(paths[0]) :] == paths[0]
