"""Merges the SFrame sections of objects for the file linked from them, at the addresses that the linker gave their code."""

from __future__ import annotations

from itertools import islice
from operator import add, gt
from typing import TYPE_CHECKING

from sframegen.base.errors import FormatError, naming
from sframegen.code.context.plt import find_plt
from sframegen.conversion.final_calls import symbol_places
from sframegen.format.abi import abi_of
from sframegen.format.model import AT_CFA, FunctionTable
from sframegen.format.words import EncodedRules, RuleWords, expressible
from sframegen.tables.gather import Merger
from sframegen.tables.lower import lower
from sframegen.tables.optimize import Borders, encoder_of

if TYPE_CHECKING:
    from linker.merge.by_map import Counts, LinkerMap
    from linker.merge.inputs import Inputs
    from sframegen.format.encode import Encoder
    from sframegen.format.layouts import Layout
    from sframegen.tables.levels import Level


def gather_objects(inputs: Inputs, linker_map: LinkerMap, counts: Counts) -> Merger:
    """Return the objects' SFrame sections, gathered at the addresses of their code. A FormatError names the object."""
    merger = Merger()
    abi = abi_of(linker_map.linked)
    given = 0
    for path, member, one in inputs.objects(abi):
        given += 1
        if one.abi != abi:
            raise one.elf.error(f"an object for {one.abi.name}, {linker_map.linked.name} is for {abi.name}")
        with naming(one.name):
            linker_map.add(one, path, member, merger, counts)
    if counts.objects_unlinked == given:
        raise FormatError("none of the objects is in the map", file=linker_map.path)
    counts.others = tuple(linker_map.others())
    counts.versions = tuple(sorted(merger.versions))
    return merger


def merge_objects(inputs: Inputs, linker_map: LinkerMap, layout: Layout, level: Level, counts: Counts) -> Encoder:
    """Return an encoder with the merged functions of the objects and of the PLT. Adds to `counts`.

    At the level that changes nothing, each function is as its object has it. Raises FormatError.
    """
    elf = linker_map.linked
    merger = gather_objects(inputs, linker_map, counts)
    if not merger.sections:
        raise FormatError(
            "none of the objects has an SFrame section: GNU as --gsframe makes them, or sframegen add-section", file=elf.name
        )
    abi = abi_of(elf)
    plt = find_plt(elf, abi).functions()
    table, _ = merger.merged(elf.executable_ranges(), plt)
    counts.plt_functions = len(plt)
    linker_map.count_undescribed(table.start, counts)
    as_they_are = merger.versions == {layout.version} and merger.fixed_offsets == {(abi.fixed_fp_offset, abi.fixed_ra_offset)}
    as_they_are = as_they_are and all(rule.fp != AT_CFA for rule in table.rules) and expressible(table.rules, abi, layout)
    if level.max_rows or not as_they_are or _overlap(table):
        table, left_out = lower(table, abi, layout)
        counts.left_out = {reason.value: count for reason, count in left_out.items()}
    if not len(table):
        raise FormatError("the .sframe sections of its objects describe none of its code", file=elf.name)
    encoder = encoder_of(elf, table, EncodedRules(table.rules, RuleWords(abi, layout)), level, Borders(symbol_places(elf)))
    encoder.flags |= layout.flags & (0 if counts.objects_without else merger.flags)
    counts.functions, counts.rows, counts.section_bytes = len(encoder.table), len(encoder.table.row_start), encoder.size_bytes
    return encoder


def _overlap(table: FunctionTable) -> bool:
    """Return True if two functions describe the same code. `table` is in order of address."""
    return any(map(gt, map(add, table.start, table.size), islice(table.start, 1, None)))
