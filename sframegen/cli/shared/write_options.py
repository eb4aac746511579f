"""Options of the commands that write files."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import click

from linker.inject.kernel_versions import safe_on
from sframegen.cli.shared.output import PathName
from sframegen.format.layouts import FormatVersion

if TYPE_CHECKING:
    from collections.abc import Callable

    Decorated = TypeVar("Decorated", bound=Callable[..., object])

OWNED = "The file belongs to you; one that exists keeps its owner and mode."
OUTPUT = click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=PathName(),
    help=f"Write to this file and leave the given one unchanged. {OWNED}",
)
OUTPUT_DIR = click.option(
    "--output-dir",
    metavar="DIR",
    type=PathName(),
    help="Write files with the same names into this directory. Who owns them is decided as with -o.",
)
OUTPUT_OR_DIR = ("--output", "--output-dir")  # exclude each other
READ_BACK_OR_NOT = ("--verify", "--no-verify")
VERSIONS: dict[str, FormatVersion] = {str(version): version for version in sorted(get_args(FormatVersion), reverse=True)}


def _version(_ctx: click.Context, _parameter: click.Parameter, text: str) -> FormatVersion:
    return VERSIONS[text]


def format_version(default: str | None = "3") -> Callable[[Decorated], Decorated]:
    """The option of the version to write. `default` None: it is required."""
    unless_given: dict[str, Any] = {"required": True} if default is None else {"default": default, "show_default": True}
    choice = click.Choice(list(VERSIONS))
    return click.option("--format", "version", type=choice, callback=_version, help="The SFrame version to write.", **unless_given)


def _kernel(_ctx: click.Context, _parameter: click.Parameter, version: str | None) -> str | None:
    try:
        safe_on(version)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    return version


MIN_KERNEL = click.option(
    "--min-kernel",
    metavar="VERSION",
    callback=_kernel,
    help="The oldest Linux that the result must run on. Newer versions allow sections in static-PIEs of lld and mold"
    " (5.18) and in dynamic loaders (6.7).",
)


UNLOADED = click.option(
    "--unloaded",
    is_flag=True,
    is_eager=True,  # known when --compress is read
    help="Add a section that is not mapped at run time, for tools that read the file: no program header changes.",
)


def compression(*options: str) -> Callable[[Decorated], Decorated]:
    """The option to compress a section. `options`: it needs one of these, which are read before it."""
    either = " or ".join(options)

    def checked(ctx: click.Context, _parameter: click.Parameter, compression: str | None) -> str | None:
        if compression and not any(ctx.params[option.lstrip("-")] for option in options):
            raise click.UsageError(f"--compress needs {either}")
        return compression

    return click.option("--compress", type=click.Choice(["zstd"]), callback=checked, help=f"With {either}: compress the section.")


def verification(command: Callable[..., object]) -> Callable[..., object]:
    """The options of how the result is read back. The command gets `verify`, which is what the public functions take."""

    @wraps(command)
    def with_reader(*arguments: object, verify: str | None, no_verify: bool, **options: object) -> object:
        return command(*arguments, verify=False if no_verify or verify == "none" else verify or True, **options)

    reader = click.option(
        "--verify",
        type=click.Choice(["lief", "elftools", "none"]),
        help="Read the result back with this library. Both compare each header, segment and section, and all bytes that were there"
        " before, with what was planned. By default LIEF reads large files and many, pyelftools others, because it starts faster.",
    )
    without = click.option("--no-verify", is_flag=True, help="Do not read the result back: --verify none.")
    return reader(without(with_reader))


def level(default: str) -> Callable[[Decorated], Decorated]:
    """The option of how small a section is made."""
    return click.option(
        "--optimize",
        type=click.Choice(["none", "share", "fast", "size"]),
        default=default,
        show_default=True,
        help="none: one FDE per function. share: equal rows only once. fast: also cut functions and join neighbours where look-ups"
        " stay fast. size: join more.",
    )
