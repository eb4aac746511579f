"""What dpkg knows of a Debian package: a small tar archive, in memory, its files edited, all else as it was."""

from __future__ import annotations

import io
import posixpath
import re
from typing import TYPE_CHECKING, BinaryIO

from cfi.errors import FormatError
from sframegen.packages.compression import compressed, compression_at, decompressed
from sframegen.packages.passing import is_checksum, pieces
from sframegen.packages.tar_entries import BLOCK, Admission, TarEntry, entries, with_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from sframegen.packages.file_sums import ChangedFile
    from sframegen.packages.passing import Pass

MAX_BYTES = 64 << 20
INSTALLED_SIZE = re.compile(rb"^(Installed-Size:[ \t]*)(\d{1,15})", re.MULTILINE | re.IGNORECASE)
MD5SUMS_LINE = re.compile(rb"^([0-9a-f]{32})([ \t]+\*?)(.+)$", re.MULTILINE)


class Control:
    """The control archive."""

    def __init__(self, one: Pass, source: BinaryIO) -> None:
        """Raises FormatError if it is damaged, or not small."""
        self._compression = compression_at(source)
        self._entries: list[tuple[TarEntry, bytes]] = []
        self._at: dict[str, int] = {}
        tail = io.BytesIO()
        admit = Admission(one, devices=False)
        left = MAX_BYTES
        stream = decompressed(source, self._compression)
        for entry in entries(stream, tail.write):
            path = admit(entry)
            left -= entry.stored + len(entry.header)
            if left < 0:
                raise FormatError(f"{path}: more than {MAX_BYTES:,} bytes")
            data = b"".join(pieces(stream, entry.stored + -entry.stored % BLOCK, path))[: entry.stored]
            if entry.is_whole:
                self._at[path] = len(self._entries)
            self._entries.append((entry, data))
        self._tail = tail.getvalue()
        if "control" not in self._at:
            raise FormatError("no file `control`")

    def change(self, changes: dict[str, ChangedFile], hard_links: dict[str, str]) -> None:
        """Correct md5sums and Installed-Size, where they are there. Raises FormatError where the sum of a file was wrong before."""

        def summed(line: re.Match[bytes]) -> bytes:
            path = _path(line)
            change = changes.get(hard_links.get(path, path))
            if change is None:
                return line[0]
            if change.old.digests["md5"].encode() != line[1]:
                raise FormatError(f"{path}: its sum is another than in md5sums")
            return change.new.digests["md5"].encode() + line[2] + line[3]

        # Installed-Size counts each file rounded up to KiB.
        kilobytes = sum(-(-change.new.size // 1024) + -change.old.size // 1024 for change in changes.values())
        self._edit("md5sums", lambda text: MD5SUMS_LINE.sub(summed, text))
        self._edit("control", lambda text: INSTALLED_SIZE.sub(lambda m: m[1] + b"%d" % (int(m[2]) + kilobytes), text, count=1))

    def checksums(self) -> set[str] | None:
        """Return the paths of files that can have the checksum of another one; None if the package does not list its files."""
        paths = [_path(line) for line in MD5SUMS_LINE.finditer(self._file("md5sums"))]
        return {path for path in paths if is_checksum(path)} if paths else None

    def packed(self) -> bytes:
        out = io.BytesIO()
        with compressed(out, self._compression) as file:
            for entry, data in self._entries:
                file.write(entry.header)
                file.write(data)
                file.write(bytes(-len(data) % BLOCK))
            file.write(self._tail)
        return out.getvalue()

    def _file(self, path: str) -> bytes:
        """The contents of a regular file; none if it is not there."""
        at = self._at.get(path)
        return b"" if at is None else self._entries[at][1]

    def _edit(self, path: str, edit: Callable[[bytes], bytes]) -> None:
        """Change a file, if it is there."""
        at = self._at.get(path)
        if at is not None:
            entry, data = self._entries[at]
            new = edit(data)
            self._entries[at] = entry._replace(header=with_size(entry.header, len(new))), new


def _path(line: re.Match[bytes]) -> str:
    """The path in a line of md5sums, as entries have it."""
    return posixpath.normpath(line[3].decode("utf-8", "surrogateescape"))
