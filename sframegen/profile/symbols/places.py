"""Addresses of files -> their places, asked for in other processes: a file that ends or holds one costs its own places only."""

from __future__ import annotations

import math
import time
from collections import deque
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

from sframegen.base.errors import FormatError
from sframegen.base.text import printable
from sframegen.elf.records import SHT
from sframegen.profile.kept_files import KeptFiles
from sframegen.profile.limits import WORKERS
from sframegen.profile.symbols.place import Place, Question
from sframegen.profile.symbols.symcache import ENDING, PlaceColumns, places_in
from sframegen.program import patience
from sframegen.program.forked import Forked, end_with_parent, limit_memory, nowhere
from sframegen.program.pool import Pool
from sframegen.program.workers import attempt
from sframegen.stack.names.demangle import demangle_all

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from sframegen.elf.file import ElfFile

    Places = dict[int, tuple[Place, ...]]  # by address

MAX_MEMORY = 1 << 32  # bytes for one file, in addition to what the process has at its start
AT_ONCE = 1 << 26  # bytes of debug information that are read at the same time, or one file: each takes a multiple of that in memory
MAX_WHY = 1000  # characters
DEBUG = (".debug_", ".zdebug_")
DEBUG_INFORMATION = tuple(f"{prefix}info" for prefix in DEBUG)


class Limits(NamedTuple):
    """Limits of one file, and of the number of processes. `together`: seconds for all files; the others have no places then."""

    seconds: float
    together: float = math.inf
    memory: int = MAX_MEMORY
    processes: int = WORKERS

    @property
    def no_time(self) -> str:
        return f"all files together took longer than {self.together:g} seconds"


def usual_limits(*, asked: bool) -> Limits:
    """`asked`: the user waits for places."""
    most = patience.current
    return Limits(most.asked_places) if asked else Limits(most.places, most.all_places)


def has_library() -> bool:
    return find_spec("symbolic") is not None


def has_debug_information(file: ElfFile) -> bool:
    """Return True if places can be found in it; False, too, for copies and stripped files."""
    return any(section.name in DEBUG_INFORMATION and section.header.sh_type != SHT.NOBITS for section in file.sections)


def _size(file: ElfFile) -> int:
    """Bytes of its debug information, expanded; of damaged one, as much as may be."""
    try:
        return sum(file.contents_size(section) for section in file.sections if section.name.startswith(DEBUG))
    except FormatError:
        return AT_ONCE


def find_places(
    questions: Sequence[Question], *, directory: Path | None = None, limits: Limits | None = None, demangled: bool = True
) -> Iterator[tuple[int, Places | str]]:
    """Yield each question's number and the places of its addresses, or one line that says why there are none.

    `directory`: of the indexes that are kept; by default sframegen/symbols in $XDG_CACHE_HOME or ~/.cache.
    """
    limits = limits or usual_limits(asked=False)
    kept = KeptFiles("symbols", ENDING, directory)

    def work(number: int) -> PlaceColumns | Exception:
        question = questions[number]
        return attempt(lambda file: places_in(file, [*question.addresses], kept), question.file)

    def prepare(_pipe: int) -> None:
        end_with_parent()
        nowhere(1, 2)  # the library reports its end there
        limit_memory(limits.memory)

    sizes = [_size(question.file) for question in questions]
    left = set(range(len(questions)))
    waiting = deque(sorted(left, key=sizes.__getitem__))  # a file that takes all the time is the last
    size = 0  # of those that are read
    try:
        pool: Pool[int] = Pool(lambda: Forked(work, prepare, limits.seconds), limits.processes)
        with pool:
            deadline = time.monotonic() + limits.together
            while left and (rest := deadline - time.monotonic()) > 0:
                begun = []
                while waiting and (size + sizes[waiting[0]] <= AT_ONCE or not size):
                    size += sizes[waiting[0]]
                    begun.append(waiting.popleft())
                pool.put(*begun)
                for number, answer in pool.ready(None if rest == math.inf else rest):
                    left.discard(number)
                    size -= sizes[number]
                    yield number, _read(questions[number], answer.value, demangled=demangled)
        for number in sorted(left):
            yield number, limits.no_time
    finally:
        kept.trim()
        kept.close()


def _why(error: Exception) -> str:
    return (str(error) or type(error).__name__)[:MAX_WHY]


def _read(question: Question, answer: PlaceColumns | Exception, *, demangled: bool) -> Places | str:
    if isinstance(answer, Exception):  # also of a process that ended
        why = _why(answer)
        return why if isinstance(answer, FormatError) else f"{question.file.name}: lines and inlined functions: {why}"
    texts = _texts(answer, demangled=demangled)
    found: Places = {}
    at = 0
    known: dict[tuple[int, ...], tuple[Place, ...]] = {}
    for address, depth in zip(question.addresses, answer.depths, strict=True):
        numbers = tuple(answer.numbers[at : at + 3 * depth])
        at += 3 * depth
        if numbers not in known:
            known[numbers] = tuple(_places_of(numbers, texts))
        found[address] = known[numbers]
    return found


def _places_of(numbers: tuple[int, ...], texts: list[tuple[str, str]]) -> Iterable[Place]:
    for at in range(0, len(numbers), 3):
        function, source, line = numbers[at : at + 3]
        yield Place(texts[function][1], texts[source][0], line, at > 0)


def _texts(answer: PlaceColumns, *, demangled: bool) -> list[tuple[str, str]]:
    """Return each text as it is written, and as a function."""
    names = demangle_all({answer.texts[number] for number in answer.numbers[::3]}) if demangled else {}
    return [(printable(text), printable(names.get(text, text))) for text in answer.texts]
