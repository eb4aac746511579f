from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import click

from sframegen.base.text import printable
from sframegen.cli.shared.command import Command, Example
from sframegen.cli.shared.common_options import JSON_LIST, CommonOptions
from sframegen.cli.shared.file_kinds import open_views
from sframegen.cli.shared.output import FILES, Run, json_list
from sframegen.cli.shared.section_text import dump_json, dump_text
from sframegen.elf.file import ElfFile
from sframegen.elf.function_names import FunctionNames
from sframegen.elf.symbols import sorted_functions
from sframegen.format.locate import read_sframe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from linker.objects.object_view import ObjectView
    from sframegen.cli.shared.section_text import NameOf
    from sframegen.format.decode import SframeSection


@click.command(
    name="dump",
    cls=Command,
    examples=[
        Example("Print a section with the names of functions", "sframegen dump --names ./prog"),
        Example("Print the number of functions of each file", "sframegen dump --json prog lib.so | jq '.[].header.num_fdes'"),
    ],
)
@FILES
@click.option("--names", is_flag=True, help="Add each function's name, from the file's symbol table.")
@JSON_LIST
@click.pass_context
def command(ctx: click.Context, files: tuple[str, ...], names: bool, common: CommonOptions) -> None:
    """Print the SFrame section of each FILE, line for line like `readelf --sframe` of GNU binutils 2.47.

    Version 1, which binutils 2.47 does not read, is printed in the same format. For objects and archives, all sections are
    printed; a function's pc is its offset in the section that holds its code.

    \b
    CFA, FP, RA   location: sp, fp, a register, or c for the CFA, plus an offset; (fp-8): the value stored there
    u             unchanged: still in its register
    f             at the fixed offset from the CFA that the ABI defines
    U             like u or f: the row has FP but not RA
    [s]           the return address is signed
    [m]           rows repeat, STARTPC is the offset in the repeated block
    attr          S: signal frame, F: flexible rules
    """  # noqa: D301 - click's mark for text that keeps its lines
    run = Run()
    pieces = json_list(_documents(run, files)) if common.as_json else _text(run, files, names)
    sys.stdout.writelines(pieces)
    ctx.exit(run.status)


def _text(run: Run, files: tuple[str, ...], names: bool) -> Iterator[str]:
    for path in files:
        with run.file(path):
            given = open_views(path)
            if not isinstance(given, ElfFile):
                yield from _text_of_objects(given, path, names, several=len(files) > 1)
                continue
            if len(files) > 1:
                yield heading(path)
            section = read_sframe(given)
            yield from dump_text(section, _names_in(given, section) if names else None)


def _text_of_objects(views: list[ObjectView], path: str, names: bool, *, several: bool) -> Iterator[str]:
    for view in views:
        member = view.elf.name.removeprefix(path)
        if several or member:
            yield heading(path + printable(member))
        for piece, section in enumerate(view.sections()):
            yield from dump_text(section, view.function_namer(piece) if names else None)


def heading(file: str) -> str:
    """Return the heading of a file, as readelf prints it."""
    return f"\nFile: {file}\n"


def _documents(run: Run, files: tuple[str, ...]) -> Iterator[Iterator[str]]:
    for path in files:
        with run.file(path):
            given = open_views(path)
            if not isinstance(given, ElfFile):
                yield _document_of_objects(path, [section for view in given for section in _sections_of(view)])
                continue
            section = read_sframe(given)
            yield dump_json(section, path, _names_in(given, section))
        yield from (iter([json.dumps(refused)]) for refused in run.taken())


def _sections_of(view: ObjectView) -> Iterator[Iterator[str]]:
    """Yield an object's sections as JSON, all decoded first: a later fault would leave the JSON unfinished. Raises FormatError."""
    for piece, section in enumerate(view.sections()):
        section.table  # noqa: B018 - it is cached
        yield dump_json(section, view.elf.name, view.function_namer(piece), view.code_section_namer(piece))


def _document_of_objects(path: str, sections: list[Iterator[str]]) -> Iterator[str]:
    yield json.dumps({"file": path})[:-1] + ', "sections": ['
    for number, section in enumerate(sections):
        yield ",\n" * (number > 0)
        yield from section
    yield "]}"


def _names_in(elf: ElfFile, section: SframeSection) -> NameOf:
    """Return a function that gives the symbol of a function's number."""
    names = FunctionNames(sorted_functions(elf))
    return lambda function: names.at(section.table.start[function])
