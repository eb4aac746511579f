"""What the commands for whole trees share: which files are left out, and the work on each of the others."""

from __future__ import annotations

import os
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from linker.existing.find_section import extents
from sframegen.base.errors import FormatError
from sframegen.base.one_file import FaultError
from sframegen.cli.shared.command import Part, Value, options
from sframegen.cli.shared.common_options import JOBS, JSON_LIST, QUIET, verbose
from sframegen.cli.shared.output import Directory, Refused, in_words, note
from sframegen.cli.shared.packages_too import refuse_package
from sframegen.cli.shared.several import all_of
from sframegen.cli.shared.write_options import PRESERVE_TIMESTAMPS, VERIFICATION, dry_run
from sframegen.cli.trees.tree_files import Exclusions, Trees, find
from sframegen.detached.companion import is_detached
from sframegen.elf.file import open_elf

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from linker.files.location import Location
    from sframegen.cli.shared.command import Decorator
    from sframegen.cli.shared.common_options import How
    from sframegen.cli.shared.output import Run
    from sframegen.cli.trees.tree_files import Name

T = TypeVar("T")


class Tree(NamedTuple):
    """Which files of its trees a command leaves out, and whether a refused one is a finding."""

    globs: tuple[str, ...]
    fatal: bool
    one_file_system: bool

    def exclusions(self) -> Exclusions:
        """Raises UsageError if it is not a pattern."""
        try:
            return Exclusions(self.globs)
        except ValueError as error:
            raise click.UsageError(str(error)) from error


part_of_tree = partial(click.option, cls=Part, value=Value("tree", Tree))
BEFORE = (
    click.argument("roots", metavar="ROOT...", nargs=-1, required=True, type=Directory()),
    part_of_tree(
        "--exclude", "globs", metavar="GLOB", multiple=True, help="Leave out these files and directories. May be repeated."
    ),
    part_of_tree("--one-file-system", is_flag=True, help="Skip file systems mounted below a ROOT."),
)
AFTER = (
    part_of_tree("--fatal", is_flag=True, help="Exit 1 if a file is refused; by default only warn."),
    VERIFICATION,
    PRESERVE_TIMESTAMPS,
    dry_run("Print the totals; change no file."),
    JOBS,
    verbose("Also print a line for each file."),
    QUIET,
    JSON_LIST,
)


def tree_options(*own: Decorator) -> Decorator:
    """The options of all commands for trees, with a command's own among them."""
    return options(*BEFORE, *own, *AFTER)


def each_file(
    run: Run,
    roots: Sequence[str],
    work: Callable[[Location, list[Location]], T],
    *,
    tree: Tree,
    keywords: dict[str, Any],
    how: How,
) -> Iterator[tuple[list[Name], T | Refused]]:
    """The names of each program and library below the roots, and what `work` returns for it, or its refusal.

    `work` is given the file by its first name, and its other names (hard links). A refusal has been printed, and `run` has it.
    Raises OSError where a root cannot be opened.
    """
    left_out = tree.exclusions()
    for root in roots:
        with run.file(root):
            refuse_package(root)
    verify = not keywords["dry_run"] and keywords["verify"]
    with Trees(roots) as trees:
        found = find(trees, left_out, one_file_system=tree.one_file_system)
        names_of = {names[0].full: names for names in found.files}

        def work_on(path: str) -> T:
            with ExitStack() as opened:
                file, *hard_links = [opened.enter_context(trees.locate(name)) for name in names_of[path]]
                try:
                    return work(file, hard_links)
                finally:
                    for location in (file, *hard_links):
                        _keep_times(location, found.times)

        for name, error in found.unreadable:
            yield [name], _refused(run, name, error, tree, how)
        for path, outcome in all_of(
            tuple(names_of), work_on, how.jobs, verify=verify, lines=how.verbose, writes=not keywords["dry_run"], apart=True
        ):
            names = names_of[path]
            yield names, _refused(run, names[0], outcome, tree, how) if isinstance(outcome, Exception) else outcome


def _keep_times(location: Location, times: dict[tuple[int, int], tuple[int, int]]) -> None:
    """Give the directory of a file the times that it had before files in it were replaced, if this user may."""
    descriptor = location.open_directory()
    try:
        status = os.fstat(descriptor)
        before = times.get((status.st_dev, status.st_ino))
        if before is not None and before[1] != status.st_mtime_ns:
            with suppress(PermissionError):
                os.utime(descriptor, ns=before)
    finally:
        os.close(descriptor)


def _refused(run: Run, name: Name, error: Exception, tree: Tree, how: How) -> Refused:
    text = in_words(error, name.full)
    run.reports.append(refused := Refused(name.full, text))
    if tree.fatal or isinstance(error, FaultError):
        run.finding(text)
    elif not how.quiet:
        note(f"warning: {text}")
    return refused


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
