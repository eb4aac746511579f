"""Makes the DecodedTable of an ELF file from its own SFrame section, a detached section in a store, or call frame information.

`make_table` has no rules for code without these. `make_proven_table` takes longer, and adds rules proven from the instructions.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from sframegen.base.errors import FormatError, name_file_in_errors
from sframegen.checks.finding import Severity
from sframegen.checks.specification.wellformed import examine_section
from sframegen.code.whole_file.proven_code import PROVEN, add_proven_code
from sframegen.conversion.cfi_sections import find_sources
from sframegen.conversion.convert import convert_sources
from sframegen.detached.detached_file import ADDRESS
from sframegen.detached.stores import Stores
from sframegen.elf.records import ET
from sframegen.format.abi import Abi, abi_of
from sframegen.format.decode import open_section
from sframegen.format.locate import find_sframe
from sframegen.profile.machines import ARCHITECTURES
from sframegen.profile.tables.corrected_rules import add_saved_cfa_rules, split_handler_installers
from sframegen.profile.tables.decoded_table import DecodedTable, attach_function_ranges, make_decoded_table
from sframegen.profile.tables.go_frames import add_go_functions
from sframegen.profile.tables.stack_ends import add_entry_function, extend_rules_past_thread_creation, mark_stack_ends

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sframegen.elf.file import ElfFile
    from sframegen.elf.ranges import Range
    from sframegen.format.model import FunctionTable
    from sframegen.profile.tables.table_cache import TableCache


class Origin(Enum):
    """The source of a table, as messages to users describe it."""

    SECTION = "its own section"
    DETACHED = "a detached section"
    CONVERTED = "its call frame information"
    CACHED = "the cache"  # its source is unknown
    PROVEN = "one of these, and its instructions"
    CACHED_WITHOUT_PROOF = "the cache, and its instructions prove nothing more"
    NOTHING = "nothing"


PROVEN_KEY, UNPROVEN_KEY = " with proven rules", " without proven rules"  # ends of cache keys, once a proof was tried


class TableResult(NamedTuple):
    """The result for a file. `table`: None if there are no rules. `why`: one line on damaged or unreadable input; else empty."""

    table: DecodedTable | None
    origin: Origin
    why: str = ""


class FoundRules(NamedTuple):
    """Functions of a file, from a section or its call frame information; no functions if neither has any."""

    functions: FunctionTable
    origin: Origin
    warnings: list[str]


class CompleteRules(NamedTuple):
    """FoundRules corrected and completed by reading the code. `proof`: a note on the proof. `code`: ranges of proven functions."""

    functions: FunctionTable
    proof: str
    code: Sequence[Range]


def make_table(elf: ElfFile, cache: TableCache | None = None, stores: Stores | None = None) -> TableResult:
    """Return the table with link-time addresses. Never raises: a damaged section is skipped, and `why` tells that.

    `stores`: where detached sections are, for files without a usable section of their own.
    """
    return _make_and_store(elf, cache, stores or Stores(), proves=False)


def make_proven_table(elf: ElfFile, cache: TableCache | None = None, stores: Stores | None = None) -> TableResult:
    """Return the table with rules for code without call frame information; no table if the instructions prove no rules."""
    result = _make_and_store(elf, cache, stores or Stores(), proves=True)
    return result if result.origin is Origin.PROVEN else TableResult(None, Origin.NOTHING, result.why)


def load_cached_table(elf: ElfFile, cache: TableCache, stores: Stores) -> TableResult | None:
    """Return the best cached table of an unchanged file; None if there is none."""
    state = stores.describe_state_for(elf)
    best_first = ((PROVEN_KEY, Origin.PROVEN, PROVEN), (UNPROVEN_KEY, Origin.CACHED_WITHOUT_PROOF, ""), ("", Origin.CACHED, ""))
    for suffix, origin, why in best_first:
        if (table := cache.load(elf.status, state + suffix)) is not None:
            return TableResult(table, origin, why)
    return None


def _make_and_store(elf: ElfFile, cache: TableCache | None, stores: Stores, *, proves: bool) -> TableResult:
    """Make a file's table, and store it in the cache if no note has to be repeated. `proves`: also prove rules."""
    notes: list[str] = []
    try:
        abi = abi_of(elf)
        if abi.byte_order != "little" or elf.header.e_type not in (ET.EXEC, ET.DYN):
            return TableResult(None, Origin.NOTHING, f"{elf.name}: not a program or library for {' or '.join(ARCHITECTURES)}")
        state = stores.describe_state_for(elf) if cache else ""  # before the stores are searched, because they may change meanwhile
        rules = _read_own_section(elf, abi, notes) or _read_detached_section(elf, abi, stores, notes)
        with name_file_in_errors(elf.name):
            rules = rules or _convert_cfi(elf, abi)
            complete = _complete_rules(rules.functions, elf, abi, proves=proves)
            if not len(complete.functions):
                return TableResult(None, Origin.NOTHING, _join_notes(*notes, complete.proof, *rules.warnings))
            table = attach_function_ranges(make_decoded_table(complete.functions), complete.code)
    except FormatError as error:
        return TableResult(None, Origin.NOTHING, _join_notes(*notes, str(error)))
    notes += rules.warnings
    if table.left_out:
        notes.append(f"{elf.name}: does not fit into its table: {table.left_out:,} functions and rules")
    if cache and not notes and complete.proof in ("", PROVEN):  # with a note, the file is read again, so that users see the note
        state += (PROVEN_KEY if complete.proof else UNPROVEN_KEY) if proves else ""
        cache.store(elf.status, table, elf.header.e_machine, state)
    origin = Origin.PROVEN if complete.proof == PROVEN else rules.origin
    return TableResult(table, origin, _join_notes(*notes, complete.proof))


def _join_notes(*notes: str) -> str:
    return "; ".join(filter(None, notes))


def _read_own_section(elf: ElfFile, abi: Abi, notes: list[str]) -> FoundRules | None:
    """Return the rules of the file's section; None if it has no usable section, with a note on why a section is unusable."""
    try:
        with name_file_in_errors(elf.name):
            section = find_sframe(elf)
            functions = _decode_checked(elf, abi, *section) if section and section[0] else None
    except FormatError as error:
        notes.append(f"{error}; not used")
        return None
    return FoundRules(functions, Origin.SECTION, []) if functions else None


def _read_detached_section(elf: ElfFile, abi: Abi, stores: Stores, notes: list[str]) -> FoundRules | None:
    functions = stores.find_for_file(elf, lambda data: _decode_checked(elf, abi, data, ADDRESS))
    notes += stores.take_notes()
    return FoundRules(functions, Origin.DETACHED, []) if functions else None


def _decode_checked(elf: ElfFile, abi: Abi, data: memoryview, address: int) -> FunctionTable | None:
    """Return a section's functions; None if it has none. Raises FormatError for another ABI, or where `check` finds an error."""
    facts = examine_section(data, address, executable=elf.executable_ranges(), byte_order=elf.byte_order)
    error = next((finding for finding in facts.findings if finding.severity is Severity.ERROR), None)
    if error is not None:
        raise FormatError(error.message, ".sframe", error.offset)
    section = open_section(data, address)
    if section.abi.sframe_id != abi.sframe_id:
        raise FormatError(f"it is for {section.abi.name}", ".sframe", 4)
    return section.table if len(section.table) else None


def _convert_cfi(elf: ElfFile, abi: Abi) -> FoundRules:
    """Return the rules of the call frame information. Raises FormatError if it cannot be read."""
    sources = find_sources(elf)
    converted = convert_sources(sources, elf.executable_ranges(), abi)
    return FoundRules(add_saved_cfa_rules(converted, sources, abi), Origin.CONVERTED, sources.warnings)


def _complete_rules(functions: FunctionTable, elf: ElfFile, abi: Abi, *, proves: bool) -> CompleteRules:
    """Return the functions corrected, with the ends of stacks that the code shows, and, if `proves`, with proven rules."""
    functions, described = add_go_functions(functions, elf, abi)
    if len(functions):
        functions = split_handler_installers(functions, elf, abi)
        functions = add_entry_function(functions, elf, abi)
        functions = extend_rules_past_thread_creation(functions, elf, abi)
    proof: str = ""
    code: Sequence[Range] = ()
    if proves:
        functions, proof, code = add_proven_code(functions, elf, abi, described)
    return CompleteRules(mark_stack_ends(functions, elf, abi), proof, code)
