"""Images made in memory: layers from lists of entries, layouts and `docker save` archives around them."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import struct
import tarfile
from typing import TYPE_CHECKING, Any

from tests.support.zstandard import zstd

if TYPE_CHECKING:
    from pathlib import Path

    from sframegen.packages.passing import Visit

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
EXECUTABLE = struct.pack("<4sBBB9xHHI", b"\x7fELF", 2, 1, 1, 3, 62, 1)  # ELF64, little-endian, a library for x86-64
ADDED = b"a section"
PACKED = {"": bytes, "+gzip": lambda data: gzip.compress(data, mtime=0), "+zstd": zstd.compress}


def elf(text: str = "") -> bytes:
    """What passes for a linked ELF file until it is read further."""
    return EXECUTABLE.ljust(64, b"\0") + text.encode()


def adding(seen: list[str]) -> Visit:
    """A visit that changes each file that it has not changed before, and notes its path."""

    def visit(path: str, given: Path, changed: Path) -> bool:
        seen.append(path)
        data = given.read_bytes()
        if data.endswith(ADDED):
            return False
        changed.write_bytes(data + ADDED)
        return True

    return visit


def entry(name: str, data: bytes = b"", **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    """A regular file, unless `type` says otherwise."""
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for key, value in fields.items():
        setattr(info, key, value)
    return info, data


def directory(name: str, **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    return entry(name, type=tarfile.DIRTYPE, **{"mode": 0o755, **fields})


def symlink(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return entry(name, type=tarfile.SYMTYPE, linkname=target)


def hard_link(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return entry(name, type=tarfile.LNKTYPE, linkname=target)


def layer(*entries: tuple[tarfile.TarInfo, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for info, data in entries:
            archive.addfile(info, io.BytesIO(data))
    return file.getvalue()


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def described(data: bytes, media_type: str, **more: Any) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": digest(data), "size": len(data), **more}


def config_of(layers: list[bytes], **more: Any) -> dict[str, Any]:
    history = [{"created_by": f"layer {number}"} for number in range(len(layers))]
    rootfs = {"type": "layers", "diff_ids": [digest(one) for one in layers]}
    return {"architecture": "amd64", "os": "linux", "config": {}, "rootfs": rootfs, "history": history, **more}


class Layout:
    """The files of an OCI layout, by name."""

    def __init__(self) -> None:
        self.files = {"oci-layout": b'{"imageLayoutVersion":"1.0.0"}'}
        self.manifests: list[dict[str, Any]] = []

    def blob(self, data: bytes, media_type: str, **more: Any) -> dict[str, Any]:
        """Add a blob; return its descriptor."""
        self.files["blobs/" + digest(data).replace(":", "/")] = data
        return described(data, media_type, **more)

    def document(self, document: object, media_type: str, **more: Any) -> dict[str, Any]:
        return self.blob(json.dumps(document).encode(), media_type, **more)

    def image(self, layers: list[bytes], packed: str = "", config: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
        """The descriptor of an image with these tar archives as its layers. `more`: of its manifest."""
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": self.document(config or config_of(layers), CONFIG),
            "layers": [self.blob(PACKED[packed](one), LAYER + packed) for one in layers],
            **more,
        }
        return self.document(manifest, MANIFEST)

    def add(self, descriptor: dict[str, Any], name: str = "latest") -> None:
        """Name an image in the index."""
        self.manifests.append(
            {**descriptor, "annotations": {"org.opencontainers.image.ref.name": name, **descriptor.get("annotations", {})}}
        )

    def complete(self) -> dict[str, bytes]:
        return self.files | {"index.json": json.dumps({"schemaVersion": 2, "manifests": self.manifests}).encode()}

    def write(self, path: Path) -> Path:
        return write(self.complete(), path)


def one_image(*entries: tuple[tarfile.TarInfo, bytes], packed: str = "") -> Layout:
    """A layout with one image of one layer."""
    layout = Layout()
    layout.add(layout.image([layer(*entries)], packed))
    return layout


def write(files: dict[str, bytes], path: Path) -> Path:
    for name, data in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    return path


def archive(files: dict[str, bytes]) -> io.BytesIO:
    return io.BytesIO(layer(*(entry(name, data) for name, data in files.items())))


def docker_save(layers: list[bytes], *, legacy: bool = False, tag: str = "repo:tag") -> dict[str, bytes]:
    """What `docker save` writes. `legacy`: a directory for each layer, as up to Docker 24."""
    config = json.dumps(config_of(layers)).encode()
    name = f"{digest(config)[7:]}.json"
    names, files = [], {name: config}
    for number, one in enumerate(layers):
        identifier = f"{number + 1:064x}"
        if legacy:
            files[f"{identifier}/VERSION"] = b"1.0"
            files[f"{identifier}/json"] = json.dumps({"id": identifier, "os": "linux"}).encode()
        names.append(f"{identifier}/layer.tar" if legacy else f"{digest(one)[7:]}.tar")
        files[names[-1]] = one
    files["manifest.json"] = json.dumps([{"Config": name, "RepoTags": [tag], "Layers": names}]).encode()
    if legacy:
        repository, _, version = tag.rpartition(":")
        files["repositories"] = json.dumps({repository: {version: f"{len(layers):064x}"}}).encode()
    return files


def read_archive(data: bytes) -> dict[str, bytes]:
    """Names and contents of the regular files."""
    with tarfile.open(fileobj=io.BytesIO(data)) as file:
        return {one.name: file.extractfile(one).read() for one in file if one.isreg()}  # type: ignore[union-attr]


def entries_of(data: bytes) -> list[tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(data)) as file:
        return file.getmembers()
