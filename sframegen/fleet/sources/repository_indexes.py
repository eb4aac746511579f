"""Indexes of repositories as lists of packages: APT's `Packages`, RPM's `repodata`. They are read as streams, within limits."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import re
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple
from xml.parsers import expat

from cfi.errors import FormatError
from sframegen.fleet.sources.fetching import digest, index_file
from sframegen.fleet.sources.items import Item, item_below, local_path, place_below, refused_item, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

APT_INDEX = re.compile(r"Packages(?:\.(?:gz|xz|zst|bz2))?$")
RPM_INDEX = "repomd.xml"
MAX_INDEX_BYTES = 1 << 30  # as fetched
MAX_UNPACKED_BYTES = 8 << 30
MAX_LINE_BYTES = 1 << 20
MAX_TOKEN_BYTES = 1 << 20  # of XML: a tag with its attributes
MAX_TEXT_BYTES = 4096  # of what is kept
MAX_REPOMD_BYTES = 1 << 24
MAX_WINDOW_BYTES = 1 << 28  # memory of xz
PIECE = 1 << 16
SHA256 = re.compile(r"[0-9a-f]{64}\Z")
CHECKSUMS = {"sha": "sha1", "sha1": "sha1", "sha224": "sha224", "sha256": "sha256", "sha384": "sha384", "sha512": "sha512"}


def apt_items(index: str) -> Iterator[Item]:
    """The packages of an APT index, a path or URL. Raises FormatError, OSError."""
    from debian.deb822 import Packages  # noqa: PLC0415 - of the extra `fleet`

    base = _apt_base(index)
    fields = ["Filename", "Size", "SHA256"]
    with index_file(index, MAX_INDEX_BYTES) as file:
        lines = _lines(unpacked(file, index), shown(index))
        for paragraph in Packages.iter_paragraphs(lines, fields=fields, use_apt_pkg=False):
            filename = paragraph.get("Filename", "").removeprefix("./")
            if filename:
                yield _item(base, filename, paragraph.get("SHA256", ""), paragraph.get("Size", ""))


def _apt_base(index: str) -> str:
    """Where the index's file names begin: above /dists/, or in a flat repository the index's own directory."""
    above, dists, _ = index.rpartition("/dists/")
    return above if dists else _directory(index)


def rpm_items(index: str) -> Iterator[Item]:
    """The packages that a repomd.xml lists. Raises FormatError, OSError."""
    base = _directory(_directory(index))
    with index_file(index, MAX_REPOMD_BYTES) as file:
        primary = _primary(file, index)
    try:
        place = place_below(base, primary.href)
    except FormatError as error:
        raise FormatError(f"the list of packages: {error}", file=shown(index)) from error
    with index_file(place, MAX_INDEX_BYTES) as file:
        found = digest(file, primary.algorithm)
        if found != primary.checksum:
            raise FormatError(f"its {primary.algorithm} is not the one in {RPM_INDEX}", file=shown(place))
        for package in _rpm_packages(unpacked(file, place), shown(place)):
            if package.base:
                yield refused_item(package.href, shown(package.href), "the index names another place for it (xml:base)")
            else:
                yield _item(base, package.href, package.checksum if package.algorithm == "sha256" else "", package.size)


def _directory(path: str) -> str:
    return path.rpartition("/")[0] or ("/" if path.startswith("/") else ".")


def _item(base: str, filename: str, checksum: str, size: str) -> Item:
    checksum = checksum.strip().lower()
    is_size = size.isascii() and size.isdigit() and len(size) < 16
    return item_below(base, filename, checksum if SHA256.match(checksum) else "", int(size) if is_size else -1)


# -- bytes


@contextmanager
def _damaged(name: str) -> Iterator[None]:
    try:
        yield
    except (EOFError, lzma.LZMAError, gzip.BadGzipFile, OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise FormatError(f"damaged: {error}", file=name) from error


def unpacked(file: BinaryIO, name: str) -> BinaryIO:
    """The unpacked content of an index, by its first bytes."""
    beginning = file.read(6)
    file.seek(0)
    if beginning.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=file)  # type: ignore[return-value]
    if beginning.startswith(b"\xfd7zXZ\0"):
        return lzma.LZMAFile(file)  # type: ignore[return-value]
    if beginning.startswith(b"\x28\xb5\x2f\xfd"):
        return _zstd(file)
    if beginning.startswith(b"BZh"):
        return bz2.BZ2File(file)  # type: ignore[return-value]
    if not beginning and os.fstat(file.fileno()).st_size:
        raise FormatError("cannot be read", file=shown(name))
    return file


def _zstd(file: BinaryIO) -> BinaryIO:
    if sys.version_info >= (3, 14):
        from compression.zstd import ZstdFile  # noqa: PLC0415
    else:
        from backports.zstd import ZstdFile  # noqa: PLC0415
    return io.BufferedReader(ZstdFile(file))


def _pieces(file: BinaryIO, name: str) -> Iterator[bytes]:
    done = 0
    while True:
        with _damaged(name):
            piece = file.read(PIECE)
        if not piece:
            return
        done += len(piece)
        if done > MAX_UNPACKED_BYTES:
            raise FormatError(f"unpacks to more than {MAX_UNPACKED_BYTES:,} bytes", file=name)
        yield piece


def _lines(file: BinaryIO, name: str) -> Iterator[bytes]:
    rest = b""
    for piece in _pieces(file, name):
        *lines, rest = (rest + piece).split(b"\n")
        yield from lines
        if len(rest) > MAX_LINE_BYTES:
            raise FormatError(f"a line of more than {MAX_LINE_BYTES:,} bytes", file=name)
    if rest:
        yield rest


# -- XML


class Primary(NamedTuple):
    href: str
    algorithm: str
    checksum: str


class RpmPackage(NamedTuple):
    href: str
    base: str
    algorithm: str
    checksum: str
    size: str


class XmlStream:
    """Elements of an XML file: `ended` gets the path, attributes and text of each. No document type, so no entities."""

    def __init__(self, name: str, ended: Callable[[str, dict[str, str], str], None]) -> None:
        self.name = name
        self.ended = ended
        self.parser: Any = expat.ParserCreate(namespace_separator=None)
        self.parser.StartDoctypeDeclHandler = self._doctype
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._text
        self.parser.buffer_text = True
        self.open: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.given = 0

    def feed(self, piece: bytes, *, last: bool = False) -> None:
        try:
            self.parser.Parse(piece, last)
        except expat.ExpatError as error:
            raise FormatError(f"no XML: {error}", file=self.name) from error
        self.given += len(piece)
        if self.given - self.parser.CurrentByteIndex > MAX_TOKEN_BYTES:
            raise FormatError(f"a tag of more than {MAX_TOKEN_BYTES:,} bytes", file=self.name)

    def _doctype(self, *_: object) -> None:
        raise FormatError("has a document type, which could define entities", file=self.name)

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        if len(self.open) > 100:
            raise FormatError("elements in more than 100 others", file=self.name)
        self.open.append((tag, attributes))
        self.text = ""

    def _text(self, text: str) -> None:
        if len(self.text) < MAX_TEXT_BYTES:
            self.text += text

    def _end(self, _tag: str) -> None:
        tag, attributes = self.open.pop()
        self.ended("/".join([*(name for name, _ in self.open), tag]), attributes, self.text.strip())
        self.text = ""


def _primary(file: BinaryIO, index: str) -> Primary:
    """Where repomd.xml says that the list of packages is."""
    href = algorithm = checksum = ""
    found: list[Primary] = []

    def ended(path: str, attributes: dict[str, str], text: str) -> None:
        nonlocal href, algorithm, checksum
        if path == "repomd/data/location":
            href = "" if attributes.get("xml:base") else attributes.get("href", "")
        elif path == "repomd/data/checksum":
            algorithm, checksum = attributes.get("type", ""), text
        elif path == "repomd/data":
            if attributes.get("type") == "primary":
                found.append(Primary(href, algorithm, checksum))
            href = algorithm = checksum = ""

    stream = XmlStream(shown(index), ended)
    for piece in _pieces(file, shown(index)):
        stream.feed(piece)
    stream.feed(b"", last=True)
    if len(found) != 1 or not found[0].href:
        raise FormatError("names no single list of packages (primary) of this repository", file=shown(index))
    if found[0].algorithm not in CHECKSUMS:
        raise FormatError(f"a checksum of an unknown kind: {found[0].algorithm!r}", file=shown(index))
    return found[0]._replace(algorithm=CHECKSUMS[found[0].algorithm])


def _rpm_packages(file: BinaryIO, name: str) -> Iterator[RpmPackage]:
    """The packages in primary.xml."""
    ready: list[RpmPackage] = []
    package = RpmPackage("", "", "", "", "")

    def ended(path: str, attributes: dict[str, str], text: str) -> None:
        nonlocal package
        if path == "metadata/package/location":
            package = package._replace(href=attributes.get("href", ""), base=attributes.get("xml:base", ""))
        elif path == "metadata/package/checksum":
            package = package._replace(algorithm=attributes.get("type", ""), checksum=text)
        elif path == "metadata/package/size":
            package = package._replace(size=attributes.get("package", ""))
        elif path == "metadata/package":
            if package.href:
                ready.append(package)
            package = RpmPackage("", "", "", "", "")

    stream = XmlStream(name, ended)
    for piece in _pieces(file, name):
        stream.feed(piece)
        yield from ready
        ready.clear()
    stream.feed(b"", last=True)
    yield from ready


def is_index(place: str) -> bool:
    name = local_path(place).rpartition("/")[2]
    return name == RPM_INDEX or APT_INDEX.match(name) is not None


def index_items(place: str) -> Iterator[Item]:
    """The packages of an index of either kind. Raises FormatError, OSError."""
    place = local_path(place)
    return rpm_items(place) if place.rpartition("/")[2] == RPM_INDEX else apt_items(place)
