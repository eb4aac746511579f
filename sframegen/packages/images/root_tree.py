"""The files that a container sees: layers applied in their order, in memory, names only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cfi.errors import FormatError
from sframegen.elf.text import printable, shortened

if TYPE_CHECKING:
    from collections.abc import Iterator
    from tarfile import TarInfo

    from sframegen.packages.tar_entries import TarEntry

WHITEOUT = ".wh."  # before a name: that name of a lower layer is gone
OPAQUE = ".wh..wh..opq"  # all names that lower layers have in this directory are gone
OF_AUFS = ".wh..wh."  # before names of AUFS' own, not files of the image
MAX_LINKS = 40  # symbolic links in one path, as Linux has it
MAX_PATH = 4096  # characters, as Linux has it
MAX_DEPTH = 256  # directories in one path


@dataclass(slots=True, eq=False)
class Link:
    """A symbolic link."""

    target: str


@dataclass(slots=True, eq=False)
class Inode:
    """A file of any other kind, of which hard links are further names."""

    layer: int
    number: int  # of its entry in the layer
    entry: TarEntry | None  # if it is a linked ELF file


@dataclass(slots=True, eq=False)
class ImageDirectory:
    entry: TarEntry | None = None  # its own; None where only names below it are given
    names: dict[str, ImageDirectory | Link | Inode] = field(default_factory=dict)
    layer: int = -1  # of which `fresh` has the names
    fresh: set[str] = field(default_factory=set)

    def touch(self, name: str, layer: int) -> None:
        """Remember that the layer has this name."""
        if self.layer != layer:
            self.layer, self.fresh = layer, set()
        self.fresh.add(name)

    def is_fresh(self, name: str, layer: int) -> bool:
        return self.layer == layer and name in self.fresh


class RootTree:
    """The root directory of the image, as the layers up to now make it.

    Names are looked up as tools do that unpack layers: symbolic links in the way to a name are followed within the image, and
    the name itself is not.
    """

    def __init__(self) -> None:
        self.root = ImageDirectory()

    def __contains__(self, path: object) -> bool:
        """True if the image has a file at this path, in which no directory is a symbolic link."""
        return self.at(str(path)) is not None

    def at(self, path: str) -> ImageDirectory | Link | Inode | None:
        """What is at this path, in which no directory is a symbolic link."""
        here: ImageDirectory | Link | Inode | None = self.root
        for name in path.split("/"):
            here = here.names.get(name) if isinstance(here, ImageDirectory) else None
        return here

    def __len__(self) -> int:
        """The number of its files, directories and links."""
        return sum(1 for _ in self._walk())

    def apply(self, entry: TarEntry, layer: int, number: int, *, is_elf: bool) -> None:
        """The next entry of a layer. Raises FormatError where tools would disagree on it, or could not unpack it."""
        info = entry.info
        *parents, name = _parts(info.name) or [""]
        if not name:
            if not info.isdir():
                raise _error(info, "is the root directory, and no directory")
            self.root.entry = entry
            return
        if any(part.startswith(OF_AUFS) for part in parents) or (name.startswith(OF_AUFS) and name != OPAQUE):
            return
        directory = self._directory(parents, layer, info)
        if name == OPAQUE:
            _keep_fresh(directory, layer)
        elif name.startswith(WHITEOUT):
            _remove(directory, name.removeprefix(WHITEOUT), layer, info)
        else:
            self._place(directory, name, entry, layer, number, is_elf=is_elf)

    def elf_files(self) -> dict[Inode, list[str]]:
        """The paths of each linked ELF file, sorted; files in the order of their layers and entries."""
        found: dict[Inode, list[str]] = {}
        for path, node in self._walk():
            if isinstance(node, Inode) and node.entry is not None:
                found.setdefault(node, []).append(path)
        return {inode: sorted(found[inode]) for inode in sorted(found, key=lambda inode: (inode.layer, inode.number))}

    def directories(self, path: str) -> Iterator[tuple[str, TarEntry]]:
        """The directories on the way to a path of `elf_files`, from the root on, that have an entry of their own."""
        directory, at = self.root, ""
        for name in path.split("/")[:-1]:
            below = directory.names[name]
            assert isinstance(below, ImageDirectory)
            directory, at = below, f"{at}/{name}" if at else name
            if directory.entry is not None:
                yield at, directory.entry

    def _place(self, directory: ImageDirectory, name: str, entry: TarEntry, layer: int, number: int, *, is_elf: bool) -> None:
        info = entry.info
        there = directory.names.get(name)
        directory.touch(name, layer)
        if info.isdir():
            if isinstance(there, ImageDirectory):
                there.entry = entry
            else:
                directory.names[name] = ImageDirectory(entry)
        elif info.issym():
            directory.names[name] = Link(_checked(info.linkname, info))
        elif info.islnk():
            directory.names[name] = self._linked(info)
        else:
            directory.names[name] = Inode(layer, number, entry if is_elf else None)

    def _linked(self, info: TarInfo) -> Link | Inode:
        *parents, name = _parts(info.linkname) or [""]
        node = self._directory(parents, None, info).names.get(name)
        if node is None or isinstance(node, ImageDirectory):
            raise _error(info, f"is a hard link to {_shown(info.linkname)}, which is not a file of the image")
        return node

    def _directory(self, names: list[str], layer: int | None, info: TarInfo) -> ImageDirectory:
        """The directory at a path, made where there is none; links stay in the image. `layer`: that has a name in it."""
        way, waiting, links = [self.root], names[::-1], 0
        while waiting:
            name = waiting.pop()
            if name == "..":  # in the target of a link
                if len(way) > 1:
                    way.pop()
                continue
            here = way[-1]
            node = here.names.get(name)
            if node is None:
                node = here.names[name] = ImageDirectory()
            if isinstance(node, Link):
                links += 1
                if links > MAX_LINKS:
                    raise _error(info, "has too many symbolic links in its way")
                if node.target.startswith("/"):
                    del way[1:]
                waiting += [part for part in node.target.split("/") if part not in ("", ".")][::-1]
                continue
            if not isinstance(node, ImageDirectory):
                raise _error(info, f"is below {_shown(name)}, which is not a directory")
            if layer is not None:
                here.touch(name, layer)
            way.append(node)
            if len(way) > MAX_DEPTH:
                raise _error(info, "is in too many directories")
        return way[-1]

    def _walk(self) -> Iterator[tuple[str, ImageDirectory | Link | Inode]]:
        waiting = [("", self.root)]
        while waiting:
            at, directory = waiting.pop()
            for name, node in directory.names.items():
                yield f"{at}{name}", node
                if isinstance(node, ImageDirectory):
                    waiting.append((f"{at}{name}/", node))


def path_of(entry: TarEntry) -> str:
    """The path that its name means, from the root of the image."""
    return "/".join(_parts(entry.info.name))


def _keep_fresh(directory: ImageDirectory, layer: int) -> None:
    """An opaque directory: what is in it, and in directories below it, is only what this layer has."""
    waiting = [directory]
    while waiting:
        here = waiting.pop()
        here.names = {name: node for name, node in here.names.items() if here.is_fresh(name, layer)}
        waiting += [node for node in here.names.values() if isinstance(node, ImageDirectory)]


def _remove(directory: ImageDirectory, name: str, layer: int, info: TarInfo) -> None:
    if name in ("", ".", ".."):
        raise _error(info, "removes no name")
    if directory.is_fresh(name, layer):
        raise _error(info, "removes what the same layer has: tools disagree on what is left")
    directory.names.pop(name, None)


def _parts(path: str) -> list[str]:
    """The names in an entry's path, which begins at the root with or without a slash."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise FormatError(f"the name {_shown(path)} leads out of its directory")
    if len(path) > MAX_PATH:
        raise FormatError(f"the name {_shown(path)} is too long")
    return parts


def _checked(target: str, info: TarInfo) -> str:
    if len(target) > MAX_PATH:
        raise _error(info, "is a symbolic link with too long a target")
    return target


def _error(info: TarInfo, why: str) -> FormatError:
    return FormatError(f"{_shown(info.name)} {why}")


def _shown(text: str) -> str:
    return shortened(printable(text))
