"""Options of the commands that write files, most of them keywords of the public functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

import click

from linker.files.target import STDOUT_NAMES
from linker.inject.kernel_versions import safe_on
from sframegen.cli.shared.command import options
from sframegen.cli.shared.common_options import JOBS, keyword, part_of_how
from sframegen.cli.shared.output import PathName
from sframegen.format.layouts import FormatVersion
from sframegen.tables.levels import LEVELS

if TYPE_CHECKING:
    import os

    from sframegen.cli.shared.command import Decorator

OWNED = "The file belongs to you; one that exists keeps its owner and mode."


class OutputName(PathName):
    """Of a file that is written; a dash is standard output."""

    def convert(self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None) -> str:
        name = super().convert(value, param, ctx)
        return STDOUT_NAMES[0] if name == "-" else name


OUTPUT = part_of_how(
    "-o",
    "--output",
    metavar="FILE",
    type=OutputName(),
    help=f"Write to this file (-: standard output) and leave the given one unchanged. {OWNED}",
)
OUTPUT_DIR = part_of_how(
    "--output-dir",
    metavar="DIR",
    type=PathName(),
    help="Write files with the same names into this directory. Who owns them is decided as with -o.",
)
PRESERVE_TIMESTAMPS = keyword("-p", "--preserve-timestamps", is_flag=True, help="Keep the access and modification times.")
RESULTS = options(OUTPUT, OUTPUT_DIR, JOBS, PRESERVE_TIMESTAMPS)  # of the commands that change each FILE
OUTPUT_OR_DIR = ("--output", "--output-dir")  # exclude each other
FORCE_FOREIGN = keyword("--force", is_flag=True, help="Also remove sections that other tools produced, except from objects.")


def dry_run(text: str = "Print the changes to the file; write nothing.") -> Decorator:
    return keyword("--dry-run", is_flag=True, help=text)


VERSIONS: dict[str, FormatVersion] = {str(version): version for version in sorted(get_args(FormatVersion), reverse=True)}


def _version(_ctx: click.Context, _parameter: click.Parameter, text: str | None) -> FormatVersion | None:
    return None if text is None else VERSIONS[text]


def format_version(default: str | None = "3") -> Decorator:
    """The option of the version to write. `default` None: that of the section."""
    unless_given: dict[str, Any] = {} if default is None else {"default": default, "show_default": True}
    choice = click.Choice(list(VERSIONS))
    return keyword("--format", "version", type=choice, callback=_version, help="The SFrame version to write.", **unless_given)


def level(default: str | None) -> Decorator:
    """The option of how small a section is made. `default` None: that of the command."""
    return keyword(
        "--optimize",
        type=click.Choice([*LEVELS]),
        default=default,
        show_default=True,
        help="none: one FDE per function. fast: equal rows only once, functions cut and neighbours joined where look-ups stay fast."
        " size: join more.",
    )


def _kernel(_ctx: click.Context, _parameter: click.Parameter, version: str | None) -> str | None:
    try:
        safe_on(version)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    return version


MIN_KERNEL = keyword(
    "--min-kernel",
    metavar="VERSION",
    callback=_kernel,
    help="The oldest Linux that the result must run on. Newer versions allow sections in static-PIEs of lld and mold"
    " (5.18) and in dynamic loaders (6.7).",
)


VERIFICATION = keyword(
    "--no-verify",
    "verify",
    is_flag=True,
    callback=lambda _ctx, _parameter, given: not given,
    help="Do not read the result back with another library, which compares each header, segment and section, and all bytes that"
    " were there before, with what was planned.",
)
