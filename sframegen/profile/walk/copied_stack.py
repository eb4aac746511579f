"""Walks copied stacks: registers, bytes of the stack, spans and decoded tables -> packed frames.

It finds what the kernel program finds, and goes on where that cannot: with mappings and tables that came later.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, NamedTuple

from sframegen.base.columns import zeros
from sframegen.base.errors import FormatError
from sframegen.profile.limits import MAX_DEPTH
from sframegen.profile.tables.decoded_table import ELEMENT, RULE_ELEMENTS
from sframegen.profile.walk.steps import CodeKind, SpanColumns, Steps, TableColumns
from sframegen.stack.abi.machines import conventions_of, walked_machine
from sframegen.stack.walking.frames import BY_NUMBER, End

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from sframegen.base.columns import Bytes
    from sframegen.elf.file import ElfFile
    from sframegen.format.abi import Abi
    from sframegen.profile.following.files import CodeSpan
    from sframegen.profile.tables.decoded_table import DecodedTable
    from sframegen.stack.abi.machines import Conventions, ReadCode

WORDS = ELEMENT // 4
PAGE = 4096
MAX_COLUMNS = 16  # of processes whose samples come in turns


class Start(NamedTuple):
    """Where a walk begins. `values`: 32 registers by DWARF number; `known`: a bit for each that is known.

    `exact`: the instruction at `pc` runs; else a call ends there. `frames`: those already walked, packed. `guessed`: a frame
    pointer led to `pc`.
    """

    values: Sequence[int]
    known: int
    pc: int
    exact: bool = True
    frames: Sequence[int] = ()
    guessed: bool = False


def no_code(_address: int, _size: int) -> bytes:
    """Code of a process of which nothing can be read."""
    return b""


def span_columns(spans: Iterable[CodeSpan]) -> SpanColumns:
    """The spans of one process, in any order, without overlaps."""
    columns = [*zip(*sorted(spans), strict=True)] or [()] * 4
    return SpanColumns(*(array(code, column) for code, column in zip("QQQI", columns, strict=True)))


def table_columns(table: DecodedTable) -> TableColumns:
    """Raises FormatError if the table's parts do not lie in its data."""
    words = memoryview(table.data).cast("B").cast("I")
    index_at, rows_at, rules_at = (WORDS * place for place in (table.index_at, table.rows_at, table.rules_at))
    ends = (index_at + table.pages + 1, rows_at + table.rows, rules_at + WORDS * RULE_ELEMENTS * table.rules)
    if min(table[:7]) < 0 or max(ends) > len(words):
        raise FormatError("the decoded table is cut off")
    return TableColumns(words, table.base, table.pages, index_at, rows_at, rules_at, table.rows, table.rules)


def with_missing_pages(stack: Bytes, start: int, holes: int) -> bytes:
    """Return the stack with zeros for the pages that are not there, so that all bytes are where they belong."""
    parts, at = [], 0
    for page in range(holes.bit_length()):
        size = PAGE - (start % PAGE if page == 0 else 0)
        missing = holes >> page & 1
        parts.append(bytes(size) if missing else bytes(stack[at : at + size]))
        at += size * (not missing)
    return b"".join([*parts, bytes(stack[at:])])


class CopyWalker:
    """Walks stacks of one ABI, one after the other. After `walk`: `frames()`, packed, the innermost first."""

    def __init__(self, abi: Abi, elf_of: Callable[[int], ElfFile | None]) -> None:
        """`elf_of`: the file with a number, for its code where no rule applies; None if it cannot be read."""
        machine = walked_machine(abi)
        if machine.guess is None or not machine.little:
            raise FormatError(f"copied stacks of {abi.name} are not walked")
        self._frames = zeros("Q", MAX_DEPTH)
        known = conventions_of(abi)
        self._code = _Code(known, elf_of)
        self._columns: dict[int, tuple[Sequence[CodeSpan], SpanColumns]] = {}  # by the identity of the spans
        self._steps = Steps(machine, known.ra_mask, self._frames, self._code, machine.guess)

    def add_table(self, number: int, table: DecodedTable | None, *, final: bool = True) -> None:
        """Use this table for the file; None: there is none. If not `final`, walks end in code without a rule with NO_TABLE.

        Raises FormatError if it is cut off.
        """
        columns = TableColumns(array("I"), 0, 0, 0, 0, 0, 0, 0) if table is None else table_columns(table)
        columns.final = final
        self._steps.add_table(number, columns)

    def forget(self, number: int) -> None:
        """The number is another file's from now on."""
        self._steps.add_table(number, None)
        self._code.forget(number)

    def columns(self, spans: Sequence[CodeSpan]) -> SpanColumns:
        """Return the columns of a process's spans: at once, if they were asked for a short time ago."""
        known = self._columns.get(id(spans))
        if known is None:
            if len(self._columns) == MAX_COLUMNS:
                self._columns.clear()
            known = self._columns[id(spans)] = spans, span_columns(spans)
        return known[1]

    def walk(
        self, spans: SpanColumns, start: Start, stack_start: int, stack: Bytes, holes: int = 0, made: ReadCode = no_code
    ) -> End:
        """Walk from `start` to the end. `stack`: the bytes from address `stack_start` on, SP at the walk's begin.

        `holes`: a bit for each page, from that of `stack_start` on, that is not there. `made`: reads its code in no file.
        """
        steps = self._steps
        self._code.made = made
        if holes:
            stack = with_missing_pages(stack, stack_start, holes)
        steps.depth = min(len(start.frames), MAX_DEPTH)
        for number, frame in enumerate(start.frames[:MAX_DEPTH]):
            self._frames[number] = frame
        steps.begin(array("Q", start.values), start.known, start.pc, start.exact, start.guessed, stack_start, stack)
        steps.cursor.holes = holes
        return BY_NUMBER[steps.run(spans)]

    @property
    def missing(self) -> int:
        """After NO_TABLE: the number of the file whose table is not ready."""
        return self._steps.missing

    def frames(self) -> memoryview:
        """Those of the last walk, until the next one."""
        return memoryview(self._frames)[: self._steps.depth]


class _Code:
    """What the code of files says of addresses where no rule applies, each looked at once."""

    def __init__(self, conventions: Conventions, elf_of: Callable[[int], ElfFile | None]) -> None:
        self.conventions = conventions
        self.elf_of = elf_of
        self.made: ReadCode = no_code
        self._known: dict[int, dict[int, int]] = {}  # by file and address

    def kind(self, file: int, address: int) -> int:
        if not file:
            form = self.conventions.returning
            return CodeKind.ONLY_RETURNS * (form is not None and self.made(address, len(form.code)) == form.code)
        known = self._known.setdefault(file, {})
        found = known.get(address)
        if found is None:
            found = known[address] = self._look(self.elf_of(file), address)
        return found

    def forget(self, file: int) -> None:
        self._known.pop(file, None)

    def _look(self, elf: ElfFile | None, address: int) -> int:
        if elf is None:
            return int(CodeKind.RETURNS)  # as for code without a file

        def code(at: int, size: int) -> bytes:
            try:
                return bytes(elf.at(at, size))
            except FormatError:
                return b""

        known = self.conventions
        signal, starts = known.context_at(code, address) is not None, known.starts_thread(code, address)
        return (
            known.ends_call(code, address) * CodeKind.RETURNS
            | signal * CodeKind.RETURNS_FROM_SIGNAL
            | starts * CodeKind.STARTS_THREAD
        )
