"""An image in a directory: an OCI layout, rewritten in place or into a new directory."""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Self

from cfi.errors import FormatError, naming
from linker.files.location import Location, below, located, make_directory
from linker.files.rename_into_place import write_atomically
from linker.files.rights import Rights, Source
from linker.files.target import Target, Written
from sframegen.packages.images.documents import DIGEST
from sframegen.packages.images.oci_index import INDEX, Changes, Images, OciLayout, passed
from sframegen.packages.images.root_tree import Link
from sframegen.packages.images.unreferenced import unreferenced
from sframegen.packages.kinds import LAYOUT
from sframegen.packages.passing import Pass

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sframegen.packages.passing import Passed, Visit

    StrPath = str | os.PathLike[str]


class PassedLayout(NamedTuple):
    """Sizes of its blobs are in bytes; old ones that stay count."""

    passed: Passed
    written: Written
    size_before: int
    size: int


def pass_layout(path: StrPath, visit: Visit, output: StrPath | None, *, dry_run: bool, force: bool) -> PassedLayout:
    """Pass the images of an OCI layout through `visit`. `output`: a new directory, or None: in place. A location's is there, empty.

    In place, new blobs come first and the index last, at once: whoever reads the layout meanwhile finds the old images or the new
    ones. Old blobs stay, as other tools leave them, too, except those that sframegen made and nothing names any more. Raises as
    `pass_through` in kinds.py.
    """
    shown = os.fspath(path)
    with (
        naming(shown),
        LayoutFiles(shown) as files,
        files.index(dry_run=dry_run or output is not None) as target,
        Pass("OCI layout", files.total_size(), visit) as one,
    ):
        changes, size = Changes(), files.total_size()
        images = Images(one, files, force=force)
        OciLayout(images, changes).rewrite()
        changes.unneeded = unreferenced(files, changes, (INDEX,))
        result = passed(one, images, changes, force=force)
        if dry_run:
            return PassedLayout(result, Written(), size, size)
        if output is not None:
            if not isinstance(output, Location):
                make_directory(output)
            with LayoutFiles(output) as new:
                files.write_to(new, changes, target.source)
                return PassedLayout(result, Written(os.fspath(output)), size, new.total_size())
        if not changes.rewritten:
            return PassedLayout(result, Written(), size, size)
        for name, data in changes.new.items():
            files.add(name, data, target.source, Rights.PART)
        written = target.write(lambda file: _write(changes.rewritten[INDEX], file), lambda *_: None)
        for name in changes.own & changes.unneeded:
            files.remove(name)
        return PassedLayout(result, written._replace(output=shown), size, files.total_size())


class LayoutFiles:
    """The files of a directory that is held open; no symbolic link in it is followed."""

    def __init__(self, path: StrPath) -> None:
        self.path = os.fspath(path)
        with ExitStack() as looked_up:
            self._directory = located(path, looked_up).enter()
        self._held = ExitStack()
        self._held.callback(os.close, self._directory)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def __contains__(self, name: object) -> bool:
        with suppress(FileNotFoundError), below(self._directory, str(name), f"{self.path}/{name}") as location:
            return location.status() is not None
        return False

    def open(self, name: str) -> BinaryIO:
        try:
            with below(self._directory, name, f"{self.path}/{name}") as location:
                return os.fdopen(location.open(), "rb")
        except FileNotFoundError:
            raise FormatError(f"{name}: no such file in the image") from None

    def size(self, name: str) -> int:
        with self.open(name) as file:
            return os.fstat(file.fileno()).st_size

    def index(self, *, dry_run: bool) -> Target:
        """The index, locked unless it is only read."""
        location = self._held.enter_context(below(self._directory, INDEX, f"{self.path}/{INDEX}"))
        return Target(location, None, verify=False, dry_run=dry_run)

    def add(self, name: str, data: bytes | Path | BinaryIO | Link, like: Source, rights: Rights) -> None:
        """A new file, on the disk when this returns. `rights`: to the file `like`."""
        with below(self._directory, name, f"{self.path}/{name}") as location:
            write_atomically(location, lambda file: _write(data, file), source=like, rights=rights)

    def remove(self, name: str) -> None:
        with below(self._directory, name, f"{self.path}/{name}") as location:
            location.unlink()

    def write_to(self, new: LayoutFiles, changes: Changes, like: Source) -> None:
        """Everything to a new directory, with these changes. Raises OSError where there is something in it."""
        if new.names("."):
            raise OSError(errno.ENOTEMPTY, "a new layout needs a new directory", new.path)
        new.make("blobs")
        for name in [*self._blobs(), *changes.new]:
            new.make(name.rpartition("/")[0])
            if name in changes.new:
                new.add(name, changes.new[name], like, Rights.COPY)
            elif name not in changes.unneeded:
                with self.open(name) as blob:
                    new.add(name, blob, Source(blob.fileno(), os.fstat(blob.fileno())), Rights.COPY)
        for name in (LAYOUT, INDEX):
            with self.open(name) as file:
                own = Source(file.fileno(), os.fstat(file.fileno()))
                new.add(name, changes.rewritten.get(name, file), like if name in changes.rewritten else own, Rights.COPY)

    def files(self) -> Iterator[str]:
        """The names of all that belongs to the layout."""
        yield from (LAYOUT, INDEX)
        yield from self._blobs()

    def total_size(self) -> int:
        return sum(self.size(name) for name in self._blobs())

    def _blobs(self) -> Iterator[str]:
        """Names of the files that have a digest as their name."""
        for algorithm in sorted(self.names("blobs")):
            for name in sorted(self.names(f"blobs/{algorithm}")):
                if DIGEST.fullmatch(f"{algorithm}:{name}"):
                    yield f"blobs/{algorithm}/{name}"

    def names(self, directory: str) -> list[str]:
        with below(self._directory, f"{directory}/.", f"{self.path}/{directory}") as location:
            return location.names_beside()

    def make(self, directory: str) -> None:
        with below(self._directory, directory, f"{self.path}/{directory}") as location, suppress(FileExistsError):
            os.mkdir(location.name, dir_fd=location.directory)


def _write(data: bytes | Path | BinaryIO | Link, file: BinaryIO) -> None:
    assert not isinstance(data, Link), "only archives have links"
    if isinstance(data, bytes):
        file.write(data)
    elif isinstance(data, Path):
        with data.open("rb") as source:
            shutil.copyfileobj(source, file)
    else:
        shutil.copyfileobj(data, file)
    file.flush()
    os.fsync(file.fileno())
