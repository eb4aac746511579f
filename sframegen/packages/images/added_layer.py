"""One image: its configuration and layers -> a configuration and layers with one more, or with less: those of the original."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, NamedTuple

from cfi.errors import FormatError
from sframegen.packages.compression import MAGIC_SIZE
from sframegen.packages.images.documents import DIGEST, Document, shown_value
from sframegen.packages.images.edited_document import EditedDocument
from sframegen.packages.images.layers import NewLayer, apply_layer, visit_layer
from sframegen.packages.images.own_layers import MADE_WITH, OriginalImage, OwnLayers, original_image
from sframegen.packages.passing import checksum_of
from sframegen.packages.tar_entries import attributes_of

if TYPE_CHECKING:
    from pathlib import Path

    from sframegen.packages.images.documents import ImageFiles
    from sframegen.packages.images.layers import Layer
    from sframegen.packages.images.root_tree import Inode, RootTree
    from sframegen.packages.passing import Pass

MAX_LAYERS = 1000  # engines stop at 127; a list of some 100,000 that name one blob takes hours to read


class NewImage(NamedTuple):
    """What a changed image has instead, or in addition."""

    config: bytes  # notes the digest of the one before
    layer: Path  # the file of the new layer
    diff_id: str
    digest: str  # of that file
    size: int


def diff_ids(config: Document, where: str) -> list[str]:
    """The digests of the layers' tar archives. Raises FormatError."""
    rootfs = config.get("rootfs")
    found = rootfs.get("diff_ids") if isinstance(rootfs, dict) else None
    if not isinstance(found, list):
        raise FormatError(f"{where}: no list of layers in rootfs.diff_ids")
    if len(found) > MAX_LAYERS:
        raise FormatError(f"{where}: {len(found):,} layers; at most {MAX_LAYERS:,} are read")
    for digest in found:
        if not (isinstance(digest, str) and DIGEST.fullmatch(digest)):
            raise FormatError(f"{where}: {shown_value(digest)} is not a digest of sha256 or sha512")
    return found


def add_layer(
    one: Pass, files: ImageFiles, config: bytes, layers: list[Layer], tree: RootTree, name: str, *, force: bool
) -> NewImage | OriginalImage | None:
    """Visit the linked ELF files that a container of the image sees; None if none changes. `tree`: empty, gets what it sees.

    Where the result is what the image was before sframegen added layers, it is that image. `name`: of the image in paths, "" where
    it is the only one. Raises FormatError, and what visits raise.
    """
    own = OwnLayers(original_image(config, "the configuration"))
    for number, layer in enumerate(layers):
        apply_layer(one, files, layer, number, tree, own.see)
    wanted: dict[int, dict[Inode, list[str]]] = {}
    for inode, paths in tree.elf_files().items():
        if inode.entry is not None and not force and (checksum := checksum_of(paths, tree, attributes_of(inode.entry))):
            one.warnings.append(f"{name}{paths[0]}: signed: {checksum}")
            continue
        wanted.setdefault(inode.layer, {})[inode] = paths
    if not wanted:
        return None
    with files.open(layers[-1].file) as file:
        beginning = file.read(MAGIC_SIZE)
    changed, path = one.changed, one.free_file(f"layer-{hashlib.sha256(config).hexdigest()}")
    with NewLayer(one, tree, path, beginning) as new:
        for number, inodes in wanted.items():
            visit_layer(one, files, layers[number], inodes, name, new)
        diff_id = new.finish()
    if one.changed == changed:
        path.unlink()
        return None
    if (original := own.reverted(files, layers, tree, new.contents)) is not None:
        path.unlink()
        return original
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return NewImage(_with_layer(config, diff_id), path, diff_id, f"sha256:{digest}", path.stat().st_size)


def _with_layer(config: bytes, diff_id: str) -> bytes:
    edited = EditedDocument(config, "the configuration")
    edited.append(("rootfs", "diff_ids"), diff_id)
    document = edited.document
    history = document.get("history")
    if isinstance(history, list) and history:
        made = {"created": document["created"]} if isinstance(document.get("created"), str) else {}
        edited.append(("history",), {**made, "created_by": MADE_WITH})
    edited.note(f"sha256:{hashlib.sha256(config).hexdigest()}")
    return edited.data
