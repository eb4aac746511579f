"""Walks copied stacks: from registers, stack bytes, mapped spans and decoded tables to packed frames.

These walks give the same frames as the kernel program, and can go on where it stopped, with mappings and tables that came later.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, NamedTuple

from sframegen.base.columns import zeros
from sframegen.base.errors import FormatError
from sframegen.profile.limits import MAX_DEPTH
from sframegen.profile.tables.decoded_table import ELEMENT_SIZE, RULE_ELEMENTS, DecodedTable
from sframegen.profile.walk.steps import CodeKind, SpanColumns, Steps, TableColumns
from sframegen.stack.abi.machines import Conventions, ReadCode, conventions_of, walked_machine
from sframegen.stack.walking.frames import BY_NUMBER, End

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from sframegen.base.columns import Bytes
    from sframegen.elf.file import ElfFile
    from sframegen.format.abi import Abi
    from sframegen.profile.following.files import CodeSpan

WORDS_PER_ELEMENT = ELEMENT_SIZE // 4
PAGE = 4096
MAX_COLUMNS = 16  # processes whose span columns are cached, because their samples come in turns


class Start(NamedTuple):
    """The frame at which a walk begins. `values`: 32 registers by DWARF number; `known`: a bit mask of those that are known.

    `exact`: the instruction at `pc` was running; otherwise `pc` is a return address. `frames`: the packed frames walked before it.
    `guessed`: the walk came to this frame by a frame pointer, without a rule.
    """

    values: Sequence[int]
    known: int
    pc: int
    exact: bool = True
    frames: Sequence[int] = ()
    guessed: bool = False


def read_no_code(_address: int, _size: int) -> bytes:
    """Return no bytes, as the ReadCode of a process whose code cannot be read."""
    return b""


def make_span_columns(spans: Iterable[CodeSpan]) -> SpanColumns:
    """Return the spans of one process as columns sorted by address. `spans`: in any order, without overlaps."""
    columns = [*zip(*sorted(spans), strict=True)] or [()] * 4
    return SpanColumns(*(array(code, column) for code, column in zip("QQQI", columns, strict=True)))  # start, end, bias, file


def make_table_columns(table: DecodedTable) -> TableColumns:
    """Return the columns of a decoded table. Raises FormatError if its parts do not lie in its data."""
    words = memoryview(table.data).cast("B").cast("I")
    index_at, rows_at, rules_at = (WORDS_PER_ELEMENT * at for at in (table.index_at, table.rows_at, table.rules_at))
    ends = (index_at + table.pages + 1, rows_at + table.rows, rules_at + WORDS_PER_ELEMENT * RULE_ELEMENTS * table.rules)
    numbers = table[:7]  # from `base` to `rules`
    if min(numbers) < 0 or max(ends) > len(words):
        raise FormatError("the decoded table is cut off")
    return TableColumns(words, table.base, table.pages, index_at, rows_at, rules_at, table.rows, table.rules)


def fill_missing_pages(stack: Bytes, start: int, holes: int) -> bytes:
    """Return the stack with zeros for its missing pages, so that offsets count from `start`. `holes`: a bit for each such page."""
    parts, at = [], 0
    for page in range(holes.bit_length()):
        size = PAGE - (start % PAGE if page == 0 else 0)
        is_missing = holes >> page & 1
        parts.append(bytes(size) if is_missing else bytes(stack[at : at + size]))
        at += 0 if is_missing else size
    return b"".join([*parts, bytes(stack[at:])])


class CopyWalker:
    """Walks stacks of one ABI, one at a time. After `walk`, `frames` returns the packed frames, the innermost first."""

    def __init__(self, abi: Abi, elf_of: Callable[[int], ElfFile | None]) -> None:
        """`elf_of`: returns the file of a number, so that its code can be read where no rule applies; None if it is not open."""
        machine = walked_machine(abi)
        if machine.guess is None or not machine.little:
            raise FormatError(f"copied stacks of {abi.name} are not walked")
        self._frames = zeros("Q", MAX_DEPTH)
        conventions = conventions_of(abi)
        self._code_kinds = _CodeKindCache(conventions, elf_of)
        self._columns: dict[int, tuple[Sequence[CodeSpan], SpanColumns]] = {}  # by the id() of the spans
        self._steps = Steps(machine, conventions.ra_mask, self._frames, self._code_kinds, machine.guess)

    def add_table(self, number: int, table: DecodedTable | None, *, final: bool = True) -> None:
        """Use this table for the file from now on; None: the file has no rules. Raises FormatError for a table that is cut off.

        If not `final`, a proof may still add rules, so that walks in code without a rule end with NO_TABLE.
        """
        columns = TableColumns(array("I"), 0, 0, 0, 0, 0, 0, 0) if table is None else make_table_columns(table)  # no pages
        columns.final = final
        self._steps.add_table(number, columns)

    def forget(self, number: int) -> None:
        """Forget a file's table and code, because its number is about to be given to another file."""
        self._steps.add_table(number, None)
        self._code_kinds.forget(number)

    def find_columns(self, spans: Sequence[CodeSpan]) -> SpanColumns:
        """Return the columns of a process's spans, from a small cache if they were used recently."""
        cached = self._columns.get(id(spans))
        if cached is None:
            if len(self._columns) == MAX_COLUMNS:
                self._columns.clear()
            cached = self._columns[id(spans)] = spans, make_span_columns(spans)  # with the spans, so that no others get their id
        return cached[1]

    def walk(
        self, spans: SpanColumns, start: Start, stack_start: int, stack: Bytes, holes: int = 0, generated: ReadCode = read_no_code
    ) -> End:
        """Walk from `start`; return why the walk ended. `stack`: bytes from `stack_start` on, which is SP where the walk begins.

        `holes`: a bit for each missing page, from that of `stack_start` on. `generated`: reads the process's code without a file.
        """
        steps = self._steps
        self._code_kinds.read_generated = generated
        if holes:
            stack = fill_missing_pages(stack, stack_start, holes)
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


class _CodeKindCache:
    """Classifies the code where no rule applies (CodeKind). The code of files is read once for each address."""

    def __init__(self, conventions: Conventions, elf_of: Callable[[int], ElfFile | None]) -> None:
        self.conventions = conventions
        self.elf_of = elf_of
        self.read_generated: ReadCode = read_no_code
        self._kinds: dict[int, dict[int, int]] = {}  # by file and address

    def kind(self, file: int, address: int) -> int:
        """Return the CodeKind of an address, as CodeKinds says."""
        if not file:
            form = self.conventions.returning
            return CodeKind.ONLY_RETURNS * (form is not None and self.read_generated(address, len(form.code)) == form.code)
        kinds = self._kinds.setdefault(file, {})
        kind = kinds.get(address)
        if kind is None:
            kind = kinds[address] = self._classify(self.elf_of(file), address)
        return kind

    def forget(self, file: int) -> None:
        self._kinds.pop(file, None)

    def _classify(self, elf: ElfFile | None, address: int) -> int:
        """Return the CodeKind of a link-time address in a file."""
        if elf is None:
            return int(CodeKind.RETURNS)  # as for code without a file

        def read_code(at: int, size: int) -> bytes:
            try:
                return bytes(elf.at(at, size))
            except FormatError:
                return b""

        rules = self.conventions
        kind = CodeKind.RETURNS * rules.ends_call(read_code, address)
        kind |= CodeKind.RETURNS_FROM_SIGNAL * (rules.context_at(read_code, address) is not None)
        return int(kind | CodeKind.STARTS_THREAD * rules.starts_thread(read_code, address))
