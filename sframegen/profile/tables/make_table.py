"""An ELF file -> its DecodedTable: from its own SFrame section, one in a store, or its call frame information.

Code without call frame information has no rules there. `make_proven_table` adds rules proven from instructions, and takes longer.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from sframegen.base.errors import FormatError, naming
from sframegen.checks.finding import Severity
from sframegen.checks.specification.wellformed import examine
from sframegen.code.whole_file.proven_code import PROVEN, with_proven_code
from sframegen.conversion.convert import convert_sources
from sframegen.conversion.sources import find_sources
from sframegen.detached.detached_file import ADDRESS
from sframegen.detached.stores import Stores
from sframegen.elf.notes import build_id_of
from sframegen.elf.records import ET
from sframegen.format.abi import abi_of
from sframegen.format.decode import open_section
from sframegen.format.locate import sframe_of
from sframegen.profile.machines import PROFILED
from sframegen.profile.tables.first_code import creating_code_of, first_code_of, with_creators, with_first_code
from sframegen.profile.tables.go_frames import go_code_of, with_go_functions
from sframegen.profile.tables.handler_installations import installing_code_of, without_installations
from sframegen.profile.tables.saved_cfas import with_saved_cfas
from sframegen.profile.tables.stack_ends import ending_code_of, with_stack_ends
from sframegen.profile.tables.table_of import table_of, with_function_code

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sframegen.base.columns import Bytes
    from sframegen.elf.file import ElfFile
    from sframegen.elf.ranges import Range
    from sframegen.format.abi import Abi
    from sframegen.format.model import FunctionTable
    from sframegen.profile.tables.decoded_table import DecodedTable
    from sframegen.profile.tables.table_cache import TableCache


class Origin(Enum):
    """What a table was made of, in the words that users see."""

    SECTION = "its own section"
    DETACHED = "a detached section"
    CONVERTED = "its call frame information"
    KEPT = "the cache"  # its source is unknown
    PROVEN = "one of these, and its instructions"
    KEPT_NO_PROOF = "the cache, and its instructions prove nothing more"
    NOTHING = "nothing"


PROOF, NO_PROOF = " with proven rules", " without proven rules"  # what the cache knows an unchanged file by


class MadeTable(NamedTuple):
    """`table`: None if nothing can be said. `why`: one line, of a section that is damaged or of what cannot be read; else empty."""

    table: DecodedTable | None
    origin: Origin
    why: str = ""


class FoundSection(NamedTuple):
    """A section's bytes and link-time address."""

    origin: Origin
    data: memoryview
    address: int


def make_table(elf: ElfFile, cache: TableCache | None = None, stores: Stores | None = None) -> MadeTable:
    """The table with link-time addresses. A section that is damaged is not used: `why` says so. Raises nothing for any bytes.

    `stores`: of detached sections, for files without a section that can be used.
    """
    return _made(elf, cache, stores, proves=False)


def make_proven_table(elf: ElfFile, cache: TableCache | None = None, stores: Stores | None = None) -> MadeTable:
    """The same, with rules for code without call frame information. No table if its instructions prove none."""
    made = _made(elf, cache, stores, proves=True)
    return made if made.origin is Origin.PROVEN else MadeTable(None, Origin.NOTHING, made.why)


def recall_table(elf: ElfFile, cache: TableCache, stores: Stores) -> MadeTable | None:
    """The table that was made of an unchanged file before; None if there is none."""
    state = stores.state_for(elf)
    kept = ((PROOF, Origin.PROVEN, PROVEN), (NO_PROOF, Origin.KEPT_NO_PROOF, ""), ("", Origin.KEPT, ""))
    for suffix, origin, why in kept:
        if (table := cache.recall(elf.status, state + suffix)) is not None:
            return MadeTable(table, origin, why)
    return None


def _made(elf: ElfFile, cache: TableCache | None, stores: Stores | None, *, proves: bool) -> MadeTable:
    why = ""
    stores = stores or Stores()
    try:
        abi = abi_of(elf)
        if abi.byte_order != "little" or elf.header.e_type not in (ET.EXEC, ET.DYN):
            return MadeTable(None, Origin.NOTHING, f"{elf.name}: no program or library of {' or '.join(PROFILED)}")
        keeper = _Keeper(elf, cache, stores, proves=proves)
        try:
            with naming(elf.name):
                table = _from_section(elf, abi, keeper)
            if table is not None:
                return keeper.remembered(MadeTable(table, Origin.SECTION, _left_out(elf, table)))
        except FormatError as error:
            why = f"{error}; not used"
        table = stores.find_for(elf, lambda data: _from_bytes(elf, abi, keeper, FoundSection(Origin.DETACHED, data, ADDRESS)))
        why = _joined(why, *stores.take_notes())
        if table is not None:
            return keeper.remembered(MadeTable(table, Origin.DETACHED, _joined(why, _left_out(elf, table))))
        with naming(elf.name):
            table, warnings = _from_cfi(elf, abi, keeper)
    except FormatError as error:
        return MadeTable(None, Origin.NOTHING, _joined(why, str(error)))
    if table is None:
        return MadeTable(None, Origin.NOTHING, _joined(why, keeper.proof, *warnings))
    return keeper.remembered(MadeTable(table, Origin.CONVERTED, _joined(why, *warnings, _left_out(elf, table))))


def _joined(*notes: str) -> str:
    return "; ".join(filter(None, notes))


def _left_out(elf: ElfFile, table: DecodedTable) -> str:
    if not table.left_out:
        return ""
    return f"{elf.name}: does not fit into its table: {table.left_out:,} functions and rules"


class _Keeper:
    """Finishes a file's tables, and keeps them in the cache: of files with a build-id, and those that needed a proof.

    `proof`: what `with_proven_code` says of the last one.
    """

    def __init__(self, elf: ElfFile, cache: TableCache | None, stores: Stores, *, proves: bool) -> None:
        self.elf = elf
        self.cache = cache
        self.proves = proves
        self.proof = ""
        self.name = ""  # of the last one
        self.build_id = build_id_of(elf) if cache else None
        self.state = stores.state_for(elf)
        self.about = repr((elf.header.e_machine, elf.executable_ranges())).encode() + first_code_of(elf) if cache else b""
        makers = (installing_code_of, creating_code_of, ending_code_of, go_code_of) if cache else ()
        self.about += b"".join(code_of(elf, abi_of(elf)) for code_of in makers)

    def name_of(self, origin: Origin, *content: Bytes) -> str:
        """Empty if the table is not kept."""
        if self.cache is None or not (self.build_id or self.proves):
            return ""
        whole: tuple[Bytes, ...] = (PROOF.encode(), self.elf.data) if self.proves else ()  # all of a file decides what is proven
        self.name = self.cache.name_of(self.build_id or b"", (origin.name.encode(), self.about, *content, *whole))
        return self.name

    def load(self, name: str) -> DecodedTable | None:
        table = self.cache.load(name) if self.cache and name else None
        self.proof = PROVEN if table is not None and self.proves else ""
        return table

    def finished(self, functions: FunctionTable, abi: Abi) -> DecodedTable | None:
        """The functions as the code itself corrects and completes them; None if there are none."""
        functions, described = with_go_functions(functions, self.elf, abi)
        if len(functions):
            functions = with_first_code(without_installations(functions, self.elf, abi), self.elf, abi)
            functions = with_creators(functions, self.elf, abi)
        code: Sequence[Range] = ()
        if self.proves:
            functions, self.proof, code = with_proven_code(functions, self.elf, abi, described)
        functions = with_stack_ends(functions, self.elf, abi)
        return with_function_code(table_of(functions), code) if len(functions) else None

    def store(self, name: str, table: DecodedTable) -> None:
        if self.proves and self.proof != PROVEN and name and self.cache:  # the name says that there are proven rules
            self.name = name = self.cache.name_of(self.build_id or b"", (name.encode(), NO_PROOF.encode()))
        if self.cache and name:
            self.cache.store(name, table, self.elf.header.e_machine)

    def remembered(self, made: MadeTable) -> MadeTable:
        """Next time the file need not be read, if there is nothing to say about its table."""
        state = self.state
        if self.proves:
            state += PROOF if self.proof == PROVEN else NO_PROOF
        if self.cache and self.name and not made.why and self.proof in ("", PROVEN):
            self.cache.remember(self.elf.status, self.name, state)
        if not self.proof:
            return made
        return made._replace(origin=Origin.PROVEN if self.proof == PROVEN else made.origin, why=_joined(made.why, self.proof))


def _from_section(elf: ElfFile, abi: Abi, keeper: _Keeper) -> DecodedTable | None:
    """None without a section, or one of no functions. Raises FormatError as `_from_bytes` does."""
    found = sframe_of(elf)
    if found is None or not found[0]:
        return None
    return _from_bytes(elf, abi, keeper, FoundSection(Origin.SECTION, *found))


def _from_bytes(elf: ElfFile, abi: Abi, keeper: _Keeper, found: FoundSection) -> DecodedTable | None:
    """None for a section of no functions. Raises FormatError where `check` finds an error in its bytes."""
    origin, data, address = found
    name = keeper.name_of(origin, str(address).encode(), data)
    table = keeper.load(name)
    if table is None:
        facts = examine(data, address, executable=elf.executable_ranges(), byte_order=elf.byte_order)
        error = next((finding for finding in facts.findings if finding.severity is Severity.ERROR), None)
        if error is not None:
            raise FormatError(error.message, ".sframe", error.offset)
        section = open_section(data, address)
        if section.abi.sframe_id != abi.sframe_id:
            raise FormatError(f"it is for {section.abi.name}", ".sframe", 4)
        if not len(section.table):
            return None
        table = keeper.finished(section.table, abi)
        if table is not None:
            keeper.store(name, table)
    return table


def _from_cfi(elf: ElfFile, abi: Abi, keeper: _Keeper) -> tuple[DecodedTable | None, list[str]]:
    """(the table, None if nothing can be said; warnings). Raises FormatError where nothing can be read."""
    sources = find_sources(elf)
    about = [
        (section.name, section.address, section.text_base, section.data_base, section.fde_count) for section in sources.sections
    ]
    name = keeper.name_of(Origin.CONVERTED, repr(about).encode(), *(section.data for section in sources.sections))
    table = keeper.load(name)
    if table is None:
        converted = convert_sources(sources, elf.executable_ranges(), abi)
        table = keeper.finished(with_saved_cfas(converted, sources, abi), abi)
        if table is None:
            return None, sources.warnings
        if not sources.warnings:
            keeper.store(name, table)
    return table, sources.warnings
