from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import click

from sframegen.base.text import printable
from sframegen.cli.shared.command import Command, Example
from sframegen.cli.shared.common_options import JSON_LIST, CommonOptions
from sframegen.cli.shared.file_kinds import open_views
from sframegen.cli.shared.output import FILES, Run, join_json_list
from sframegen.cli.shared.section_text import dump_json, dump_text
from sframegen.elf.file import ElfFile
from sframegen.elf.function_names import FunctionNames
from sframegen.elf.symbols import sorted_functions
from sframegen.format.locate import read_sframe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from linker.objects.object_view import ObjectView
    from sframegen.cli.shared.section_text import TextByFunction
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
    sys.stdout.writelines(join_json_list(_format_as_json(run, files)) if common.as_json else _format_as_text(run, files, names))
    ctx.exit(run.status)


def _format_as_text(run: Run, files: tuple[str, ...], names: bool) -> Iterator[str]:
    for path in files:
        with run.working_on(path):
            opened = open_views(path)
            if not isinstance(opened, ElfFile):
                yield from _format_objects_as_text(opened, path, names, several=len(files) > 1)
                continue
            if len(files) > 1:
                yield format_heading(path)
            section = read_sframe(opened)
            yield from dump_text(section, _function_namer(opened, section) if names else None)


def _format_objects_as_text(views: list[ObjectView], path: str, names: bool, *, several: bool) -> Iterator[str]:
    for view in views:
        member = view.elf.name.removeprefix(path)
        if several or member:
            yield format_heading(path + printable(member))
        for number, section in enumerate(view.sections()):
            yield from dump_text(section, view.function_namer(number) if names else None)


def format_heading(file: str) -> str:
    """Return the heading of a file, as readelf prints it."""
    return f"\nFile: {file}\n"


def _format_as_json(run: Run, files: tuple[str, ...]) -> Iterator[Iterator[str]]:
    """Yield one JSON document for each file, as several strings. The document of a refused file is its error."""
    for path in files:
        with run.working_on(path):
            opened = open_views(path)
            if not isinstance(opened, ElfFile):
                yield _format_objects_as_json(path, [section for view in opened for section in _format_sections_as_json(view)])
                continue
            section = read_sframe(opened)
            yield dump_json(section, path, _function_namer(opened, section))
        yield from (iter([json.dumps(refused)]) for refused in run.take_json())


def _format_sections_as_json(view: ObjectView) -> Iterator[Iterator[str]]:
    """Yield an object's sections as JSON. Raises FormatError for a damaged one, before any JSON that would stay unfinished."""
    for number, section in enumerate(view.sections()):
        section.table  # noqa: B018 - decodes the section, and caches the result
        yield dump_json(section, view.elf.name, view.function_namer(number), view.code_section_namer(number))


def _format_objects_as_json(path: str, sections: list[Iterator[str]]) -> Iterator[str]:
    yield json.dumps({"file": path})[:-1] + ', "sections": ['
    for number, section in enumerate(sections):
        yield ",\n" * (number > 0)
        yield from section
    yield "]}"


def _function_namer(elf: ElfFile, section: SframeSection) -> TextByFunction:
    """Return a callable that returns the symbol name of the function with an index in the section."""
    names = FunctionNames(sorted_functions(elf))
    return lambda function: names.at(section.table.start[function])
