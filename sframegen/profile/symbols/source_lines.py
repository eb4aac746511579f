"""The addresses of a profile -> their places: from debug information where it is at hand, else lines from Go's own table."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sframegen.base.text import count_of
from sframegen.profile.symbols.place import Place, Question
from sframegen.profile.symbols.places import find_places, has_debug_information, has_library, usual_limits
from sframegen.stack.names.gopclntab import go_table

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator
    from pathlib import Path

    from sframegen.elf.file import ElfFile
    from sframegen.profile.symbols.places import Places
    from sframegen.stack.names.debug_files import DebugFiles


class Detail(NamedTuple):
    """What reports say of a frame in addition to its function. Without `inlined`, a line is where the function goes on.

    `by_line`: pictures show the lines of one function apart. `asked`: the user waits for lines or inlined functions.
    """

    lines: bool = True
    inlined: bool = True
    by_line: bool = False
    asked: bool = False


class AskedFile(NamedTuple):
    """A file of the profile, the number that it has there, and the link-time addresses of its frames."""

    number: int
    file: ElfFile
    addresses: Collection[int]


class SourceLines:
    """Places by number of the file and address. `notes`: of files whose debug information cannot be used."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self._places: dict[int, Places] = {}

    def at(self, number: int, address: int) -> tuple[Place, ...]:
        """Return them, the outermost function first; empty if nothing is known."""
        return self._places.get(number, {}).get(address, ())

    def knows(self, number: int) -> bool:
        """Return True if anything is known of a file."""
        return bool(self._places.get(number))

    def forget(self, number: int) -> None:
        """Drop the places of a file."""
        self._places.pop(number, None)

    def learn(
        self,
        asked: Iterable[AskedFile],
        debug_files: DebugFiles,
        detail: Detail,
        *,
        demangled: bool = True,
        directory: Path | None = None,
    ) -> Iterator[int]:
        """Find all places; yield the number of each file once its places are known. Without the library, only those of Go."""
        numbers: list[int] = []
        questions: list[Question] = []
        late: list[str] = []
        for number, file, addresses in asked:
            source = _with_debug_information(file, debug_files) if addresses and has_library() else None
            if source is not None:
                numbers.append(number)
                questions.append(Question(source, addresses))
                continue
            if addresses and detail.lines:
                self._places[number] = _by_go(file, addresses)
            yield number
        limits = usual_limits(asked=detail.asked)
        for at, found in find_places(questions, directory=directory, limits=limits, demangled=demangled) if questions else ():
            if found == limits.no_time:
                late.append(questions[at].file.name)
            elif isinstance(found, str):
                self.notes.append(found)
            else:
                self._places[numbers[at]] = {address: _wanted(places, detail) for address, places in found.items()}
            yield numbers[at]
        if late:
            self.notes.append(f"{count_of(len(late), 'file')} such as {late[0]}: lines and inlined functions: {limits.no_time}")


def _with_debug_information(file: ElfFile, debug_files: DebugFiles) -> ElfFile | None:
    if has_debug_information(file):
        return file
    debug = debug_files.find(file)
    return debug if debug is not None and has_debug_information(debug) else None


def _wanted(places: tuple[Place, ...], detail: Detail) -> tuple[Place, ...]:
    shown = places if detail.inlined else places[:1]
    return shown if detail.lines else tuple(place._replace(source="", line=0) for place in shown)


def _by_go(file: ElfFile, addresses: Iterable[int]) -> Places:
    table = go_table(file)
    found: Places = {}
    for address in addresses if table else ():
        line = table.line_at(address) if table else None
        if line:
            found[address] = (Place("", line.source, line.line, inlined=False),)
    return found
