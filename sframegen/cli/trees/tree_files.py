"""Finds the programs and libraries below directories, each with all its names, except those that patterns exclude."""

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
    from collections.abc import Iterable, Iterator


# Of a pattern: any directories, anything, anything but a slash, one character, one of several, itself.
TOKEN = re.compile(
    r"(?P<within>(?:\A|(?<=/))\*\*/)|(?P<all>\*\*)|(?P<part>\*)|(?P<one>\?)|\[(?P<no>!?)(?P<of>\]?[^\]]*)\]|.", re.DOTALL
)
FIXED = {"within": "(?:.*/)?", "all": ".*", "part": "[^/]*", "one": "[^/]"}
OF = re.compile(r"(.)-(.)|(.)", re.DOTALL)


class Name(NamedTuple):
    """A file's name: the directory on the command line (`root`), and the path from there."""

    root: str
    path: str

    @property
    def full(self) -> str:
        return os.path.join(self.root, self.path)  # noqa: PTH118 - here and below: names need not be what pathlib makes of them


class Found(NamedTuple):
    files: list[list[Name]]  # the names of each, sorted, as are the files by the first
    unreadable: list[tuple[Name, Exception]]  # files and directories
    times: dict[tuple[int, int], tuple[int, int]]  # of the directories that have them, by device and inode: access, modification


class Exclusions:
    """Patterns of excluded paths below a root. A directory that matches is excluded with all below it.

    A pattern without a slash is one of names, at any depth; with one it is of the whole path, from the root on. One that ends with
    a slash fits directories only. `*`, `?` and `[...]` stand for no slash, `**` for anything.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        """Compile the patterns. Raises ValueError for an invalid one."""
        self._any: dict[bool, re.Pattern[str]] = {}
        given = list(patterns)
        for is_directory in (False, True):
            fitting = [_expression(one) for one in given if is_directory or not one.endswith("/")]
            self._any[is_directory] = re.compile("|".join(fitting or ["(?!)"]), re.DOTALL)

    def fit(self, path: str, *, is_directory: bool) -> bool:
        return self._any[is_directory].fullmatch("/" + path) is not None


def _expression(pattern: str) -> str:
    """Return the regular expression of a pattern, for paths that begin with a slash."""
    bare = pattern.rstrip("/")
    if not bare:
        raise ValueError(f"not a GLOB: {pattern!r}")
    bare = bare.removeprefix("/") if "/" in bare else "**/" + bare
    try:
        expression = "/" + TOKEN.sub(_part, bare)
        re.compile(expression)
    except re.error as error:
        raise ValueError(f"not a GLOB: {pattern!r}: {error}") from error
    return expression


def _part(token: re.Match[str]) -> str:
    if token["of"] is not None:
        members = OF.sub(lambda m: re.escape(m[3]) if m[3] else f"{re.escape(m[1])}-{re.escape(m[2])}", token["of"])
        return f"(?!/)[{'^' if token['no'] else ''}{members}]"
    return FIXED.get(token.lastgroup or "") or re.escape(token[0])


class Trees(ExitStack):
    """The given directories, opened once: names below them are looked up from there, without symbolic links."""

    def __init__(self, roots: Iterable[str]) -> None:
        """Open the directories. Raises OSError."""
        super().__init__()
        self.roots = {}
        for root in roots:
            with locate(root) as location:
                self.roots[root] = self.enter_context(locate_below(location.directory, f"{location.name}/.", root)).directory

    def locate(self, name: Name) -> Location:
        """Return the location of a file. Raises OSError."""
        return locate_below(self.roots[name.root], name.path, name.full)

    def open_parent(self, name: Name) -> int:
        """Return a descriptor of a directory. Raises OSError."""
        with locate_below(self.roots[name.root], os.path.join(name.path, "."), name.full) as location:  # noqa: PTH118
            return location.open_parent()


def find(trees: Trees, exclusions: Exclusions, *, one_file_system: bool = False) -> Found:
    """Return the linked ELF files for ABIs of SFrame, but no symbolic links. A file with any excluded name is left out.

    `one_file_system`: what is mounted below a root is left out, too.
    """
    names: dict[tuple[int, int], list[Name]] = {}
    left_out: set[tuple[int, int]] = set()
    unreadable: list[tuple[Name, Exception]] = []
    seen: set[tuple[int, int, str]] = set()  # one directory may be below another
    times: dict[tuple[int, int], tuple[int, int]] = {}
    devices = {root: os.fstat(descriptor).st_dev for root, descriptor in trees.roots.items()} if one_file_system else {}
    for name, excluded, directory in _regular_files(trees, exclusions, unreadable, devices):
        try:
            above = os.fstat(directory)
            place = above.st_dev, above.st_ino, os.path.basename(name.path)  # noqa: PTH119
            if place in seen:
                continue
            seen.add(place)
            status = os.lstat(place[2], dir_fd=directory)
            key = status.st_dev, status.st_ino
            if status.st_dev != devices.get(name.root, status.st_dev):
                continue
            if excluded and status.st_nlink > 1:
                left_out.add(key)
            elif not excluded and is_linked(read_beginning(place[2], name.full, EHDR_SIZE, os.O_NOFOLLOW, directory=directory)):
                names.setdefault(key, []).append(name)
                times[place[:2]] = above.st_atime_ns, above.st_mtime_ns
        except (FormatError, OSError) as error:
            if not excluded:
                unreadable.append((name, error))
    order = {root: number for number, root in enumerate(trees.roots)}
    files = [sorted(found, key=lambda name: (order[name.root], name.path)) for key, found in names.items() if key not in left_out]
    return Found(sorted(files, key=lambda found: (order[found[0].root], found[0].path)), unreadable, times)


def _regular_files(
    trees: Trees, exclusions: Exclusions, unreadable: list[tuple[Name, Exception]], devices: dict[str, int]
) -> Iterator[tuple[Name, bool, int]]:
    """Yield (name, True if excluded, descriptor of its directory) for each regular file. Deep trees need no recursion.

    `devices`: by root, the only device whose files are wanted.
    """
    waiting = [(Name(root, ""), False) for root in reversed(trees.roots)]
    while waiting:
        directory, out = waiting.pop()
        try:
            descriptor = trees.open_parent(directory)
            try:
                device = os.fstat(descriptor).st_dev
                if device != devices.get(directory.root, device):
                    continue
                with os.scandir(descriptor) as entries:
                    for entry in entries:
                        name = Name(directory.root, os.path.join(directory.path, entry.name))  # noqa: PTH118
                        is_directory = entry.is_dir(follow_symlinks=False)
                        excluded = out or exclusions.fit(name.path, is_directory=is_directory)
                        if is_directory:
                            waiting.append((name, excluded))
                        elif entry.is_file(follow_symlinks=False):
                            yield name, excluded, descriptor
            finally:
                os.close(descriptor)
        except OSError as error:
            if not out:
                unreadable.append((directory, error))
