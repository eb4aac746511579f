"""Command-line options for the keywords of `sframegen.add_section`: a row for each, with the commands that have it."""

from __future__ import annotations

import click

from sframegen.base.quick_typing import TYPE_CHECKING, Any, NamedTuple
from sframegen.cli.shared.command import options
from sframegen.cli.shared.common_options import debug_file
from sframegen.cli.shared.output import Directory
from sframegen.cli.shared.write_options import MIN_KERNEL, format_version, level, making_option, writing_option

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sframegen.api.options import SectionOptions, WriteOptions
    from sframegen.cli.shared.command import Decorator

ADD_SECTION, ADD_TREE, LINK, FLEET = "add-section", "add-tree", "link", "fleet run"


class Row(NamedTuple):
    keyword: str  # argument of `add_section`
    option: Decorator
    commands: tuple[str, ...]


# In the order of the help.
ROWS = (
    Row("version", format_version(), (ADD_SECTION, ADD_TREE, LINK, FLEET)),
    Row("optimize", level("fast"), (ADD_SECTION, ADD_TREE, LINK, FLEET)),
    Row(
        "replace",
        writing_option("--replace", is_flag=True, help="Replace an existing SFrame section, whoever produced it."),
        (ADD_SECTION,),
    ),
    Row(
        "debug_file",
        debug_file("for code that FILE's .eh_frame does not describe. FILE may be a kernel module.", option=making_option),
        (ADD_SECTION,),
    ),
    Row(
        "debug_file",
        making_option(
            "--debug-file",
            metavar="DIR",
            type=Directory(),
            help="Directory with separate debug files, for code that the .eh_frame of their files does not describe.",
        ),
        (ADD_TREE,),
    ),
    Row(
        "synthesize",
        making_option(
            "--synthesize", is_flag=True, help="Also describe code without call frame information, from its instructions."
        ),
        (ADD_SECTION, ADD_TREE, LINK, FLEET),
    ),
    Row("min_kernel", MIN_KERNEL, (ADD_SECTION, ADD_TREE, LINK, FLEET)),
    Row(
        "unloaded",
        writing_option(
            "--unloaded",
            is_flag=True,
            help="Add a section that is not loaded, for readers of files such as stack and readelf: no program header changes.",
        ),
        (ADD_SECTION, ADD_TREE),
    ),
    Row(
        "detached",
        writing_option(
            "--detached",
            type=click.Path(file_okay=False),
            metavar="DIR",
            help="Write the section to a separate file, DIR/.build-id/ab/cdef....sframe, and leave FILE unchanged.",
        ),
        (ADD_SECTION,),
    ),
    Row(
        "object_file",
        writing_option(
            "--object",
            "object_file",
            type=click.Path(dir_okay=False),
            metavar="FILE",
            help="Write the section of FILE, a kernel or another image that a linker script lays out, to a relocatable object for"
            " its next link, and leave FILE unchanged.",
        ),
        (ADD_SECTION,),
    ),
    Row(
        "force",
        writing_option(
            "--force",
            is_flag=True,
            help="Also change files that are signed, contain their own checksum, or may be dynamic loaders.",
        ),
        (ADD_SECTION, ADD_TREE),
    ),
    Row("force", writing_option("--force", is_flag=True, help="Also change signed packages and files."), (FLEET,)),
)


def adding(command: str, before: Mapping[str, Sequence[Decorator]] | None = None) -> Decorator:
    """Return the decorator that adds a command's options of ROWS. `before`: options of its own to put before a keyword's."""
    own = before or {}
    return options(*(option for row in ROWS if command in row.commands for option in (*own.get(row.keyword, ()), row.option)))


def keywords_of(command: str, making: SectionOptions, writing: WriteOptions) -> dict[str, Any]:
    """Return the keyword arguments of `add_section` that a command's options stand for."""
    everything = vars(making) | vars(writing)
    return {row.keyword: everything[row.keyword] for row in ROWS if command in row.commands}
