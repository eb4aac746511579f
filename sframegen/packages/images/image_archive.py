"""An image in one tar archive: an OCI layout, what `docker save` writes, or both."""

from __future__ import annotations

import io
import posixpath
import tarfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from cfi.errors import FormatError
from sframegen.packages.compression import compressed, compression_at, decompressed
from sframegen.packages.images.docker_manifest import MANIFEST, REPOSITORIES, rewrite_manifest
from sframegen.packages.images.documents import shown_value
from sframegen.packages.images.oci_index import INDEX, Changes, Images, OciLayout, passed
from sframegen.packages.images.root_tree import Link
from sframegen.packages.images.unreferenced import unreferenced
from sframegen.packages.kinds import LAYOUT
from sframegen.packages.passing import CHUNK, Pass, Timed, file_size, part_of, pieces
from sframegen.packages.tar_entries import BLOCK, Admission, Rules, entries

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sframegen.packages.compression import Compression
    from sframegen.packages.passing import Passed, Visit, Writable
    from sframegen.packages.tar_entries import TarEntry

MAX_LINKS = 40  # one leading to the next
RULES = Rules(devices=True, links_up=True, repeated=True)  # those of images are checked when it is known to be one
RECORD = 20 * BLOCK  # to a multiple of which most tools fill an archive up


class ArchivePart(NamedTuple):
    """Where an entry is in the archive, with its headers and padding; bytes."""

    path: str
    entry: TarEntry
    start: int
    end: int


def pass_image(source: BinaryIO, visit: Visit, target: BinaryIO | None, *, force: bool) -> Passed:
    """A tar archive with the files of an image. `pass_through` in kinds.py has the contract."""
    compression = compression_at(source)
    with Pass("image archive", file_size(source), visit) as one, _plain(source, compression, one) as plain:
        files = ArchiveFiles(plain, one)
        files.check()
        images, changes = Images(one, files, force=force), Changes()
        if LAYOUT in files and INDEX in files:
            OciLayout(images, changes).rewrite()
        if MANIFEST in files:
            rewrite_manifest(images, changes)
        changes.unneeded = unreferenced(files, changes, (INDEX, MANIFEST, REPOSITORIES))
        result = passed(one, images, changes, force=force)
        if target is not None and changes.rewritten:
            with compressed(target, compression) as out:
                files.write(changes, Timed(out, one))
        return result._replace(seconds_writing=one.seconds_writing)


@contextmanager
def _plain(source: BinaryIO, compression: Compression | None, one: Pass) -> Iterator[BinaryIO]:
    """The archive without compression, in which reading can begin anywhere, within the limits of the pass."""
    if compression is None:
        yield source
        return
    with one.free_file("unpacked").open("w+b") as plain:
        unpacked = decompressed(source, compression)
        while piece := unpacked.read(CHUNK):
            one.regular("the archive", len(piece))
            plain.write(piece)
        plain.seek(0)
        yield plain


class ArchiveFiles:
    """The files of a tar archive, where they are in it."""

    def __init__(self, source: BinaryIO, one: Pass) -> None:
        """Raises FormatError if it is not a tar archive."""
        self._source = source
        self._parts: dict[str, ArchivePart] = {}
        self._order: list[ArchivePart] = []
        self._repeated: list[str] = []
        end = 0
        admit = Admission(one, RULES)
        for entry in entries(source):
            start, end = end, entry.info.offset_data + entry.stored + -entry.stored % BLOCK
            part = ArchivePart(admit(entry), entry, start, end)
            self._order.append(part)
            if not entry.info.isdir() and self._parts.setdefault(part.path, part) is not part:
                self._repeated.append(part.path)
            source.seek(end)
        self._size = file_size(source)
        if end > self._size:
            raise FormatError(f"{self._order[-1].path}: cut off: {end - self._size:,} bytes are missing")

    def check(self) -> None:
        """Raises FormatError for two files of one name, and for devices and FIFOs, which no image has beside its layers."""
        for path in self._repeated:
            raise FormatError(f"{path}: a second file of this name")
        for part in self._order:
            if part.entry.info.isdev():
                raise FormatError(f"{part.path}: a device or FIFO, which has no business in the archive of an image")

    def __contains__(self, name: object) -> bool:
        return name in self._parts

    def open(self, name: str) -> BinaryIO:
        entry = self._found(name).entry
        return part_of(self._source, entry.info.offset_data, entry.info.size)

    def size(self, name: str) -> int:
        return self._found(name).entry.info.size

    def write(self, changes: Changes, target: Writable) -> None:
        """The archive with these changes: new files before the first document that is rewritten, all others in their places."""
        links = (part for part in self._order if part.entry.info.issym() or part.entry.info.islnk())
        led_to = {_target(part) for part in links if part.path not in changes.unneeded}
        left_out = changes.unneeded - led_to | changes.new.keys()
        out, is_added = _Counting(target), False
        for part in self._order:
            path, info = part.path, part.entry.info
            if path in changes.rewritten:
                for name in changes.new if not is_added else ():
                    _write_file(name, changes.new[name], info, out)
                is_added = True
                _write_file(path, changes.rewritten[path], info, out)
            elif path not in left_out:
                self._source.seek(part.start)
                for piece in pieces(self._source, part.end - part.start, path):
                    out.write(piece)
        end = self._order[-1].end
        out.write(bytes(min(2 * BLOCK, self._size - end)))  # an archive may end without these
        if self._size % RECORD == 0 and end < self._size:
            out.write(bytes(-out.written % RECORD))

    def _found(self, name: str) -> ArchivePart:
        """The regular file that a name leads to, within the archive. Raises FormatError."""
        path = name
        for _ in range(MAX_LINKS):
            part = self._parts.get(path)
            if part is None:
                break
            if part.entry.is_whole:
                return part
            if not (part.entry.info.issym() or part.entry.info.islnk()):
                raise FormatError(f"{shown_value(name)}: not a regular file")
            path = _target(part)
        raise FormatError(f"{shown_value(name)}: no such file in the image")


def _target(part: ArchivePart) -> str:
    """The path that a link leads to."""
    info = part.entry.info
    return posixpath.normpath(info.linkname if info.islnk() else posixpath.join(posixpath.dirname(part.path), info.linkname))


class _Counting:
    def __init__(self, target: Writable) -> None:
        self._target, self.written = target, 0

    def write(self, data: bytes) -> None:
        self._target.write(data)
        self.written += len(data)


def _write_file(name: str, data: bytes | Path | Link, like: tarfile.TarInfo, target: Writable) -> None:
    """A file with the owner, mode and time of another entry."""
    info = tarfile.TarInfo(name)
    info.mode, info.mtime = like.mode, int(like.mtime)
    info.uid, info.gid, info.uname, info.gname = like.uid, like.gid, like.uname, like.gname
    if isinstance(data, Link):
        info.type, info.linkname, data = tarfile.SYMTYPE, data.target, b""
    info.size = data.stat().st_size if isinstance(data, Path) else len(data)
    target.write(info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
    with data.open("rb") if isinstance(data, Path) else io.BytesIO(data) as file:
        for piece in pieces(file, info.size, name):
            target.write(piece)
    target.write(bytes(-info.size % BLOCK))
