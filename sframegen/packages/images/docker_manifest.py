"""The documents of a `docker save` archive: `manifest.json`, and those for engines before Docker 1.10."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any

from cfi.errors import FormatError
from sframegen.packages.images.added_layer import NewImage, diff_ids
from sframegen.packages.images.documents import dumped, parsed, parsed_value, read_document, shown_value
from sframegen.packages.images.layers import Layer
from sframegen.packages.images.oci_index import ONE_MORE_LAYER, REWRITTEN
from sframegen.packages.images.root_tree import Link

if TYPE_CHECKING:
    from sframegen.packages.images.documents import Document, ImageFiles
    from sframegen.packages.images.oci_index import Changes, Images

MANIFEST, REPOSITORIES = "manifest.json", "repositories"
BLOBS = "blobs/sha256/"  # where layers and configurations are if the archive is an OCI layout, too
OWN_DIRECTORY = "/layer.tar"  # after the identifier of a layer that has a directory
CONFIG = re.compile(r"(?:blobs/sha256/)?([0-9a-f]{64})(?:\.json)?")  # its digest
IDENTIFIER = re.compile(r"[0-9a-f]{64}")
MAX_IMAGES = 10_000


def rewrite_manifest(images: Images, changes: Changes) -> None:
    """Give each image of manifest.json its layer. Raises FormatError."""
    files = images.files
    entries = parsed_value(read_document(files, MANIFEST), MANIFEST)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries) or len(entries) > MAX_IMAGES:
        raise FormatError(f"{MANIFEST}: expected a list of images")
    repositories = parsed(read_document(files, REPOSITORIES), REPOSITORIES) if REPOSITORIES in files else {}
    changed = [_rewrite_entry(entry, repositories, images, changes, named=len(entries) > 1) for entry in entries]
    if any(changed):
        changes.rewritten[MANIFEST] = dumped(entries)
        changes.unneeded -= {_text(entry, "Config") for entry, is_changed in zip(entries, changed, strict=True) if not is_changed}
        if repositories:
            changes.rewritten[REPOSITORIES] = dumped(repositories)


def _rewrite_entry(entry: Document, repositories: Document, images: Images, changes: Changes, *, named: bool) -> bool:
    config_file, names = _text(entry, "Config"), _texts(entry, "Layers")
    config = read_document(images.files, config_file)
    if (digest := CONFIG.fullmatch(config_file)) and hashlib.sha256(config).hexdigest() != digest[1]:
        raise FormatError(f"{config_file}: its contents have another digest")
    digests = diff_ids(parsed(config, config_file), config_file)
    if len(digests) != len(names):
        raise FormatError(f"{config_file}: {len(digests)} layers, and {len(names)} in {MANIFEST}")
    tags = _texts(entry, "RepoTags") if entry.get("RepoTags") is not None else []
    layers = [Layer(name, diff_id) for name, diff_id in zip(names, digests, strict=True)]
    name = f"{shown_value(tags[0] if tags else config_file)}/" if named else ""
    new = images.changed(config, layers, name)
    if new is None:
        return False
    entry["Config"] = _config_file(config_file, new.config)
    changes.new[entry["Config"]] = new.config
    changes.unneeded.add(config_file)
    if not isinstance(new, NewImage):
        if not new.is_proven:
            changes.differs.setdefault(REWRITTEN)
        _drop_layers(entry, repositories, images.files, changes, layers[new.layers :])
        return True
    changes.differs.setdefault(ONE_MORE_LAYER)
    old = next((found for tag in tags if (found := _identifier(repositories, tag)) is not None), None)
    entry["Layers"].append(_add_layer(images.files, changes, names[-1], old, new))
    for tag in tags:
        if _identifier(repositories, tag) is not None:
            repository, _, version = tag.rpartition(":")
            repositories[repository][version] = _new_identifier(images.files, old, new) if old else new.digest[7:]
    sources = entry.get("LayerSources")
    if isinstance(sources, dict) and isinstance(like := sources.get(digests[-1]), dict):
        sources[new.diff_id] = {"mediaType": like.get("mediaType"), "size": new.size, "digest": new.digest}
    return True


def _drop_layers(entry: Document, repositories: Document, files: ImageFiles, changes: Changes, layers: list[Layer]) -> None:
    """Take away the last layers of an image, with what `_add_layer` added for them."""
    entry["Layers"] = entry["Layers"][: -len(layers)]
    changes.drop(*(layer.file for layer in layers))
    sources = entry.get("LayerSources")
    if isinstance(sources, dict):
        for layer in layers:
            sources.pop(layer.diff_id, None)
    last = IDENTIFIER.search(entry["Layers"][-1])
    for tag in _texts(entry, "RepoTags") if entry.get("RepoTags") is not None else []:
        top = _identifier(repositories, tag)
        for _ in layers if top is not None else ():
            about = parsed(read_document(files, f"{top}/json"), f"{top}/json") if f"{top}/json" in files else {}
            changes.drop(*(f"{top}/{name}" for name in ("json", "VERSION", "layer.tar")) if about else ())
            top = about.get("parent", last[0] if last else None)
        if isinstance(top, str) and IDENTIFIER.fullmatch(top):
            repository, _, version = tag.rpartition(":")
            repositories[repository][version] = top


def _add_layer(files: ImageFiles, changes: Changes, last: str, old: str | None, new: NewImage) -> str:
    """Add the new layer's file with a name of the kind that the last one has; return that name."""
    if last.startswith(BLOBS):
        return changes.add_blob(new.digest, new.layer)
    if last.endswith(OWN_DIRECTORY):
        old = old or last.removesuffix(OWN_DIRECTORY)
        name = f"{_new_identifier(files, old, new)}{OWN_DIRECTORY}"
    else:
        name = f"{new.diff_id[7:]}.tar"
    changes.new[name] = new.layer
    if old is not None and f"{old}/json" in files:
        _add_directory(files, changes, old, name, new)
    return name


def _add_directory(files: ImageFiles, changes: Changes, old: str, layer: str, new: NewImage) -> None:
    """What engines before Docker 1.10 read of a layer: a directory with its parent's name."""
    identifier = _new_identifier(files, old, new)
    about = parsed(read_document(files, f"{old}/json"), f"{old}/json")
    about |= {"id": identifier, "parent": old}
    if f"{old}/VERSION" in files:
        changes.new[f"{identifier}/VERSION"] = read_document(files, f"{old}/VERSION")
    changes.new[f"{identifier}/json"] = dumped(about)
    if layer != f"{identifier}{OWN_DIRECTORY}":
        changes.new[f"{identifier}{OWN_DIRECTORY}"] = Link(f"../{layer}")


def _new_identifier(files: ImageFiles, old: str, new: NewImage) -> str:
    if f"{old}/json" not in files and f"{old}{OWN_DIRECTORY}" not in files:
        return new.digest[7:]
    return hashlib.sha256(f"{old} {new.diff_id}".encode()).hexdigest()


def _config_file(old: str, config: bytes) -> str:
    digest = hashlib.sha256(config).hexdigest()
    return f"{BLOBS}{digest}" if old.startswith(BLOBS) else f"{digest}.json"


def _identifier(repositories: Document, tag: str) -> str | None:
    """What the image's tag leads to."""
    repository, _, version = tag.rpartition(":")
    versions: Any = repositories.get(repository)
    found = versions.get(version) if isinstance(versions, dict) else None
    return found if isinstance(found, str) and IDENTIFIER.fullmatch(found) else None


def _text(entry: Document, key: str) -> str:
    value = entry.get(key)
    if not isinstance(value, str) or not value:
        raise FormatError(f"{MANIFEST}: an image without {key}")
    return value


def _texts(entry: Document, key: str) -> list[str]:
    values = entry.get(key)
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise FormatError(f"{MANIFEST}: an image without a list of {key}")
    return values
