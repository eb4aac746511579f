"""Finds the programs and libraries below directories, each once with all its hard links, except those that patterns exclude."""

from __future__ import annotations

import os
import re
from contextlib import ExitStack

from linker.files.location import Location, locate, locate_below
from sframegen.base.errors import FormatError
from sframegen.base.quick_typing import TYPE_CHECKING, NamedTuple
from sframegen.elf.file import read_beginning
from sframegen.elf.records import EHDR_SIZE
from sframegen.format.abi import is_linked

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

# The tokens of a GLOB: `**/` (any directories), `**` (anything), `*` (anything without a slash), `?` (one character), a set such as
# `[a-z]` or `[!a-z]` (one of its members, or none of them), and a character that stands for itself.
GLOB_TOKEN = re.compile(
    r"(?P<directories>(?:\A|(?<=/))\*\*/)|(?P<anything>\*\*)|(?P<characters>\*)|(?P<character>\?)"
    r"|\[(?P<negation>!?)(?P<members>\]?[^\]]*)\]|.",
    re.DOTALL,
)
WILDCARD_PATTERNS = {"directories": "(?:.*/)?", "anything": ".*", "characters": "[^/]*", "character": "[^/]"}
CLASS_MEMBER = re.compile(r"(.)-(.)|(.)", re.DOTALL)  # of a set: a range of characters, or one character


class Name(NamedTuple):
    """A file's name: the directory on the command line (`root`), and the path from there."""

    root: str
    path: str

    @property
    def full(self) -> str:
        return os.path.join(self.root, self.path)  # noqa: PTH118 - here and below: names need not be what pathlib makes of them


class FoundFiles(NamedTuple):
    files: list[list[Name]]  # the sorted names of each file; the files are sorted by their first names
    unreadable: list[tuple[Name, Exception]]  # files and directories
    times: dict[tuple[int, int], tuple[int, int]]  # (device, inode) of a directory -> its access and modification times


class Exclusions:
    """Patterns of excluded paths below a root. A directory that matches is excluded with everything below it.

    A pattern without a slash matches names at any depth; a pattern with one matches whole paths from the root on. A pattern that
    ends with a slash matches only directories. `*`, `?` and `[...]` do not match a slash, `**` matches anything.
    """

    def __init__(self, globs: Sequence[str]) -> None:
        """Compile the patterns. Raises ValueError for an invalid pattern."""
        self._regexes: dict[bool, re.Pattern[str]] = {}  # by is_directory: for files, and for directories
        for is_directory in (False, True):
            regexes = [_glob_to_regex(glob) for glob in globs if is_directory or not glob.endswith("/")]
            self._regexes[is_directory] = re.compile("|".join(regexes or ["(?!)"]), re.DOTALL)  # (?!) matches nothing

    def match(self, path: str, *, is_directory: bool) -> bool:
        return self._regexes[is_directory].fullmatch("/" + path) is not None


def _glob_to_regex(pattern: str) -> str:
    """Return the regular expression of a GLOB, for paths that begin with a slash. Raises ValueError for an invalid one."""
    stripped = pattern.rstrip("/")
    if not stripped:
        raise ValueError(f"not a GLOB: {pattern!r}")
    glob = stripped.removeprefix("/") if "/" in stripped else "**/" + stripped
    try:
        regex = "/" + GLOB_TOKEN.sub(_token_to_regex, glob)
        re.compile(regex)
    except re.error as error:
        raise ValueError(f"not a GLOB: {pattern!r}: {error}") from error
    return regex


def _token_to_regex(token: re.Match[str]) -> str:
    if token["members"] is not None:
        members = CLASS_MEMBER.sub(lambda m: re.escape(m[3]) if m[3] else f"{re.escape(m[1])}-{re.escape(m[2])}", token["members"])
        return f"(?!/)[{'^' if token['negation'] else ''}{members}]"
    return WILDCARD_PATTERNS.get(token.lastgroup or "") or re.escape(token[0])


class OpenTrees(ExitStack):
    """Directories that are opened once. Names below them are looked up from their descriptors, without following symbolic links."""

    def __init__(self, roots: Iterable[str]) -> None:
        """Open the directories. Raises OSError."""
        super().__init__()
        self.roots = {}
        for root in roots:
            with locate(root) as location:  # with "/.", the Location's open directory is the root itself
                self.roots[root] = self.enter_context(locate_below(location.directory, f"{location.name}/.", root)).directory

    def locate(self, name: Name) -> Location:
        """Return the location of a file. Raises OSError."""
        return locate_below(self.roots[name.root], name.path, name.full)

    def open_directory(self, name: Name) -> int:
        """Return a descriptor of the directory with that name, to list it. Raises OSError."""
        with locate_below(self.roots[name.root], os.path.join(name.path, "."), name.full) as location:  # noqa: PTH118
            return location.open_parent()


def find_linked_files(trees: OpenTrees, exclusions: Exclusions, *, one_file_system: bool = False) -> FoundFiles:
    """Return the linked ELF files for ABIs of SFrame, without symbolic links. A file is excluded if any of its names is.

    `one_file_system`: file systems that are mounted below a root are left out, too.
    """
    names: dict[tuple[int, int], list[Name]] = {}  # by device and inode
    excluded_files: set[tuple[int, int]] = set()
    unreadable: list[tuple[Name, Exception]] = []
    visited: set[tuple[int, int, str]] = set()  # directory entries: one root may be below another
    times: dict[tuple[int, int], tuple[int, int]] = {}
    devices = {root: os.fstat(descriptor).st_dev for root, descriptor in trees.roots.items()} if one_file_system else {}
    for name, excluded, directory in _walk_regular_files(trees, exclusions, unreadable, devices):
        try:
            parent, base_name = os.fstat(directory), os.path.basename(name.path)  # noqa: PTH119
            entry = parent.st_dev, parent.st_ino, base_name
            if entry in visited:
                continue
            visited.add(entry)
            status = os.lstat(base_name, dir_fd=directory)
            inode = status.st_dev, status.st_ino
            if status.st_dev != devices.get(name.root, status.st_dev):
                continue
            if excluded and status.st_nlink > 1:
                excluded_files.add(inode)
            elif not excluded and is_linked(read_beginning(base_name, name.full, EHDR_SIZE, os.O_NOFOLLOW, directory=directory)):
                names.setdefault(inode, []).append(name)
                times[parent.st_dev, parent.st_ino] = parent.st_atime_ns, parent.st_mtime_ns
        except (FormatError, OSError) as error:
            if not excluded:
                unreadable.append((name, error))
    order = {root: number for number, root in enumerate(trees.roots)}
    included = [links for inode, links in names.items() if inode not in excluded_files]
    files = [sorted(links, key=lambda name: (order[name.root], name.path)) for links in included]
    return FoundFiles(sorted(files, key=lambda links: (order[links[0].root], links[0].path)), unreadable, times)


def _walk_regular_files(
    trees: OpenTrees, exclusions: Exclusions, unreadable: list[tuple[Name, Exception]], devices: dict[str, int]
) -> Iterator[tuple[Name, bool, int]]:
    """Yield (name, True if excluded, descriptor of its directory) for each regular file, without recursion, as trees may be deep.

    `devices`: by root, the only device whose files to yield.
    """
    waiting = [(Name(root, ""), False) for root in reversed(trees.roots)]
    while waiting:
        directory, directory_excluded = waiting.pop()
        try:
            descriptor = trees.open_directory(directory)
            try:
                device = os.fstat(descriptor).st_dev
                if device != devices.get(directory.root, device):
                    continue
                with os.scandir(descriptor) as entries:
                    for entry in entries:
                        name = Name(directory.root, os.path.join(directory.path, entry.name))  # noqa: PTH118
                        is_directory = entry.is_dir(follow_symlinks=False)
                        excluded = directory_excluded or exclusions.match(name.path, is_directory=is_directory)
                        if is_directory:
                            waiting.append((name, excluded))
                        elif entry.is_file(follow_symlinks=False):
                            yield name, excluded, descriptor
            finally:
                os.close(descriptor)
        except OSError as error:
            if not directory_excluded:
                unreadable.append((directory, error))
