"""Indexes of repositories as lists of packages: APT's `Packages`, RPM's `repodata`. They are read as streams, within limits."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple
from xml.parsers import expat

from cfi.errors import FormatError
from sframegen.fleet.sources.fetching import digest, index_file
from sframegen.fleet.sources.items import Item, item_below, local_path, place_below, refused_item, shown
from sframegen.packages.compression import MAGIC_SIZE, compression_of, decompressed

if TYPE_CHECKING:
    from collections.abc import Iterator

APT_INDEX = re.compile(r"Packages(?:\.(?:gz|xz|zst|bz2))?$")
RPM_INDEX = "repomd.xml"
MAX_INDEX_BYTES = 1 << 30  # as fetched
MAX_UNPACKED_BYTES = 8 << 30
MAX_LINE_BYTES = 1 << 20
MAX_TOKEN_BYTES = 1 << 20  # of XML: a tag with its attributes
MAX_TEXT_BYTES = 4096  # of what is kept
MAX_REPOMD_BYTES = 1 << 24
PIECE = 1 << 16
SHA256 = re.compile(r"[0-9a-f]{64}\Z")
CHECKSUMS = {"sha": "sha1", "sha1": "sha1", "sha224": "sha224", "sha256": "sha256", "sha384": "sha384", "sha512": "sha512"}


def apt_items(index: str) -> Iterator[Item]:
    """The packages of an APT index, a path or URL. Raises FormatError, OSError."""
    from debian.deb822 import Packages  # noqa: PLC0415 - of the extra `fleet`

    base = _apt_base(index)
    fields = ["Filename", "Size", "SHA256"]
    with index_file(index, MAX_INDEX_BYTES) as file:
        lines = _lines(file, shown(index))
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
        for package in _records(file, shown(place), "metadata/package"):
            href = _attribute(package, "location", "href")
            if href and _attribute(package, "location", "xml:base"):
                yield refused_item(href, shown(href), "the index names another place for it (xml:base)")
            elif href:
                is_sha256 = _attribute(package, "checksum", "type") == "sha256"
                yield _item(base, href, package["checksum"][1] if is_sha256 else "", _attribute(package, "size", "package"))


def _directory(path: str) -> str:
    return path.rpartition("/")[0] or ("/" if path.startswith("/") else ".")


def _item(base: str, filename: str, checksum: str, size: str) -> Item:
    checksum = checksum.strip().lower()
    is_size = size.isascii() and size.isdigit() and len(size) < 16
    return item_below(base, filename, checksum if SHA256.match(checksum) else "", int(size) if is_size else -1)


# -- bytes


def _pieces(file: BinaryIO, name: str) -> Iterator[bytes]:
    """The unpacked content of an index."""
    beginning = file.read(MAGIC_SIZE)
    file.seek(0)
    if not beginning and os.fstat(file.fileno()).st_size:
        raise FormatError("cannot be read", file=name)
    stream, done = decompressed(file, compression_of(beginning)), 0
    while True:
        try:
            piece = stream.read(PIECE)
        except FormatError as error:
            raise FormatError(f"damaged: {error.message}", file=name) from error
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


Record = dict[str, tuple[dict[str, str], str]]  # of the elements in one: their attributes and texts, by their names


class Primary(NamedTuple):
    href: str
    algorithm: str
    checksum: str


def _records(file: BinaryIO, name: str, path: str) -> Iterator[Record]:
    """The elements at a path of an XML file, each with those directly in it; its own attributes are under ""."""
    stream = XmlStream(name, path)
    for piece in _pieces(file, name):
        stream.feed(piece)
        yield from stream.take_records()
    stream.feed(b"", last=True)
    yield from stream.take_records()


class XmlStream:
    """Records of an XML file that is fed in pieces. No document type, so no entities."""

    def __init__(self, name: str, path: str) -> None:
        self.name = name
        self.path = path.split("/")
        self.parser: Any = expat.ParserCreate(namespace_separator=None)
        self.parser.StartDoctypeDeclHandler = self._doctype
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._text
        self.parser.buffer_text = True
        self.open: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.given = 0
        self.record: Record = {}
        self.ready: list[Record] = []

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
        names = [name for name, _ in self.open]
        tag, attributes = self.open.pop()
        if names[:-1] == self.path:
            self.record[tag] = attributes, self.text.strip()
        elif names == self.path:
            self.ready.append(self.record | {"": (attributes, "")})
            self.record = {}
        self.text = ""

    def take_records(self) -> list[Record]:
        """Those that are complete since the last call."""
        ready, self.ready = self.ready, []
        return ready


def _primary(file: BinaryIO, index: str) -> Primary:
    """Where repomd.xml says that the list of packages is."""
    found = [record for record in _records(file, shown(index), "repomd/data") if record[""][0].get("type") == "primary"]
    href = _attribute(found[0], "location", "href") if len(found) == 1 and not _attribute(found[0], "location", "xml:base") else ""
    if not href:
        raise FormatError("names no single list of packages (primary) of this repository", file=shown(index))
    algorithm = _attribute(found[0], "checksum", "type")
    if algorithm not in CHECKSUMS:
        raise FormatError(f"a checksum of an unknown kind: {algorithm!r}", file=shown(index))
    return Primary(href, CHECKSUMS[algorithm], found[0]["checksum"][1])


def _attribute(record: Record, element: str, name: str) -> str:
    return record[element][0].get(name, "") if element in record else ""


def is_index(place: str) -> bool:
    name = local_path(place).rpartition("/")[2]
    return name == RPM_INDEX or APT_INDEX.match(name) is not None


def index_items(place: str) -> Iterator[Item]:
    """The packages of an index of either kind. Raises FormatError, OSError."""
    place = local_path(place)
    return rpm_items(place) if place.rpartition("/")[2] == RPM_INDEX else apt_items(place)
