"""Merges the SFrame sections of objects at the addresses that a linker gave to their code, and links objects to one object."""

from __future__ import annotations

import os
import signal
import subprocess
from itertools import islice
from operator import add, gt
from typing import TYPE_CHECKING, NamedTuple

from linker.files.location import errors_naming
from sframegen.base.errors import FormatError, Refusal, RefusedError, name_file_in_errors
from sframegen.code.context.plt import find_plt
from sframegen.conversion.final_calls import read_symbol_addresses
from sframegen.elf.file import check_regular
from sframegen.format.abi import abi_of
from sframegen.format.model import AT_CFA
from sframegen.format.words import EncodedRules, RuleWords, are_expressible
from sframegen.tables.gather import Merger
from sframegen.tables.lower import lower_table
from sframegen.tables.optimize import Borders, build_optimized_encoder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from linker.merge.by_map import LinkerMap, MergeCounts
    from linker.merge.inputs import Inputs
    from sframegen.format.encode import Encoder
    from sframegen.format.layouts import Layout
    from sframegen.tables.levels import Level


def gather_objects(inputs: Inputs, linker_map: LinkerMap, counts: MergeCounts) -> Merger:
    """Return the objects' SFrame sections, gathered at the linked addresses of their code. A FormatError names the object."""
    merger = Merger()
    abi = abi_of(linker_map.linked)
    count = 0
    for path, member, obj in inputs.objects(abi):
        count += 1
        if obj.abi != abi:
            raise obj.elf.error(f"an object for {obj.abi.name}, {linker_map.linked.name} is for {abi.name}")
        with name_file_in_errors(obj.name):
            linker_map.add_object(obj, path, member, merger, counts)
    if counts.objects_unlinked == count:
        raise FormatError("none of the objects is in the map", file=linker_map.path)
    counts.others = tuple(linker_map.unread_files())
    counts.versions = tuple(sorted(merger.versions))
    return merger


def merge_objects(inputs: Inputs, linker_map: LinkerMap, layout: Layout, level: Level, counts: MergeCounts) -> Encoder:
    """Return an encoder with the functions of the objects and of the PLT, merged. Fills `counts`.

    At the lowest level, each function is encoded as in its object. Raises FormatError.
    """
    elf = linker_map.linked
    merger = gather_objects(inputs, linker_map, counts)
    if not merger.sections:
        message = "none of the objects has an SFrame section: GNU as --gsframe makes them, or sframegen add-section"
        raise FormatError(message, file=elf.name)
    abi = abi_of(elf)
    plt = find_plt(elf, abi).make_functions()
    table, _ = merger.build_table(elf.executable_ranges(), plt)
    counts.plt_functions = len(plt)
    linker_map.count_undescribed(table.start, counts)
    # The objects' functions can only be encoded as they are if the new section has the same version and fixed offsets.
    can_keep = merger.versions == {layout.version} and merger.fixed_offsets == {(abi.fixed_fp_offset, abi.fixed_ra_offset)}
    can_keep = can_keep and all(rule.fp != AT_CFA for rule in table.rules) and are_expressible(table.rules, abi, layout)
    has_overlaps = any(map(gt, map(add, table.start, table.size), islice(table.start, 1, None)))  # end > next start
    if level.max_rows or has_overlaps or not can_keep:
        table, left_out = lower_table(table, abi, layout)
        counts.left_out = {reason.value: count for reason, count in left_out.items()}
    if not len(table):
        raise FormatError("the .sframe sections of its objects describe none of its code", file=elf.name)
    encoder = build_optimized_encoder(
        elf, table, EncodedRules(table.rules, RuleWords(abi, layout)), level, Borders(read_symbol_addresses(elf))
    )
    encoder.flags |= layout.flags & (0 if counts.objects_without else merger.flags)
    counts.functions, counts.rows, counts.section_bytes = len(encoder.table), len(encoder.table.row_start), encoder.size_bytes
    return encoder


class PartialLink(NamedTuple):
    """The result of a partial link. `messages`: the messages of the linker, except those about SFrame sections."""

    output: Path
    map_file: Path
    messages: list[str]


def check_regular_files(objects: Iterable[str | os.PathLike[str]]) -> None:
    """Raise FormatError for a device or a FIFO, for which a linker would wait, and OSError for a missing file."""
    for path in objects:
        check_regular(os.stat(path).st_mode, os.fspath(path))  # noqa: PTH116 - there are thousands


def partial_link(
    linker: str, objects: Iterable[str | os.PathLike[str]], directory: Path, meanwhile: Callable[[], object]
) -> PartialLink:
    """Run `linker -r`, for any linker that writes a map, with output to `directory`, and call `meanwhile` while it runs.

    Raises FormatError if the link fails, with the linker's output as notes (PEP 678), RefusedError if the linker does not exist.
    """
    output, map_file, argument_file = directory / "linked.o", directory / "map", directory / "arguments"
    text = "".join(f"{_quote_argument(os.fspath(path))}\n" for path in objects)
    argument_file.write_text(text, encoding="utf-8", errors="surrogateescape")
    command = [linker, "-r", "-o", str(output), f"-Map={map_file}", f"@{argument_file}"]
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        run = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace", env=environment
        )
    except OSError as error:
        raise RefusedError(Refusal.NO_LINKER, error.strerror or str(error), file=os.fsdecode(linker)) from error
    with run:
        try:
            meanwhile()
            _, errors = run.communicate()
        except BaseException:  # also exceptions of signal handlers
            run.kill()
            raise
    messages = _parse_messages(errors)
    missing = [noun for noun, file in (("object", output), ("map", map_file)) if not file.exists()]
    if (status := run.returncode) or missing:
        how = f"exit status {status}" if status >= 0 else f"killed by signal {-status} ({signal.strsignal(-status)})"
        reason = f"-r failed: {how}" if status else f"-r wrote no {' and no '.join(missing)}"
        link_error = FormatError(reason, file=os.fsdecode(linker))
        for line in errors.splitlines():
            link_error.add_note(line)
        raise link_error
    with errors_naming(str(directory)):
        (directory / "room").write_bytes(bytes(1 << 16))  # an OSError on a full disk, where GNU ld cuts off the map
    return PartialLink(output, map_file, messages)


def _parse_messages(text: str) -> list[str]:
    """Return the linker's messages, a line each. lld begins continuation lines with `>>>`."""
    messages = text.replace("\n>>> ", ": ").splitlines()
    return [line for line in messages if line and "sframe" not in line.lower()]


def _quote_argument(path: str) -> str:
    """Quote a path for an argument file. `./` keeps the linker from taking it for an option or another argument file."""
    path = f"./{path}" if path.startswith(("-", "@")) else path
    return '"' + path.replace("\\", "\\\\").replace('"', '\\"') + '"'
