"""Command-line options for the keyword arguments of `sframegen.add_section`, and the commands that have each option."""

from __future__ import annotations

import click

from sframegen.base.quick_typing import TYPE_CHECKING, Any, NamedTuple
from sframegen.cli.shared.command import combine_options
from sframegen.cli.shared.common_options import debug_file_option
from sframegen.cli.shared.output import Directory
from sframegen.cli.shared.write_options import MIN_KERNEL, level_option, section_option, version_option, write_option

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sframegen.api.options import SectionOptions, WriteOptions
    from sframegen.cli.shared.command import Decorator

ADD_SECTION, ADD_TREE, LINK, FLEET = "add-section", "add-tree", "link", "fleet run"


class KeywordOption(NamedTuple):
    keyword: str  # argument of `add_section`
    option: Decorator
    commands: tuple[str, ...]


# In the order in which --help lists the options.
KEYWORD_OPTIONS = (
    KeywordOption("version", version_option(), (ADD_SECTION, ADD_TREE, LINK, FLEET)),
    KeywordOption("optimize", level_option("fast"), (ADD_SECTION, ADD_TREE, LINK, FLEET)),
    KeywordOption(
        "replace",
        write_option("--replace", is_flag=True, help="Replace an existing SFrame section, whoever produced it."),
        (ADD_SECTION,),
    ),
    KeywordOption(
        "debug_file",
        debug_file_option("for code that FILE's .eh_frame does not describe. FILE may be a kernel module.", option=section_option),
        (ADD_SECTION,),
    ),
    KeywordOption(
        "debug_file",
        section_option(
            "--debug-file",
            metavar="DIR",
            type=Directory(),
            help="Directory with separate debug files, for code that the .eh_frame of their files does not describe.",
        ),
        (ADD_TREE,),
    ),
    KeywordOption(
        "synthesize",
        section_option(
            "--synthesize", is_flag=True, help="Also describe code without call frame information, from its instructions."
        ),
        (ADD_SECTION, ADD_TREE, LINK, FLEET),
    ),
    KeywordOption("min_kernel", MIN_KERNEL, (ADD_SECTION, ADD_TREE, LINK, FLEET)),
    KeywordOption(
        "unloaded",
        write_option(
            "--unloaded",
            is_flag=True,
            help="Add a section that is not loaded, for readers of files such as stack and readelf: no program header changes.",
        ),
        (ADD_SECTION, ADD_TREE),
    ),
    KeywordOption(
        "detached",
        write_option(
            "--detached",
            type=click.Path(file_okay=False),
            metavar="DIR",
            help="Write the section to a separate file, DIR/.build-id/ab/cdef....sframe, and leave FILE unchanged.",
        ),
        (ADD_SECTION,),
    ),
    KeywordOption(
        "object_file",
        write_option(
            "--object",
            "object_file",
            type=click.Path(dir_okay=False),
            metavar="FILE",
            help="Write the section of FILE, a kernel or another image that a linker script lays out, to a relocatable object for"
            " its next link, and leave FILE unchanged.",
        ),
        (ADD_SECTION,),
    ),
    KeywordOption(
        "force",
        write_option(
            "--force",
            is_flag=True,
            help="Also change files that are signed, contain their own checksum, or may be dynamic loaders.",
        ),
        (ADD_SECTION, ADD_TREE),
    ),
    KeywordOption("force", write_option("--force", is_flag=True, help="Also change signed packages and files."), (FLEET,)),
)


def add_section_options(command: str, before: Mapping[str, Sequence[Decorator]] | None = None) -> Decorator:
    """Return a decorator that adds a command's KEYWORD_OPTIONS. `before` has more options, to insert before that of a keyword."""
    inserted, rows = before or {}, [row for row in KEYWORD_OPTIONS if command in row.commands]
    return combine_options(*(option for row in rows for option in (*inserted.get(row.keyword, ()), row.option)))


def select_keywords(command: str, section_options: SectionOptions, write_options: WriteOptions) -> dict[str, Any]:
    """Return the keyword arguments of `add_section` for which a command has options, with the values of these."""
    values = vars(section_options) | vars(write_options)
    return {row.keyword: values[row.keyword] for row in KEYWORD_OPTIONS if command in row.commands}
