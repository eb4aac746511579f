"""Small tar archives of what is known of a package: in memory, their files edited, all else as it was."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, BinaryIO

from cfi.errors import FormatError
from sframegen.packages.compression import compressed, compression_at, decompressed
from sframegen.packages.passing import pieces
from sframegen.packages.tar_entries import BLOCK, Admission, TarEntry, entries, with_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from sframegen.packages.passing import Pass
    from sframegen.packages.tar_entries import Rules

MAX_BYTES = 64 << 20


class SmallArchive:
    """`paths`: of its entries, in their order."""

    def __init__(self, one: Pass, source: BinaryIO, rules: Rules) -> None:
        """Raises FormatError if it is damaged, or not small."""
        self._compression = compression_at(source)
        self._entries: list[tuple[TarEntry, bytes]] = []
        self._at: dict[str, int] = {}
        self.paths: list[str] = []
        tail = io.BytesIO()
        admit = Admission(one, rules)
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
            self.paths.append(path)
            self._entries.append((entry, data))
        self._tail = tail.getvalue()

    def file(self, path: str) -> bytes | None:
        """The contents of a regular file; None if there is none."""
        at = self._at.get(path)
        return None if at is None else self._entries[at][1]

    def edit(self, path: str, edit: Callable[[bytes], bytes]) -> None:
        """Change a file, if it is there."""
        at = self._at.get(path)
        if at is not None:
            entry, data = self._entries[at]
            new = edit(data)
            self._entries[at] = entry._replace(header=with_size(entry.header, len(new))), new

    def packed(self) -> bytes:
        out = io.BytesIO()
        with compressed(out, self._compression) as file:
            for entry, data in self._entries:
                file.write(entry.header)
                file.write(data)
                file.write(bytes(-len(data) % BLOCK))
            file.write(self._tail)
        return out.getvalue()
