from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from sframegen.cli.output import FILES, Run, json_list
from sframegen.dump import dump_json, dump_text
from sframegen.elf import open_elf
from sframegen.names import FunctionNames
from sframegen.section import read_sframe

if TYPE_CHECKING:
    from collections.abc import Iterator


@click.command(name="dump")
@FILES
@click.option("--names", is_flag=True, help="Add each function's name, from the file's symbol table.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, or with several FILEs a list of them.")
@click.pass_context
def command(ctx: click.Context, files: tuple[str, ...], names: bool, as_json: bool) -> None:
    """Print the SFrame section of each FILE, line for line as `readelf --sframe` of GNU binutils 2.47 does.

    Version 1, which that one does not read, has the same form.

    \b
    CFA, FP, RA   where they are: sp, fp, a register, or c for the CFA, plus an offset; (fp-8): what is stored there
    u             unchanged: still in its register
    f             at the offset from the CFA that the ABI fixes
    U             as u or f: the row says FP and passes over RA
    [s]           the return address is signed
    [m]           rows repeat, STARTPC is the offset in the repeated block
    attr          S: signal frame, F: flexible rules
    """  # noqa: D301 - click's mark for text that keeps its lines
    run = Run()
    pieces = json_list(_objects(run, files), several=len(files) > 1) if as_json else _text(run, files, names)
    sys.stdout.writelines(pieces)
    ctx.exit(run.status)


def _text(run: Run, files: tuple[str, ...], names: bool) -> Iterator[str]:
    for path in files:
        if len(files) > 1:
            yield f"\nFile: {path}\n"
        with run.file(path):
            elf = open_elf(path)
            section = read_sframe(elf)
            yield from dump_text(section, FunctionNames(elf.function_symbols()).at if names else None)


def _objects(run: Run, files: tuple[str, ...]) -> Iterator[Iterator[str]]:
    for path in files:
        with run.file(path):
            elf = open_elf(path)
            section = read_sframe(elf)
            yield dump_json(section, path, FunctionNames(elf.function_symbols()).at)
