"""What the commands for whole trees share: which files are left out, and the work on each of the others."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cfi.errors import FormatError
from linker.existing.find_section import extents
from sframegen.cli.shared.common_options import JSON_LIST, PRESERVE_TIMESTAMPS, QUIET, dry_run, verbose
from sframegen.cli.shared.output import Directory, in_words
from sframegen.cli.shared.several import JOBS, all_of
from sframegen.cli.shared.write_options import verification
from sframegen.cli.trees.tree_files import Exclusions, Trees, find
from sframegen.detached.companion import is_detached
from sframegen.elf.file import open_elf

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from linker.files.location import Location
    from linker.files.read_back import Reader
    from sframegen.cli.shared.output import Run
    from sframegen.cli.trees.tree_files import Name

    Decorated = TypeVar("Decorated", bound=Callable[..., object])
    Options = tuple[Callable[..., Any], ...]

T = TypeVar("T")

MAX_LIST = 16 << 20  # characters
BEFORE: Options = (
    click.argument("roots", metavar="ROOT...", nargs=-1, required=True, type=Directory()),
    click.option(
        "--exclude", "globs", metavar="GLOB", multiple=True, help="Leave out these files and directories. May be given again."
    ),
    click.option(
        "--exclude-from",
        "lists",
        metavar="FILE",
        multiple=True,
        type=click.Path(exists=True, dir_okay=False),
        help="Read GLOBs from this file, one per line. May be given again.",
    ),
)
AFTER: Options = (
    click.option("--fatal", is_flag=True, help="Exit 1 if a file is refused; by default only warn."),
    verification,
    PRESERVE_TIMESTAMPS,
    dry_run("Print the totals; change no file."),
    JOBS,
    verbose("Also print a line for each file."),
    QUIET,
    JSON_LIST,
)


def tree_options(*own: Callable[..., Any]) -> Callable[[Decorated], Decorated]:
    """The options of all commands for trees, with a command's own among them."""

    def decorate(command: Decorated) -> Decorated:
        for option in reversed([*BEFORE, *own, *AFTER]):
            command = option(command)
        return command

    return decorate


def exclusions_of(globs: Iterable[str], lists: Iterable[str]) -> Exclusions:
    """Raises UsageError if it is not a pattern."""
    try:
        return Exclusions([*globs, *(glob for file in lists for glob in _lines(file))])
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def each_file(
    roots: Sequence[str],
    left_out: Exclusions,
    work: Callable[[Location, list[Location]], T],
    jobs: int,
    *,
    verify: bool | Reader,
    lines: bool,
) -> Iterator[tuple[list[Name], T | Exception]]:
    """The names of each program and library below the roots, and what `work` returns for it or why it is refused.

    `work` is given the file by its first name, and its other names (hard links). `verify`, `lines`: as for `all_of`. Raises
    OSError where a root cannot be opened.
    """
    with Trees(roots) as trees:
        found = find(trees, left_out)
        for name, error in found.unreadable:
            yield [name], error
        names_of = {names[0].full: names for names in found.files}

        def work_on(path: str) -> T:
            with ExitStack() as held:
                file, *hard_links = [held.enter_context(trees.locate(name)) for name in names_of[path]]
                return work(file, hard_links)

        for path, outcome in all_of(tuple(names_of), work_on, jobs, verify=verify, lines=lines, apart=True):
            yield names_of[path], outcome


def _lines(file: str) -> Iterable[str]:
    """Without empty lines and those that begin with #. Raises ValueError if the file is too long."""
    with open(file, encoding="utf-8", errors="surrogateescape") as stream:  # noqa: PTH123 - a pipe, too, as of `<(command)`
        text = stream.read(MAX_LIST + 1)
    if len(text) > MAX_LIST:
        raise ValueError(f"{file}: a list of patterns has at most {MAX_LIST >> 20} MiB")
    return (line for line in text.split("\n") if line.strip() and not line.startswith("#"))


def with_sections(run: Run, directory: str) -> list[str]:
    """The programs and libraries below a directory that have an SFrame section. What cannot be read is refused. Raises OSError."""
    with Trees([directory]) as trees:
        found = find(trees, Exclusions(()))
    for name, error in found.unreadable:
        run.refuse(name.full, in_words(error, name.full))
    return [file for names in found.files if _may_have_section(file := names[0].full)]


def _may_have_section(file: str) -> bool:
    try:
        elf = open_elf(file)
        return bool(extents(elf)) and not is_detached(elf)
    except (FormatError, OSError):
        return True
