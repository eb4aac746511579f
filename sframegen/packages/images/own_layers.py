"""Layers that sframegen added on those of an original image, and whether the image without them is the wanted one.

That the image says so is not enough, since anyone can write it. A container must see the same without these layers: the
same names with the same metadata, and in each file that they replace the contents that are wanted now.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, NamedTuple

from sframegen.packages.images.edited_document import MAX_NOTES, EditedDocument, digest_like
from sframegen.packages.images.layers import NOT_KEPT
from sframegen.packages.images.root_tree import ImageDirectory, Inode, path_of
from sframegen.packages.passing import pieces, skip

if TYPE_CHECKING:
    from tarfile import TarInfo

    from sframegen.packages.images.documents import ImageFiles
    from sframegen.packages.images.layers import Layer
    from sframegen.packages.images.root_tree import RootTree
    from sframegen.packages.tar_entries import TarEntry

MADE_WITH = "sframegen"  # in the history of an image


class OriginalImage(NamedTuple):
    """What an image was before layers were added."""

    config: bytes
    layers: int  # their number
    is_proven: bool  # the configuration has the digest that it noted


def original_image(config: bytes, where: str) -> OriginalImage | None:
    """The original, according to the configuration: one whose digest it notes, else one without the last layers that we made.

    None: there is no such layer, or no other.
    """
    edited, found = EditedDocument(config, where), None
    notes = edited.notes() if edited.is_noted() else []
    left = len(edited.document["rootfs"]["diff_ids"])
    history = edited.document.get("history")
    made = list(history) if isinstance(history, list) else []
    for number in range(1, MAX_NOTES + 1):
        is_ours = bool(made) and isinstance(made[-1], dict) and made[-1].get("created_by") == MADE_WITH
        if left < 2 or not (is_ours or number <= len(notes)):
            break
        edited.pop(("rootfs", "diff_ids"))
        left -= 1
        if is_ours:
            edited.pop(("history",))
            made.pop()
        if number <= len(notes):
            data, digest = edited.before(len(notes) - number), notes[-number]
            if digest_like(digest, data) == digest:
                found = OriginalImage(data, left, is_proven=True)
        if is_ours and not (found and found.is_proven):
            found = OriginalImage(edited.data, left, is_proven=False)
    return found


class OwnLayers:
    """What the layers on those of the original replace."""

    def __init__(self, original: OriginalImage | None) -> None:
        self.original = original
        self._paths: dict[Inode, list[str]] = {}  # of the ELF files of the original
        self._replaced: dict[str, Inode] = {}  # by path, the file of the original

    def see(self, entry: TarEntry, layer: int, tree: RootTree) -> None:
        """The next entry of a layer, which is not yet applied to the tree."""
        if self.original is None or layer < self.original.layers:
            return
        if not self._paths:
            self._paths = tree.elf_files()
        if not self._replaces(entry, tree):
            self.original = None

    def _replaces(self, entry: TarEntry, tree: RootTree) -> bool:
        """Note what the entry replaces; False if it does more than to replace an ELF file."""
        path, info = path_of(entry), entry.info
        there = tree.at(path)
        if info.isdir():
            return isinstance(there, ImageDirectory) and there.entry is not None and _is_alike(there.entry.info, info)
        if not isinstance(there, Inode) or there.entry is None:
            return False
        replaced = self._replaced.setdefault(path, there)
        if info.islnk():
            linked = "/".join(part for part in info.linkname.split("/") if part not in ("", "."))
            return self._replaced.get(linked) is replaced and _status(there.entry.info)[1:] == _status(info)[1:]
        return entry.is_whole and _is_alike(there.entry.info, info)

    def reverted(self, files: ImageFiles, layers: list[Layer], tree: RootTree, wanted: dict[Inode, str]) -> OriginalImage | None:
        """The original, if it has the contents that are wanted now. `wanted`: the SHA-256 of each file of the tree that changes."""
        if self.original is None:
            return None
        names: dict[Inode, list[str]] = {}
        for path, inode in self._replaced.items():
            names.setdefault(inode, []).append(path)
        expected: dict[Inode, str] = {}
        for inode, paths in names.items():
            now = {tree.at(path) for path in paths}
            if sorted(paths) != self._paths.get(inode) or len(now) != 1:
                return None
            last = now.pop()
            if not isinstance(last, Inode) or last not in wanted:
                return None
            expected[inode] = wanted[last]
        is_all = len(expected) == len(wanted)
        return self.original if is_all and _have(files, layers, expected) else None


def _have(files: ImageFiles, layers: list[Layer], expected: dict[Inode, str]) -> bool:
    """True if these files of the layers have these contents."""
    by_layer: dict[int, list[Inode]] = {}
    for inode in sorted(expected, key=lambda inode: (inode.layer, inode.number)):
        by_layer.setdefault(inode.layer, []).append(inode)
    is_equal = True
    for number, inodes in by_layer.items():
        with layers[number].opened(files) as stream:
            for inode in inodes:
                assert inode.entry is not None
                info, content = inode.entry.info, hashlib.sha256()
                skip(stream, info.offset_data - stream.at, info.name)
                for piece in pieces(stream, info.size, info.name):
                    content.update(piece)
                is_equal = is_equal and content.hexdigest() == expected[inode]
    return is_equal


def _is_alike(one: TarInfo, other: TarInfo) -> bool:
    """True if files with these headers have the same metadata."""
    return _status(one) == _status(other) and _kept(one) == _kept(other)


def _status(info: TarInfo) -> tuple[object, ...]:
    kind = b"0" if info.isreg() else info.type
    return kind, info.mode, info.uid, info.gid, info.uname, info.gname, info.mtime


def _kept(info: TarInfo) -> dict[str, str]:
    return {key: value for key, value in info.pax_headers.items() if key not in NOT_KEPT}
