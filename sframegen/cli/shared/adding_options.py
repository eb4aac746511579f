"""The options of `sframegen.add_section`: a row for each, with the commands that have it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import click

from sframegen.cli.shared.command import options
from sframegen.cli.shared.common_options import debug_file, keyword
from sframegen.cli.shared.output import Directory
from sframegen.cli.shared.write_options import MIN_KERNEL, format_version, level

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sframegen.cli.shared.command import Decorator

ADD_SECTION, ADD_TREE, LINK, FLEET = "add-section", "add-tree", "link", "fleet run"


def compression(*others: str) -> Decorator:
    """The option to compress a section. `others`: it needs one of these options, which are read before it."""
    either = " or ".join(others)

    def checked(ctx: click.Context, _parameter: click.Parameter, compression: str | None) -> str | None:
        if compression and not any(ctx.params[option.lstrip("-")] for option in others):
            raise click.UsageError(f"--compress needs {either}")
        return compression

    return keyword("--compress", type=click.Choice(["zstd"]), callback=checked, help=f"With {either}: compress the section.")


class Row(NamedTuple):
    keyword: str  # of `add_section`
    option: Decorator
    commands: tuple[str, ...]


# In the order of the help.
ROWS = (
    Row("version", format_version(), (ADD_SECTION, ADD_TREE, LINK, FLEET)),
    Row("optimize", level("fast"), (ADD_SECTION, ADD_TREE, LINK, FLEET)),
    Row(
        "replace",
        keyword("--replace", is_flag=True, help="Replace an existing SFrame section, whoever produced it."),
        (ADD_SECTION,),
    ),
    Row("debug_file", debug_file("for code that FILE's .eh_frame does not describe."), (ADD_SECTION,)),
    Row(
        "debug_file",
        keyword(
            "--debug-file",
            metavar="DIR",
            type=Directory(),
            help="Directory with separate debug files, for code that the .eh_frame of their files does not describe.",
        ),
        (ADD_TREE,),
    ),
    Row(
        "synthesize",
        keyword("--synthesize", is_flag=True, help="Also describe code without call frame information, from its instructions."),
        (ADD_SECTION, ADD_TREE, LINK, FLEET),
    ),
    Row("min_kernel", MIN_KERNEL, (ADD_SECTION, ADD_TREE, LINK, FLEET)),
    Row(
        "unloaded",
        keyword(
            "--unloaded",
            is_flag=True,
            is_eager=True,  # known when --compress is read
            help="Add a section that is not mapped at run time, for tools that read the file: no program header changes.",
        ),
        (ADD_SECTION, ADD_TREE),
    ),
    Row(
        "detached",
        keyword(
            "--detached",
            type=click.Path(file_okay=False),
            is_eager=True,  # known when --compress is read
            metavar="DIR",
            help="Write the section to a separate file, DIR/.build-id/ab/cdef....sframe, and leave FILE unchanged.",
        ),
        (ADD_SECTION,),
    ),
    Row("compress", compression("--unloaded", "--detached"), (ADD_SECTION,)),
    Row("compress", compression("--unloaded"), (ADD_TREE,)),
    Row(
        "force",
        keyword(
            "--force",
            is_flag=True,
            help="Also change files that are signed, contain their own checksum, or may be dynamic loaders.",
        ),
        (ADD_SECTION, ADD_TREE),
    ),
    Row("force", keyword("--force", is_flag=True, help="Also change signed packages and files."), (FLEET,)),
    Row(
        "per_function",
        keyword("--per-function", is_flag=True, help="With --json: also account for each function."),
        (ADD_SECTION,),
    ),
)


def adding(command: str, before: Mapping[str, Sequence[Decorator]] | None = None) -> Decorator:
    """The options that a command has of these, and `before` some, by their keywords, others of its own."""
    own = before or {}
    return options(*(option for row in ROWS if command in row.commands for option in (*own.get(row.keyword, ()), row.option)))
