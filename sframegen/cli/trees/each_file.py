"""The options of commands for directory trees, and the processing of each program and library in a tree."""

from __future__ import annotations

import os
from contextlib import ExitStack, suppress
from functools import partial

import click

from linker.existing.in_place import find_sframe_extents
from sframegen.base.errors import FormatError
from sframegen.base.one_file import DiedError, FaultError
from sframegen.base.quick_typing import TYPE_CHECKING, NamedTuple, TypeVar
from sframegen.cli.shared.command import CombinedValue, PartOption, combine_options
from sframegen.cli.shared.common_options import JOBS, JSON_LIST, QUIET, CommonOptions, verbose_option
from sframegen.cli.shared.file_kinds import refuse_package
from sframegen.cli.shared.many_files import attempt_files
from sframegen.cli.shared.output import RESOURCE_ERRORS, WRITE_ERRORS, Directory, Refused, Run, describe_error, note
from sframegen.cli.shared.write_options import VERIFICATION, dry_run_option
from sframegen.cli.trees.tree_files import Exclusions, Name, OpenTrees, find_linked_files
from sframegen.detached.detached_file import is_detached
from sframegen.elf.file import open_elf

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from linker.files.location import Location
    from sframegen.api.options import StrPath, WriteOptions
    from sframegen.cli.shared.command import Decorator

T = TypeVar("T")
SYSTEM_ERRORS = {*WRITE_ERRORS, *RESOURCE_ERRORS}


class TreeOptions(NamedTuple):
    """Values of the options for trees. `globs`: patterns of excluded files. `strict`: a refused file is a finding."""

    globs: tuple[str, ...] = ()
    strict: bool = False
    one_file_system: bool = False

    def exclusions(self) -> Exclusions:
        """Return the compiled patterns. Raises UsageError for an invalid pattern."""
        try:
            return Exclusions(self.globs)
        except ValueError as error:
            raise click.UsageError(str(error)) from error


part_of_tree = partial(click.option, cls=PartOption, value=CombinedValue("tree", TreeOptions))
LEADING_OPTIONS = (
    click.argument("roots", metavar="ROOT...", nargs=-1, required=True, type=Directory()),
    part_of_tree(
        "--exclude", "globs", metavar="GLOB", multiple=True, help="Leave out these files and directories. May be repeated."
    ),
    part_of_tree("--one-file-system", is_flag=True, help="Skip file systems mounted below a ROOT."),
)
TRAILING_OPTIONS = (
    part_of_tree("--strict", is_flag=True, help="Exit 1 if a file is refused; by default only warn."),
    VERIFICATION,
    dry_run_option("Print the totals; change no file."),
    JOBS,
    verbose_option("Also print a line for each file."),
    QUIET,
    JSON_LIST,
)


def tree_options(*own: Decorator) -> Decorator:
    """Return a decorator that adds the options of all commands for trees, with a command's own options in the middle."""
    return combine_options(*LEADING_OPTIONS, *own, *TRAILING_OPTIONS)


def run_tree_command(command: click.Command, files: tuple[str, ...], debug_file: StrPath | None = None, **values: object) -> None:
    """Run the command for trees in place of a command with -r. Raises BadParameter for an operand that is not a directory."""
    ctx = click.get_current_context()
    for path in files if debug_file is None else (*files, debug_file):
        Directory().convert(path, None, ctx)
    assert command.callback is not None
    command.callback(files, tree=TreeOptions(), **values)  # raises click's Exit, which also ends the command with -r


def process_trees(
    run: Run,
    roots: Sequence[str],
    work: Callable[[Location, list[Location]], T],
    *,
    tree: TreeOptions,
    write_options: WriteOptions,
    common: CommonOptions,
) -> Iterator[tuple[list[Name], T | Refused]]:
    """Yield the names of each program and library below the roots, with the result of `work`, or as Refused.

    `work` is called with the location of the file's first name, and those of its other names (hard links). A refusal has been
    printed and added to `run` when it is yielded. Raises OSError if a root cannot be opened.
    """
    exclusions = tree.exclusions()
    for root in roots:
        with run.working_on(root):
            refuse_package(root)
    writes = not write_options.dry_run
    with OpenTrees(roots) as trees:
        found = find_linked_files(trees, exclusions, one_file_system=tree.one_file_system)
        names_of = {names[0].full: names for names in found.files}

        def work_on(path: str) -> T:
            with ExitStack() as locations:
                file, *hard_links = [locations.enter_context(trees.locate(name)) for name in names_of[path]]
                try:
                    return work(file, hard_links)
                finally:
                    for location in (file, *hard_links):
                        _restore_directory_times(location, found.times)

        for name, error in found.unreadable:
            yield [name], _report_refusal(run, name, error, tree, common)
        settings = {"verify": write_options.verify and writes, "prints": common.verbose, "writes": writes}
        for path, outcome in attempt_files(tuple(names_of), work_on, common.jobs, forks=True, **settings):
            names = names_of[path]
            yield names, _report_refusal(run, names[0], outcome, tree, common) if isinstance(outcome, Exception) else outcome


def _restore_directory_times(location: Location, times: dict[tuple[int, int], tuple[int, int]]) -> None:
    """Set the directory of a file to the access and modification times it had before, if that is possible."""
    descriptor = location.open_parent()
    try:
        status = os.fstat(descriptor)
        if (before := times.get((status.st_dev, status.st_ino))) and before[1] != status.st_mtime_ns:
            with suppress(OSError):
                os.utime(descriptor, ns=before)
    finally:
        os.close(descriptor)


def _report_refusal(run: Run, name: Name, error: Exception, tree: TreeOptions, common: CommonOptions) -> Refused:
    text = describe_error(error, name.full)
    run.reports.append(refused := Refused(name.full, text))
    if tree.strict or isinstance(error, FaultError | DiedError | MemoryError) or getattr(error, "errno", None) in SYSTEM_ERRORS:
        run.report_finding(text)
    elif not common.quiet:
        note(f"warning: {text}")
    return refused


def find_files_with_sections(run: Run, directory: str) -> list[str]:
    """Return the files below a directory that have an SFrame section, and report unreadable ones as refused. Raises OSError."""
    with OpenTrees([directory]) as trees:
        found = find_linked_files(trees, Exclusions(()))
    for name, error in found.unreadable:
        run.report_refusal(name.full, describe_error(error, name.full))
    return [file for names in found.files if _may_have_section(file := names[0].full)]


def _may_have_section(file: str) -> bool:
    """Return True if a file has a section, or cannot be read: the check of the file then reports the reason."""
    try:
        elf = open_elf(file)
        return bool(find_sframe_extents(elf)) and not is_detached(elf)
    except (FormatError, OSError):
        return True
