"""The documents of an OCI layout, from its index down: images get their layer, and each document that names one is rewritten."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cfi.errors import FormatError
from linker.files.refusals import Refusal, RefusedError
from sframegen.packages.images.added_layer import NewImage, add_layer, diff_ids
from sframegen.packages.images.documents import (
    blob_file,
    descriptor_of,
    descriptors,
    parsed,
    pointed_to,
    read_blob,
    read_document,
    shown_value,
)
from sframegen.packages.images.edited_document import EditedDocument, digest_like
from sframegen.packages.images.layers import Layer
from sframegen.packages.images.root_tree import Link, RootTree
from sframegen.packages.kinds import LAYOUT

if TYPE_CHECKING:
    from pathlib import Path

    from sframegen.packages.images.documents import Descriptor, Document, ImageFiles
    from sframegen.packages.images.own_layers import OriginalImage
    from sframegen.packages.passing import Pass, Passed

INDEX = "index.json"
INDEXES = {"application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json"}
MANIFESTS = {"application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json"}
CONFIGS = {"application/vnd.oci.image.config.v1+json", "application/vnd.docker.container.image.v1+json"}
LAYERS = ("application/vnd.oci.image.layer.", "application/vnd.docker.image.rootfs.")
ELSEWHERE = ("nondistributable", "foreign")  # in media types of layers that are not part of the image's files
ENCRYPTED = "+encrypted"
ONE_MORE_LAYER = "in one more layer: another tool has changed the image since"
REWRITTEN = "in the layers that it had: another tool has written its manifest or configuration since"
VERSIONS = ("1.0.0", "1.1.0")
MAX_DEPTH = 8  # indexes in indexes
MAX_MANIFESTS = 10_000
REFERENCE = "vnd.docker.reference.digest"  # an annotation of BuildKit's attestations: the image that they attest
NAME = "org.opencontainers.image.ref.name"
OF_DIGEST = re.compile(r"sha256-([0-9a-f]{64})(\..+)?")  # tags of cosign's signatures, and of lists of referrers


@dataclass
class Changes:
    """Files of an image that are new, rewritten, or no longer needed; by name."""

    new: dict[str, bytes | Path | Link] = field(default_factory=dict)
    rewritten: dict[str, bytes] = field(default_factory=dict)
    unneeded: set[str] = field(default_factory=set)  # as far as the images are concerned that changed
    own: set[str] = field(default_factory=set)  # of these, what sframegen made
    differs: dict[str, None] = field(default_factory=dict)  # why a changed image is not, or not proven to be, one that it was
    signatures: list[str] = field(default_factory=list)  # what would no longer hold

    def add_blob(self, digest: str, data: bytes | Path) -> str:
        name = blob_file(digest)
        self.new[name] = data
        return name

    def drop(self, *names: str) -> None:
        """What sframegen made, and the original did not have."""
        self.unneeded.update(names)
        self.own.update(names)


class Images:
    """The images of one package, each with its new layer once."""

    def __init__(self, one: Pass, files: ImageFiles, *, force: bool) -> None:
        self._pass, self.files, self._force = one, files, force
        self.entries = 0  # files, directories and links that containers see
        self._done: dict[tuple[bytes, tuple[str, ...]], NewImage | OriginalImage | None] = {}

    def changed(self, config: bytes, layers: list[Layer], name: str) -> NewImage | OriginalImage | None:
        key = hashlib.sha256(config).digest(), tuple(layer.file for layer in layers)
        if key not in self._done:
            tree = RootTree()
            self._done[key] = add_layer(self._pass, self.files, config, layers, tree, name, force=self._force)
            self.entries += len(tree)
        return self._done[key]


class OciLayout:
    """The layout's index and all that it leads to."""

    def __init__(self, images: Images, changes: Changes) -> None:
        self._images, self._files, self._changes = images, images.files, changes
        self._documents: dict[str, Descriptor | None] = {}  # by digest: what takes its place
        self._refers: list[tuple[str, str]] = []  # digest, what refers to it
        self._named = False

    def rewrite(self) -> None:
        """Raises FormatError and RefusedError."""
        index = EditedDocument(read_document(self._files, INDEX), INDEX)
        check_layout(self._files)
        self._named = _leads_to_several(index.document)
        if self._entries(index, 0, ""):
            self._changes.rewritten[INDEX] = index.data
        replaced = {digest for digest, new in self._documents.items() if new is not None}
        changed = replaced or self._documents.keys()  # where nothing is changed, what would not hold if something were
        self._changes.signatures += dict.fromkeys(what for digest, what in self._refers if digest in changed)

    def _entries(self, index: EditedDocument, depth: int, name: str) -> bool:
        """Change what an index leads to, and the index; False if nothing changes."""
        where = index.where
        if depth > MAX_DEPTH:
            raise FormatError(f"{where}: more than {MAX_DEPTH} indexes within one another")
        self._note_subject(index.document, where)
        found = descriptors(index.document, "manifests", where)
        if len(self._documents) + len(found) > MAX_MANIFESTS:
            raise FormatError(f"{where}: more than {MAX_MANIFESTS:,} manifests")
        changed = False
        for at, descriptor in enumerate(found):
            self._note_references(descriptor)
            if (new := self._followed(descriptor, depth, name)) is not None:
                data = self._changes.new[new.file]
                assert isinstance(data, bytes)
                index.point(("manifests", at), data)
                changed = True
        return changed

    def _followed(self, descriptor: Descriptor, depth: int, name: str) -> Descriptor | None:
        """What takes the place of an index or a manifest, if anything does."""
        if descriptor.digest not in self._documents:
            self._documents[descriptor.digest] = None  # also while it is read
            self._documents[descriptor.digest] = self._read(descriptor, depth, name)
        return self._documents[descriptor.digest]

    def _read(self, descriptor: Descriptor, depth: int, name: str) -> Descriptor | None:
        if descriptor.media_type not in INDEXES | MANIFESTS:
            return None
        where = descriptor.file
        edited = EditedDocument(read_blob(self._files, descriptor), where)
        is_index = descriptor.media_type in INDEXES
        if is_index:
            changed = self._entries(edited, depth + 1, name)
        else:
            self._note_subject(edited.document, where)
            changed = self._manifest(edited, descriptor.digest, name or (_name(descriptor) if self._named else ""))
        if not changed:
            return None
        original = edited.original()
        if original is None:
            self._changes.differs.setdefault(REWRITTEN)
            if is_index:
                edited.note(descriptor.digest)
        else:
            self._changes.drop(where, *map(blob_file, edited.notes()))
        data = original or edited.data
        new = descriptor_of(pointed_to(descriptor, data), where)
        self._changes.add_blob(new.digest, data)
        self._changes.unneeded.add(where)
        return new

    def _manifest(self, edited: EditedDocument, digest: str, name: str) -> bool:
        """Give the image its layer, or take those away that it did not have; False if nothing changes, or it is none."""
        manifest, where = edited.document, edited.where
        config = descriptor_of(manifest.get("config"), where)
        layers = descriptors(manifest, "layers", where)
        if config.media_type not in CONFIGS or not any(layer.media_type.startswith(LAYERS) for layer in layers):
            return False  # a signature, an attestation, a chart
        for layer in layers:
            _check_layer(layer, where)
        given = read_blob(self._files, config)
        digests = diff_ids(parsed(given, config.file), config.file)
        if len(digests) != len(layers):
            raise FormatError(f"{where}: {len(layers)} layers, and {len(digests)} in its configuration")
        stored = [Layer(layer.file, diff_id, layer.digest, layer.size) for layer, diff_id in zip(layers, digests, strict=True)]
        new = self._images.changed(given, stored, name)
        if new is None:
            return False
        edited.point(("config",), new.config)
        self._changes.add_blob(digest_like(config.digest, new.config), new.config)
        self._changes.unneeded.add(config.file)
        if isinstance(new, NewImage):
            edited.append(("layers",), {"mediaType": layers[-1].media_type, "digest": new.digest, "size": new.size})
            self._changes.add_blob(new.digest, new.layer)
            self._changes.differs.setdefault(ONE_MORE_LAYER)
            edited.note(digest)
            return True
        if not new.is_proven:
            self._changes.differs.setdefault(REWRITTEN)
        for layer in layers[new.layers :]:
            edited.pop(("layers",))
            self._changes.drop(layer.file)
        self._changes.drop(config.file, *map(blob_file, EditedDocument(given, config.file).notes()))
        return True

    def _note_subject(self, document: Document, where: str) -> None:
        subject = document.get("subject")
        if subject is not None:
            kind = document.get("artifactType") or document.get("mediaType") or "a manifest"
            self._refers.append((descriptor_of(subject, where).digest, shown_value(kind)))

    def _note_references(self, descriptor: Descriptor) -> None:
        annotations = descriptor.given.get("annotations")
        if not isinstance(annotations, dict):
            return
        if isinstance(attested := annotations.get(REFERENCE), str):
            self._refers.append((attested, "a build attestation"))
        tag = annotations.get(NAME)
        if isinstance(tag, str) and (of := OF_DIGEST.fullmatch(tag.rpartition(":")[2])):
            self._refers.append((f"sha256:{of[1]}", f"what the tag {shown_value(tag)[:20]}...{of[2] or ''} has"))


def check_layout(files: ImageFiles) -> None:
    """Raises FormatError for a version of the layout that is not known."""
    version = parsed(read_document(files, LAYOUT), LAYOUT).get("imageLayoutVersion")
    if version not in VERSIONS:
        raise FormatError(f"{LAYOUT}: version {shown_value(version)} of the layout is not known, only {', '.join(VERSIONS)}")


def passed(one: Pass, images: Images, changes: Changes, *, force: bool) -> Passed:
    """What the pass saw, with the files of all images as its entries. Raises RefusedError for signed ones without `force`."""
    signed = ", ".join(changes.signatures)
    if signed and changes.rewritten and not force:
        raise RefusedError(Refusal.SIGNED, f"signed: {signed}")
    return one.passed()._replace(entries=images.entries, signed=signed, differs=next(iter(changes.differs), ""))


def _check_layer(layer: Descriptor, where: str) -> None:
    if ENCRYPTED in layer.media_type:
        raise FormatError(f"{where}: the layer {layer.digest[:19]} is encrypted; decrypt the image first")
    if any(word in layer.media_type for word in ELSEWHERE):
        raise FormatError(f"{where}: the layer {layer.digest[:19]} is not distributed with the image, so its files are not known")
    if not layer.media_type.startswith(LAYERS):
        raise FormatError(f"{where}: {shown_value(layer.media_type)} is not a layer of an image")


def _leads_to_several(index: Document) -> bool:
    """True if paths need the name of an image before them."""
    values = index.get("manifests")
    return isinstance(values, list) and (
        len({value.get("digest") for value in values if isinstance(value, dict) and isinstance(value.get("digest"), str)}) > 1
        or any(isinstance(value, dict) and value.get("mediaType") in INDEXES for value in values)
    )


def _name(descriptor: Descriptor) -> str:
    """What stands before the paths in an image among several: its platform and the beginning of its digest."""
    platform = descriptor.given.get("platform")
    parts = [platform.get(key) for key in ("os", "architecture", "variant")] if isinstance(platform, dict) else []
    known = [part for part in parts if isinstance(part, str) and part]
    return f"{shown_value('-'.join(known))[:40]}@" * bool(known) + descriptor.digest.partition(":")[2][:12] + "/"
