"""What the functions that only read take: a path, or the content of a file."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from cfi.errors import FormatError

if TYPE_CHECKING:
    from sframegen.api.options import StrPath

    Readable = StrPath | bytes | bytearray | memoryview | BinaryIO


class FileContent(NamedTuple):
    """`name`: for messages; of a path, the path. `data`: None for a path, which is not opened yet."""

    name: str
    data: memoryview | None


def file_content(file: Readable) -> FileContent:
    """Read a file object to its end, and take bytes as they are: they are what is in a file, never its name.

    Raises FormatError if there are none, OSError, and TypeError.
    """
    if isinstance(file, (str, os.PathLike)):
        return FileContent(os.fspath(file), None)
    name, found = "<bytes>", file
    if not isinstance(file, (bytes, bytearray, memoryview)):
        if not hasattr(file, "read"):
            raise TypeError(f"path is {file!r}: give a path, bytes, or a file object")
        given = getattr(file, "name", None)
        name, found = given if isinstance(given, str) else "<file>", file.read()
    if not isinstance(found, (bytes, bytearray, memoryview)):
        raise TypeError(f"{name} gives no bytes: open it in binary mode, 'rb'")
    if not found:
        raise FormatError("the file is empty, or was read to its end before", file=name)
    return FileContent(name, memoryview(found).cast("B"))
