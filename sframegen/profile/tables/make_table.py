"""An ELF file -> its DecodedTable: from its own SFrame section, one in a store, or its call frame information.

Code without call frame information has no rules in it. `make_proven_table` adds rules proven from instructions, and takes longer.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from sframegen.base.errors import FormatError, name_file_in_errors
from sframegen.checks.finding import Severity
from sframegen.checks.specification.wellformed import examine
from sframegen.code.whole_file.proven_code import PROVEN, with_proven_code
from sframegen.conversion.cfi_sections import find_sources
from sframegen.conversion.convert import convert_sources
from sframegen.detached.detached_file import ADDRESS
from sframegen.detached.stores import Stores
from sframegen.elf.records import ET
from sframegen.format.abi import Abi, abi_of
from sframegen.format.decode import open_section
from sframegen.format.locate import sframe_of
from sframegen.profile.machines import PROFILED
from sframegen.profile.tables.corrected_rules import with_saved_cfas, without_installations
from sframegen.profile.tables.decoded_table import DecodedTable, table_of, with_function_code
from sframegen.profile.tables.go_frames import with_go_functions
from sframegen.profile.tables.stack_ends import with_creators, with_first_code, with_stack_ends

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sframegen.elf.file import ElfFile
    from sframegen.elf.ranges import Range
    from sframegen.format.model import FunctionTable
    from sframegen.profile.tables.table_cache import TableCache


class Origin(Enum):
    """The source of a table, in the words that users see."""

    SECTION = "its own section"
    DETACHED = "a detached section"
    CONVERTED = "its call frame information"
    KEPT = "the cache"  # its source is unknown
    PROVEN = "one of these, and its instructions"
    KEPT_NO_PROOF = "the cache, and its instructions prove nothing more"
    NOTHING = "nothing"


PROOF, NO_PROOF = " with proven rules", " without proven rules"  # part of the cache's key of an unchanged file


class MadeTable(NamedTuple):
    """The outcome for a file. `table`: None if there are no rules. `why`: one line on damaged or unreadable input; else empty."""

    table: DecodedTable | None
    origin: Origin
    why: str = ""


class FoundRules(NamedTuple):
    """Functions of a file, from a section or its call frame information; no functions if neither has any."""

    functions: FunctionTable
    origin: Origin
    warnings: list[str]


class CompleteRules(NamedTuple):
    """FoundRules corrected and completed by the code itself. `proof`: the outcome of a proof. `code`: of proven functions."""

    functions: FunctionTable
    proof: str
    code: Sequence[Range]


def make_table(elf: ElfFile, cache: TableCache | None = None, stores: Stores | None = None) -> MadeTable:
    """Return the table with link-time addresses. A damaged section is not used: `why` says so. Raises nothing for any bytes.

    `stores`: of detached sections, for files without a section that can be used.
    """
    return _make_and_store(elf, cache, stores or Stores(), proves=False)


def make_proven_table(elf: ElfFile, cache: TableCache | None = None, stores: Stores | None = None) -> MadeTable:
    """Return the table with rules for code without call frame information; without a table if its instructions prove none."""
    made = _make_and_store(elf, cache, stores or Stores(), proves=True)
    return made if made.origin is Origin.PROVEN else MadeTable(None, Origin.NOTHING, made.why)


def recall_table(elf: ElfFile, cache: TableCache, stores: Stores) -> MadeTable | None:
    """Return the cached table of an unchanged file; None if there is none."""
    state = stores.state_for(elf)
    kept = ((PROOF, Origin.PROVEN, PROVEN), (NO_PROOF, Origin.KEPT_NO_PROOF, ""), ("", Origin.KEPT, ""))
    for suffix, origin, why in kept:
        if (table := cache.load(elf.status, state + suffix)) is not None:
            return MadeTable(table, origin, why)
    return None


def _make_and_store(elf: ElfFile, cache: TableCache | None, stores: Stores, *, proves: bool) -> MadeTable:
    notes: list[str] = []
    try:
        abi = abi_of(elf)
        if abi.byte_order != "little" or elf.header.e_type not in (ET.EXEC, ET.DYN):
            return MadeTable(None, Origin.NOTHING, f"{elf.name}: not a program or library for {' or '.join(PROFILED)}")
        state = stores.state_for(elf) if cache else ""  # before it is looked for: it may change meanwhile
        found = _in_section(elf, abi, notes) or _in_store(elf, abi, stores, notes)
        with name_file_in_errors(elf.name):
            found = found or _in_cfi(elf, abi)
            complete = _complete(found.functions, elf, abi, proves=proves)
            if not len(complete.functions):
                return MadeTable(None, Origin.NOTHING, _join_notes(*notes, complete.proof, *found.warnings))
            table = with_function_code(table_of(complete.functions), complete.code)
    except FormatError as error:
        return MadeTable(None, Origin.NOTHING, _join_notes(*notes, str(error)))
    notes += found.warnings
    if table.left_out:
        notes.append(f"{elf.name}: does not fit into its table: {table.left_out:,} functions and rules")
    if cache and not notes and complete.proof in ("", PROVEN):  # next time the file need not be read
        state += (PROOF if complete.proof else NO_PROOF) if proves else ""
        cache.store(elf.status, table, elf.header.e_machine, state)
    origin = Origin.PROVEN if complete.proof == PROVEN else found.origin
    return MadeTable(table, origin, _join_notes(*notes, complete.proof))


def _join_notes(*notes: str) -> str:
    return "; ".join(filter(None, notes))


def _in_section(elf: ElfFile, abi: Abi, notes: list[str]) -> FoundRules | None:
    """Return the rules of the file's section; None if it has none that can be used: a note says why."""
    try:
        with name_file_in_errors(elf.name):
            found = sframe_of(elf)
            functions = _functions_in(elf, abi, *found) if found and found[0] else None
    except FormatError as error:
        notes.append(f"{error}; not used")
        return None
    return FoundRules(functions, Origin.SECTION, []) if functions else None


def _in_store(elf: ElfFile, abi: Abi, stores: Stores, notes: list[str]) -> FoundRules | None:
    functions = stores.find_for(elf, lambda data: _functions_in(elf, abi, data, ADDRESS))
    notes += stores.take_notes()
    return FoundRules(functions, Origin.DETACHED, []) if functions else None


def _functions_in(elf: ElfFile, abi: Abi, data: memoryview, address: int) -> FunctionTable | None:
    """Return the functions of a section; None if it has none. Raises FormatError if `check` finds an error in its bytes."""
    facts = examine(data, address, executable=elf.executable_ranges(), byte_order=elf.byte_order)
    error = next((finding for finding in facts.findings if finding.severity is Severity.ERROR), None)
    if error is not None:
        raise FormatError(error.message, ".sframe", error.offset)
    section = open_section(data, address)
    if section.abi.sframe_id != abi.sframe_id:
        raise FormatError(f"it is for {section.abi.name}", ".sframe", 4)
    return section.table if len(section.table) else None


def _in_cfi(elf: ElfFile, abi: Abi) -> FoundRules:
    """Return the rules of the call frame information. Raises FormatError if it cannot be read."""
    sources = find_sources(elf)
    converted = convert_sources(sources, elf.executable_ranges(), abi)
    return FoundRules(with_saved_cfas(converted, sources, abi), Origin.CONVERTED, sources.warnings)


def _complete(functions: FunctionTable, elf: ElfFile, abi: Abi, *, proves: bool) -> CompleteRules:
    """Return corrected functions, with rules proven for other code if `proves`, and with ends of stacks that the code shows."""
    functions, described = with_go_functions(functions, elf, abi)
    if len(functions):
        functions = without_installations(functions, elf, abi)
        functions = with_first_code(functions, elf, abi)
        functions = with_creators(functions, elf, abi)
    proof: str = ""
    code: Sequence[Range] = ()
    if proves:
        functions, proof, code = with_proven_code(functions, elf, abi, described)
    return CompleteRules(with_stack_ends(functions, elf, abi), proof, code)
