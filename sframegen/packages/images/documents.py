"""The JSON documents of an image, and the digests that lead from one to the next."""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, Protocol

from cfi.errors import FormatError
from sframegen.elf.text import printable, shortened

if TYPE_CHECKING:
    from collections.abc import Iterable

Document = dict[str, Any]

MAX_DOCUMENT = 16 << 20  # bytes; registries accept 4 MiB
DIGEST = re.compile(r"(sha256):([0-9a-f]{64})|(sha512):([0-9a-f]{128})")


class ImageFiles(Protocol):
    """Where the files of an image are: a directory or an archive."""

    def __contains__(self, name: object) -> bool: ...

    def open(self, name: str) -> BinaryIO:
        """A regular file, to read from its beginning. Raises FormatError where there is none."""

    def size(self, name: str) -> int:
        """The size of a file that is there, in bytes."""


class Descriptor(NamedTuple):
    """What one document says of another, or of a layer."""

    media_type: str
    digest: str
    size: int
    given: Document  # all of it

    @property
    def file(self) -> str:
        return blob_file(self.digest)


def blob_file(digest: str) -> str:
    """The name in a layout of the blob with this digest, which has been checked."""
    return "blobs/" + digest.replace(":", "/")


def descriptor_of(value: object, where: str) -> Descriptor:
    """Raises FormatError if it is not one. Its digest can then be part of a file name."""
    if not isinstance(value, dict):
        raise FormatError(f"{where}: expected a descriptor")
    kind, digest, size = value.get("mediaType", ""), value.get("digest"), value.get("size")
    if not (isinstance(digest, str) and DIGEST.fullmatch(digest)):
        raise FormatError(f"{where}: {shown_value(digest)} is not a digest of sha256 or sha512")
    if not isinstance(kind, str) or not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise FormatError(f"{where}: {digest} has no media type, or no size")
    return Descriptor(kind, digest, size, value)


def descriptors(document: Document, key: str, where: str) -> list[Descriptor]:
    """The descriptors in a list of the document. Raises FormatError."""
    values = document.get(key)
    if not isinstance(values, list):
        raise FormatError(f"{where}: {key} is not a list")
    return [descriptor_of(value, where) for value in values]


def pointed_to(descriptor: Descriptor, data: bytes) -> Document:
    """The descriptor with other contents in the place of its own."""
    given = {key: value for key, value in descriptor.given.items() if key != "data"}  # a copy of the contents
    algorithm = descriptor.digest.partition(":")[0]
    return {**given, "digest": f"{algorithm}:{hashlib.new(algorithm, data).hexdigest()}", "size": len(data)}


def read_blob(files: ImageFiles, descriptor: Descriptor) -> bytes:
    """A document's bytes, which are those of its digest. Raises FormatError."""
    data = read_document(files, descriptor.file, descriptor.size)
    algorithm, _, expected = descriptor.digest.partition(":")
    if hashlib.new(algorithm, data).hexdigest() != expected:
        raise FormatError(f"{descriptor.file}: its contents have another digest")
    return data


def read_document(files: ImageFiles, name: str, expected: int | None = None) -> bytes:
    """The bytes of a small file. `expected`: its size, where one is given. Raises FormatError."""
    with files.open(name) as file:
        size = files.size(name)
        if expected not in (None, size):
            raise FormatError(f"{name}: {size:,} bytes, expected {expected:,}")
        if size > MAX_DOCUMENT:
            raise FormatError(f"{name}: {size:,} bytes are too many for a document, which has {MAX_DOCUMENT:,} at most")
        data = file.read(size)
    if len(data) != size:
        raise FormatError(f"{name}: cut off: {size - len(data):,} bytes are missing")
    return data


def parsed(data: bytes, where: str) -> Document:
    """A JSON object. Raises FormatError for anything else, and for names that appear twice: readers disagree on these."""
    value = parsed_value(data, where)
    if not isinstance(value, dict):
        raise FormatError(f"{where}: expected a JSON object")
    return value


def parsed_value(data: bytes, where: str) -> Any:  # noqa: ANN401 - JSON
    try:
        return json.loads(data, object_pairs_hook=_object)
    except FormatError as error:
        raise FormatError(f"{where}: {error.message}") from None
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{where}: no JSON: {printable(str(error))}") from None


def dumped(document: object) -> bytes:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def shown_value(value: object) -> str:
    """As part of an error's line."""
    return shortened(printable(value if isinstance(value, str) else repr(value)))


def _object(pairs: Iterable[tuple[str, Any]]) -> Document:
    result: Document = {}
    for key, value in pairs:
        if key in result:
            raise FormatError(f"{shown_value(key)} appears twice in one object")
        result[key] = value
    return result
