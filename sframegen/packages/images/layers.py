"""The layers of an image: read with their digests verified, and the new one, which has changed files only."""

from __future__ import annotations

import hashlib
import tarfile
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, NamedTuple, Self

from cfi.errors import FormatError
from linker.files.rights import OF_CONTENT
from sframegen.elf.records import EHDR_SIZE
from sframegen.format.abi import is_linked
from sframegen.packages.compression import MAGIC_SIZE, compressed, compression_of, decompressed
from sframegen.packages.images.root_tree import path_of
from sframegen.packages.passing import CHUNK, HashedStream, Timed, pieces, skip
from sframegen.packages.tar_entries import ATTRIBUTES, BLOCK, TYPE_AT, attributes_of, entries, write_changed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from sframegen.packages.images.documents import ImageFiles
    from sframegen.packages.images.root_tree import Inode, RootTree
    from sframegen.packages.passing import Content, Pass, Readable
    from sframegen.packages.tar_entries import TarEntry

    See = Callable[[TarEntry, int, RootTree], object]  # an entry, the number of its layer, the tree without it

# Made again from the path, or of the old contents.
NOT_KEPT = {"path", "linkpath", "hdrcharset", *(f"{start}{name}" for start in ATTRIBUTES for name in OF_CONTENT)}
ZEROS = bytes(BLOCK)


class Layer(NamedTuple):
    """Where a layer is, and its digests."""

    file: str
    diff_id: str  # of the tar archive
    digest: str = ""  # of the file, which may be compressed; "" where it is not known
    size: int | None = None  # of the file

    @contextmanager
    def opened(self, files: ImageFiles) -> Iterator[VerifiedStream]:
        """The tar archive. What the block has not read is read at its end; raises FormatError where a digest is wrong."""
        with files.open(self.file) as file:
            if self.size not in (None, files.size(self.file)):
                raise FormatError(f"{self.file}: {files.size(self.file):,} bytes, expected {self.size:,}")
            compression = compression_of(file.read(MAGIC_SIZE))
            file.seek(0)
            stored = VerifiedStream(file, self.digest or self.diff_id)
            stream = VerifiedStream(decompressed(stored, compression), self.diff_id)
            yield stream
            stream.finish(self.file, "unpacked contents")
            if self.digest:
                stored.finish(self.file, "contents")


class VerifiedStream(HashedStream):
    """A stream, and the digest that it is to have."""

    def __init__(self, source: Readable, expected: str) -> None:
        """`expected`: the digest of all of it."""
        algorithm, _, self._expected = expected.partition(":")
        super().__init__(source, algorithm)

    def finish(self, name: str, what: str) -> None:
        while self.read(CHUNK):
            pass
        if self.hash.hexdigest() != self._expected:
            raise FormatError(f"{name}: its {what} have another digest")


def apply_layer(one: Pass, files: ImageFiles, layer: Layer, number: int, tree: RootTree, see: See) -> None:
    """Apply the layer of this number to the tree; `see` is called with each entry before. Raises FormatError."""
    with layer.opened(files) as stream:
        is_alone = True  # its header blocks say all of it: none of an earlier entry hold for it
        for at, entry in enumerate(entries(stream)):
            path = one.entry(entry.info.name.lstrip("/") or ".", len(entry.header) - BLOCK)  # names begin at the root of the image
            one.regular(path, entry.stored)
            is_alone = is_alone and entry.header[TYPE_AT : TYPE_AT + 1] != tarfile.XGLTYPE
            beginning = b"".join(pieces(stream, min(EHDR_SIZE, entry.stored), path))
            kept = entry if is_alone else entry._replace(header=b"")
            see(entry, number, tree)
            tree.apply(kept, number, at, is_elf=entry.is_whole and is_linked(beginning))
            skip(stream, entry.stored - len(beginning), path)
            _skip_padding(stream, -entry.stored % BLOCK)


def _skip_padding(stream: Readable, size: int) -> None:
    """After the last entry there may be none, as `umoci insert` 0.4 leaves it: no content is missing."""
    while size and (piece := stream.read(size)):
        size -= len(piece)


def visit_layer(one: Pass, files: ImageFiles, layer: Layer, wanted: dict[Inode, list[str]], name: str, new: NewLayer) -> None:
    """Visit these files of the layer, in the order of its entries; `new` gets those that change. `name`: of the image, or ""."""
    with layer.opened(files) as stream:
        for inode, paths in wanted.items():
            entry = inode.entry
            assert entry is not None
            path = f"{name}{paths[0]}"
            skip(stream, entry.info.offset_data - stream.at, path)
            beginning = b"".join(pieces(stream, EHDR_SIZE, path))
            content = one.visit(path, beginning, stream, entry.info.size)
            if content is None:
                raise FormatError(f"{path}: it was changed while it was read")
            if content.changed:
                new.add(inode, paths, content)


class NewLayer:
    """A block that writes a layer to a private file, with the first changed file."""

    def __init__(self, one: Pass, tree: RootTree, file: Path, beginning: bytes) -> None:
        """`beginning`: of the file of the last layer, whose compression it gets."""
        self.file = file
        self.diff_id = ""
        self.contents: dict[Inode, str] = {}  # SHA-256 of what each changed file has now
        self._pass, self._tree = one, tree
        self._compression = compression_of(beginning)
        self._hash = hashlib.sha256()
        self._directories: set[str] = set()
        self._held = ExitStack()

    def __enter__(self) -> Self:
        target = self._held.enter_context(self.file.open("wb"))
        self._target = Timed(self._held.enter_context(compressed(target, self._compression)), self._pass)
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def add(self, inode: Inode, paths: list[str], content: Content) -> None:
        """A changed file with the header that it had, and its other names."""
        entry = inode.entry
        assert entry is not None
        with content.file.open("rb") as file:
            self.contents[inode] = hashlib.file_digest(file, "sha256").hexdigest()
        own = path_of(entry) if path_of(entry) in paths else paths[0]
        self._lead_to(own)
        write_changed(_header(entry, own), content, self._write)
        for path in paths:
            if path != own:
                self._lead_to(path)
                self._write(_renamed(entry.info, path, own))

    def finish(self) -> str:
        """Return the digest of the tar archive."""
        self._write(2 * ZEROS)
        self._held.close()
        return f"sha256:{self._hash.hexdigest()}"

    def _lead_to(self, path: str) -> None:
        """The directories on the way: where tools unpack each layer alone, one without an entry gets another owner and mode."""
        for at, entry in self._tree.directories(path):
            if at not in self._directories:
                self._directories.add(at)
                self._write(_header(entry, at))

    def _write(self, data: bytes) -> None:
        self._hash.update(data)
        self._target.write(data)


def _header(entry: TarEntry, path: str) -> bytes:
    """The entry's header blocks; made again if the file has another path by now, or attributes that are of its old contents."""
    is_kept = entry.header and path_of(entry) == path and not attributes_of(entry) & {*OF_CONTENT}
    return entry.header if is_kept else _renamed(entry.info, path)


def _renamed(info: tarfile.TarInfo, path: str, link_to: str | None = None) -> bytes:
    """A header with the same owner, mode, time and attributes. `link_to`: the file of which `path` is another name."""
    other = tarfile.TarInfo(path)
    other.type, other.mode, other.mtime, other.size = info.type, info.mode, info.mtime, info.size
    other.uid, other.gid, other.uname, other.gname = info.uid, info.gid, info.uname, info.gname
    other.pax_headers = {key: value for key, value in info.pax_headers.items() if key not in NOT_KEPT}
    if link_to is not None:
        other.type, other.linkname, other.size, other.pax_headers = tarfile.LNKTYPE, link_to, 0, {}
    return other.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
