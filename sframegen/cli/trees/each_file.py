"""What the commands for whole trees share: which files are left out, and the work on each of the others."""

from __future__ import annotations

import os
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from linker.existing.in_place import sframe_extents
from sframegen.base.errors import FormatError
from sframegen.base.one_file import FaultError
from sframegen.base.text import count_of
from sframegen.cli.shared.command import Part, Value, options
from sframegen.cli.shared.common_options import JOBS, JSON_LIST, QUIET, verbose
from sframegen.cli.shared.output import Directory, Refused, in_words, note
from sframegen.cli.shared.packages_too import refuse_package
from sframegen.cli.shared.several import all_of
from sframegen.cli.shared.write_options import PRESERVE_TIMESTAMPS, VERIFICATION, dry_run
from sframegen.cli.trees.dpkg_checksums import Administration, Md5Sums, sum_after, sums_before
from sframegen.cli.trees.tree_files import Exclusions, Trees, find
from sframegen.detached.companion import is_detached
from sframegen.elf.file import open_elf, open_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from linker.files.location import Location
    from sframegen.cli.shared.command import Decorator
    from sframegen.cli.shared.common_options import How
    from sframegen.cli.shared.output import Run
    from sframegen.cli.trees.tree_files import Name

T = TypeVar("T")

MAX_LIST = 16 << 20  # characters


class Tree(NamedTuple):
    """Which files of its trees a command leaves out, whether a refused one is a finding, and what else is renewed."""

    globs: tuple[str, ...]
    lists: tuple[str, ...]  # files with more of them
    fatal: bool
    one_file_system: bool
    update_checksums: bool

    def exclusions(self) -> Exclusions:
        """Raises UsageError if it is not a pattern."""
        try:
            return Exclusions([*self.globs, *(glob for file in self.lists for glob in _lines(file))])
        except (ValueError, FormatError) as error:
            raise click.UsageError(str(error)) from error


part_of_tree = partial(click.option, cls=Part, value=Value("tree", Tree))
BEFORE = (
    click.argument("roots", metavar="ROOT...", nargs=-1, required=True, type=Directory()),
    part_of_tree(
        "--exclude", "globs", metavar="GLOB", multiple=True, help="Leave out these files and directories. May be repeated."
    ),
    part_of_tree(
        "--exclude-from",
        "lists",
        metavar="FILE",
        multiple=True,
        type=click.Path(exists=True, dir_okay=False),
        help="Read GLOBs from this file, one per line. May be repeated.",
    ),
    part_of_tree("--one-file-system", is_flag=True, help="Skip file systems mounted below a ROOT."),
    part_of_tree(
        "--update-checksums",
        is_flag=True,
        help="Also renew dpkg's checksums of the changed files (var/lib/dpkg/info/*.md5sums), which debsums compares.",
    ),
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
        is_summed = tree.update_checksums and not keywords["dry_run"]

        def work_on(path: str) -> tuple[T, Md5Sums | None]:
            with ExitStack() as held:
                file, *hard_links = [held.enter_context(trees.locate(name)) for name in names_of[path]]
                before = sums_before(file) if is_summed else None
                try:
                    result = work(file, hard_links)
                finally:
                    for location in (file, *hard_links):
                        _keep_times(location, found.times)
                return result, None if before is None else Md5Sums(before, sum_after(file))

        for name, error in found.unreadable:
            yield [name], _refused(run, name, error, tree, how)
        sums: dict[str, dict[str, Md5Sums]] = {root: {} for root in trees.roots if is_summed}
        try:
            for path, outcome in all_of(
                tuple(names_of), work_on, how.jobs, verify=verify, lines=how.verbose, writes=not keywords["dry_run"], apart=True
            ):
                names = names_of[path]
                if isinstance(outcome, Exception):
                    yield names, _refused(run, names[0], outcome, tree, how)
                    continue
                result, changed = outcome
                if changed is not None:
                    for name in names:
                        sums[name.root][name.path] = changed
                yield names, result
        finally:
            for root, of_files in sums.items():
                _renew(run, Administration(trees.roots[root], root), of_files, tree, how)


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


def _renew(run: Run, administration: Administration, sums: dict[str, Md5Sums], tree: Tree, how: How) -> None:
    counts = []
    for name, outcome in administration.renew(sums):
        if isinstance(outcome, Exception):
            _refused(run, name, outcome, tree, how)
        else:
            counts.append(outcome)
    if counts and not how.quiet:
        note(f"{count_of(sum(counts), 'checksum')} renewed in {count_of(len(counts), 'list')} of dpkg")


def _refused(run: Run, name: Name, error: Exception, tree: Tree, how: How) -> Refused:
    text = in_words(error, name.full)
    run.reports.append(refused := Refused(name.full, text))
    if tree.fatal or isinstance(error, FaultError):
        run.finding(text)
    elif not how.quiet:
        note(f"warning: {text}")
    return refused


def _lines(file: str) -> Iterable[str]:
    """Without empty lines and those that begin with #. Raises FormatError, and ValueError if the file is too long."""
    with open_text(file, MAX_LIST) as stream:
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
        return bool(sframe_extents(elf)) and not is_detached(elf)
    except (FormatError, OSError):
        return True
