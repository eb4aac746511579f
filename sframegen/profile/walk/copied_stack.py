"""Walks copied stacks: registers, bytes of the stack, spans and decoded tables -> packed frames.

Walks find what the kernel program finds, and go on where it could not: with mappings and tables that came later.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, NamedTuple

from sframegen.base.columns import zeros
from sframegen.base.errors import FormatError
from sframegen.profile.limits import MAX_DEPTH
from sframegen.profile.tables.decoded_table import ELEMENT, RULE_ELEMENTS, DecodedTable
from sframegen.profile.walk.steps import CodeKind, SpanColumns, Steps, TableColumns
from sframegen.stack.abi.machines import Conventions, ReadCode, conventions_of, walked_machine
from sframegen.stack.walking.frames import BY_NUMBER, End

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from sframegen.base.columns import Bytes
    from sframegen.elf.file import ElfFile
    from sframegen.format.abi import Abi
    from sframegen.profile.following.files import CodeSpan

WORDS = ELEMENT // 4
PAGE = 4096
MAX_COLUMNS = 16  # of processes whose samples come in turns


class Start(NamedTuple):
    """The first frame of a walk. `values`: 32 registers by DWARF number; `known`: a bit for each that is known.

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
    """Return no bytes: the ReadCode of a process whose code cannot be read."""
    return b""


def span_columns(spans: Iterable[CodeSpan]) -> SpanColumns:
    """Return the spans of one process as sorted columns. `spans`: in any order, without overlaps."""
    columns = [*zip(*sorted(spans), strict=True)] or [()] * 4
    return SpanColumns(*(array(code, column) for code, column in zip("QQQI", columns, strict=True)))


def table_columns(table: DecodedTable) -> TableColumns:
    """Return the columns of a decoded table. Raises FormatError if its parts do not lie in its data."""
    words = memoryview(table.data).cast("B").cast("I")
    index_at, rows_at, rules_at = (WORDS * place for place in (table.index_at, table.rows_at, table.rules_at))
    ends = (index_at + table.pages + 1, rows_at + table.rows, rules_at + WORDS * RULE_ELEMENTS * table.rules)
    if min(table[:7]) < 0 or max(ends) > len(words):
        raise FormatError("the decoded table is cut off")
    return TableColumns(words, table.base, table.pages, index_at, rows_at, rules_at, table.rows, table.rules)


def with_missing_pages(stack: Bytes, start: int, holes: int) -> bytes:
    """Return the stack with zeros in place of its missing pages, so that offsets in it are offsets from `start`."""
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
        """`elf_of`: returns the file with a number, whose code is read where no rule applies; None if it cannot be read."""
        machine = walked_machine(abi)
        if machine.guess is None or not machine.little:
            raise FormatError(f"copied stacks of {abi.name} are not walked")
        self._frames = zeros("Q", MAX_DEPTH)
        known = conventions_of(abi)
        self._code = _Code(known, elf_of)
        self._columns: dict[int, tuple[Sequence[CodeSpan], SpanColumns]] = {}  # by the identity of the spans
        self._steps = Steps(machine, known.ra_mask, self._frames, self._code, machine.guess)

    def add_table(self, number: int, table: DecodedTable | None, *, final: bool = True) -> None:
        """Use this table for the file; None: the file has none. If not `final`, walks in code without a rule end with NO_TABLE.

        Raises FormatError if it is cut off.
        """
        columns = TableColumns(array("I"), 0, 0, 0, 0, 0, 0, 0) if table is None else table_columns(table)
        columns.final = final
        self._steps.add_table(number, columns)

    def forget(self, number: int) -> None:
        """Drop all that is known of a file, because its number is given to another one."""
        self._steps.add_table(number, None)
        self._code.forget(number)

    def columns(self, spans: Sequence[CodeSpan]) -> SpanColumns:
        """Return the columns of a process's spans, from a small cache if they were used recently."""
        known = self._columns.get(id(spans))
        if known is None:
            if len(self._columns) == MAX_COLUMNS:
                self._columns.clear()
            known = self._columns[id(spans)] = spans, span_columns(spans)
        return known[1]

    def walk(
        self, spans: SpanColumns, start: Start, stack_start: int, stack: Bytes, holes: int = 0, made: ReadCode = no_code
    ) -> End:
        """Walk from `start`; return why the walk ended. `stack`: bytes from `stack_start` on, which is SP where the walk begins.

        `holes`: a bit for each missing page, from that of `stack_start` on. `made`: reads the process's code without a file.
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
        """Return, after NO_TABLE, the number of the file whose table is not ready."""
        return self._steps.missing

    def frames(self) -> memoryview:
        """Return the packed frames of the last walk; valid until the next one."""
        return memoryview(self._frames)[: self._steps.depth]


class _Code:
    """The CodeKinds of addresses where no rule applies, each read once from the code of its file."""

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
            found = known[address] = self._classify(self.elf_of(file), address)
        return found

    def forget(self, file: int) -> None:
        self._known.pop(file, None)

    def _classify(self, elf: ElfFile | None, address: int) -> int:
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
