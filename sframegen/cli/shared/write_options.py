"""Command-line options that several commands that write files have in common."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, get_args

import click

from linker.files.target import STDOUT_NAMES
from linker.inject import kernel_versions
from sframegen.api.options import SectionOptions, WriteOptions
from sframegen.cli.shared.command import CombinedValue, PartOption, combine_options
from sframegen.cli.shared.common_options import JOBS, common_option
from sframegen.cli.shared.output import PathName
from sframegen.format.layouts import FormatVersion
from sframegen.tables.levels import LEVELS

if TYPE_CHECKING:
    import os

    from sframegen.cli.shared.command import Decorator

SECTION_OPTIONS, WRITE_OPTIONS = CombinedValue("section_options", SectionOptions), CombinedValue("write_options", WriteOptions)
OWNERSHIP = "The file belongs to you; one that exists keeps its owner and mode."


class OutputName(PathName):
    """The name of an output file; a dash is standard output."""

    def convert(self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None) -> str:
        name = super().convert(value, param, ctx)
        return STDOUT_NAMES[0] if name == "-" else name


OUTPUT = common_option(
    "-o",
    "--output",
    metavar="FILE",
    type=OutputName(),
    help=f"Write to this file (-: standard output) and leave the given one unchanged. {OWNERSHIP}",
)
NEW_OUTPUT = click.option(
    "-o", "--output", metavar="FILE", type=OutputName(), required=True, help=f"Write to this file (-: standard output). {OWNERSHIP}"
)  # required: the command has no file to change in place
RECURSIVE = click.option("-r", "--recursive", is_flag=True, help="Take directories, as the command for trees does.")
RESULT_OPTIONS = combine_options(OUTPUT, JOBS)  # for commands that change each FILE
section_option, write_option = (partial(click.option, cls=PartOption, value=value) for value in (SECTION_OPTIONS, WRITE_OPTIONS))
FORCE_FOREIGN = write_option("--force", is_flag=True, help="Also remove sections that other tools produced, except from objects.")


def dry_run_option(text: str = "Print the changes to the file; write nothing.") -> Decorator:
    return write_option("--dry-run", is_flag=True, help=text)


VERSIONS: dict[str, FormatVersion] = {str(version): version for version in sorted(get_args(FormatVersion), reverse=True)}


def version_option(value: CombinedValue = SECTION_OPTIONS, default: str | None = "3") -> Decorator:
    """Return the option for the SFrame version to write. With `default` None, the section keeps its version."""
    default_settings: dict[str, Any] = {} if default is None else {"default": default, "show_default": True}
    choice = click.Choice(list(VERSIONS))
    return click.option(
        "--sframe-version", "version", type=choice, callback=lambda _ctx, _parameter, text: VERSIONS.get(text),
        help="Version of the SFrame format to write.", cls=PartOption, value=value, **default_settings,
    )  # fmt: skip


def level_option(default: str | None, value: CombinedValue = SECTION_OPTIONS) -> Decorator:
    """Return the option for how small a section is made. With `default` None, the command chooses the level."""
    return click.option(
        "--optimize",
        type=click.Choice([*LEVELS]),
        default=default,
        show_default=True,
        help="none: one FDE per function. fast: equal rows only once, functions cut and neighbours joined where look-ups stay fast."
        " size: join more.",
        cls=PartOption,
        value=value,
    )


def _check_kernel_version(_ctx: click.Context, _parameter: click.Parameter, version: str | None) -> str | None:
    try:
        kernel_versions.changes_accepted_by(version)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    return version


MIN_KERNEL = write_option(
    "--min-kernel",
    metavar="VERSION",
    callback=_check_kernel_version,
    help="The oldest Linux that the result must run on. 6.7 allows sections in dynamic loaders; before 5.18, static-PIE programs"
    f" of lld and mold get none.  [default: {kernel_versions.MIN_KERNEL}]",
)

VERIFICATION = write_option(
    "--no-verify",
    "verify",
    is_flag=True,
    callback=lambda _ctx, _parameter, no_verify: not no_verify,
    help="Do not read the result back with another library, which compares each header, segment and section, and all bytes that"
    " were there before, with what was planned.",
)
