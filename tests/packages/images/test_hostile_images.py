"""Images of people who mean harm: one line each, and nothing is written."""

from __future__ import annotations

import base64
import io
import json
import os
import tarfile
from typing import TYPE_CHECKING, Any

import pytest

from cfi.errors import FormatError
from sframegen.packages import kinds, passing
from sframegen.packages.images.documents import MAX_DOCUMENT
from sframegen.packages.images.layout_directory import pass_layout
from tests.packages.images.image_inputs import (
    CONFIG,
    INDEX,
    LAYER,
    MANIFEST,
    Layout,
    adding,
    archive,
    config_of,
    digest,
    docker_save,
    elf,
    entry,
    layer,
    one_image,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def refused(layout: Layout, tmp_path: Path, message: str) -> None:
    """Both as a directory and as an archive, and neither writes anything."""
    path, target = layout.write(tmp_path / "layout"), io.BytesIO()
    before = sorted(str(one) for one in tmp_path.rglob("*"))
    with pytest.raises(FormatError, match=message) as raised:
        pass_layout(path, adding([]), None, dry_run=False, force=False)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 2000
    with pytest.raises(FormatError, match=message):
        kinds.pass_through(archive(layout.complete()), "image.tar", adding([]), target, force=False)
    assert target.getvalue() == b""
    assert sorted(str(one) for one in tmp_path.rglob("*")) == before


def with_manifest(change: Callable[[dict[str, Any], Layout], None]) -> Layout:
    """A layout whose manifest was changed before it was named."""
    layout, base = Layout(), layer(entry("a", elf()))
    manifest = {"schemaVersion": 2, "config": layout.document(config_of([base]), CONFIG), "layers": [layout.blob(base, LAYER)]}
    change(manifest, layout)
    layout.add(layout.document(manifest, MANIFEST))
    return layout


def with_config(config: object) -> Layout:
    return with_manifest(lambda manifest, layout: manifest.update(config=layout.document(config, CONFIG)))


def with_layer(data: bytes) -> Layout:
    """A layout with one image, whose layer is this."""
    layout = Layout()
    layout.add(layout.image([data]))
    return layout


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda manifest, _: manifest["layers"][0].update(digest="sha256:../../../../etc/passwd"), "is not a digest"),
        (lambda manifest, _: manifest["layers"][0].update(digest=f"sha256:{'A' * 64}"), "is not a digest"),
        (lambda manifest, _: manifest["layers"][0].update(digest=f"md5:{'a' * 32}"), "is not a digest"),
        (lambda manifest, _: manifest["layers"][0].update(digest=f"sha256:{'a' * 64}"), "no such file"),
        (lambda manifest, _: manifest["layers"][0].update(digest=7), "is not a digest"),
        (lambda manifest, _: manifest["layers"][0].update(size=9), "expected 9"),
        (lambda manifest, _: manifest["layers"][0].update(size=-1), "no size"),
        (lambda manifest, _: manifest["layers"][0].update(size=True), "no size"),
        (lambda manifest, _: manifest["layers"][0].update(mediaType=f"{LAYER}+gzip+encrypted"), "is encrypted"),
        (
            lambda manifest, _: manifest["layers"][0].update(mediaType="application/vnd.oci.image.layer.nondistributable.v1.tar"),
            "not distrib",
        ),
        (
            lambda manifest, _: manifest["layers"][0].update(mediaType="application/vnd.docker.image.rootfs.foreign.diff.tar.gzip"),
            "not distr",
        ),
        (lambda manifest, _: manifest["layers"].append({**manifest["layers"][0], "mediaType": "text/x"}), "is not a layer"),
        (lambda manifest, _: manifest["layers"].append(manifest["layers"][0]), "2 layers, and 1"),
        (lambda manifest, _: manifest.update(layers={}), "is not a list"),
        (lambda manifest, _: manifest.update(config=[]), "expected a descriptor"),
        (lambda manifest, _: manifest.update(subject="x"), "expected a descriptor"),
    ],
)
def test_manifests(tmp_path: Path, change: Callable[[dict[str, Any], Layout], None], message: str) -> None:
    refused(with_manifest(change), tmp_path, message)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ([], "expected a JSON object"),
        ({}, "no list of layers"),
        ({"rootfs": {"diff_ids": "x"}}, "no list of layers"),
        ({"rootfs": {"diff_ids": ["sha256:x"]}}, "is not a digest"),
        (config_of([b"another layer"]), "unpacked contents have another digest"),
    ],
)
def test_configurations(tmp_path: Path, config: object, message: str) -> None:
    refused(with_config(config), tmp_path, message)


@pytest.mark.parametrize("name", ["config", "layer", "manifest"])
def test_other_contents_than_the_digest_says(tmp_path: Path, name: str) -> None:
    layout = one_image(entry("a", elf()))
    manifest = json.loads(layout.files["blobs/sha256/" + layout.manifests[0]["digest"][7:]])
    of = {"config": manifest["config"], "layer": manifest["layers"][0], "manifest": layout.manifests[0]}[name]["digest"]
    file = "blobs/sha256/" + of[7:]
    data = layout.files[file]
    layout.files[file] = data[:-1] + bytes([data[-1] ^ 1])
    refused(layout, tmp_path, "another digest|no JSON")


def test_indexes_in_indexes(tmp_path: Path) -> None:
    layout = one_image(entry("a", elf()))
    for _ in range(10):
        layout.manifests = [layout.document({"manifests": layout.manifests}, INDEX)]
    refused(layout, tmp_path, "more than 8 indexes within one another")


def test_index_that_names_one_image_a_million_times(tmp_path: Path) -> None:
    layout = one_image(entry("a", elf()))
    layout.manifests *= 10_001
    refused(layout, tmp_path, "more than 10,000 manifests")


def test_images_that_are_one_and_the_same_are_read_once(tmp_path: Path) -> None:
    """Two to the power of the depth, if each were read again."""
    layout = one_image(entry("a", elf()))
    for _ in range(7):
        layout.manifests = [layout.document({"manifests": layout.manifests}, INDEX)] * 30
    seen: list[str] = []
    pass_layout(layout.write(tmp_path / "layout"), adding(seen), None, dry_run=True, force=False)
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("index.json", b"", "no JSON|the file is empty"),
        ("index.json", b"[" * 100_000, "no JSON"),
        ("index.json", b'{"manifests": [' + b"9" * 5000 + b"]}", "no JSON"),
        ("index.json", b"\xff\xfe", "no JSON"),
        ("index.json", b"[]", "expected a JSON object"),
        ("index.json", b'{"manifests": [], "manifests": []}', "manifests appears twice"),
        ("index.json", b" " * (MAX_DOCUMENT + 1), "too many for a document"),
        ("index.json", b'{"manifests": 1}', "is not a list"),
        ("oci-layout", b'{"imageLayoutVersion": "2.0.0"}', "version 2.0.0 of the layout"),
        ("oci-layout", b'{"imageLayoutVersion": []}', r"version \[\] of the layout"),
    ],
)
def test_documents(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    layout = one_image(entry("a", elf()))
    complete = layout.complete() | {name: data}
    layout.complete = lambda: complete  # type: ignore[method-assign]
    refused(layout, tmp_path, message)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"no tar archive" * 100, "no header of a tar entry"),
        (layer(entry("../../etc/cron.d/x", elf())), "leads out"),
        (layer(entry("a/../../b", elf())), "leads out"),
        (layer(entry("a", elf()))[:540], "cut off"),
        (layer(entry("a", elf()), entry(".wh.a")), "tools disagree"),
        (layer(entry("a" * 5000, elf())), "a name of 5,000 characters"),
    ],
)
def test_layers(tmp_path: Path, data: bytes, message: str) -> None:
    refused(with_layer(data), tmp_path, message)


def test_layers_that_unpack_to_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passing, "ALLOWED_ANYHOW", 1 << 20)
    layout, base = Layout(), layer(entry("zeros", bytes(1 << 19)))
    layout.add(layout.image([base] * 12, "+gzip"))
    refused(layout, tmp_path, "unpacks to more than")


def test_every_truncation_of_an_archive_is_an_error() -> None:
    data = archive(docker_save([layer(entry("a", elf()))])).getvalue()
    end = data.rindex(b"manifest.json", 0, -3000) + 512
    for size in range(1, end, 97):
        with pytest.raises(FormatError):
            kinds.pass_through(io.BytesIO(data[:size]), "image.tar", adding([]), io.BytesIO(), force=False)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"manifest.json": b"{}"}, "expected a list of images"),
        ({"manifest.json": b"[7]"}, "expected a list of images"),
        ({"manifest.json": b"[{}]"}, "without Config"),
        ({"manifest.json": b'[{"Config": "../../etc/passwd", "Layers": []}]'}, "no such file"),
        ({"manifest.json": b'[{"Config": "x.json", "Layers": [1]}]', "x.json": b"{}"}, "without a list of Layers"),
        (
            {"manifest.json": json.dumps([{"Config": "0" * 64 + ".json", "Layers": []}]).encode(), "0" * 64 + ".json": b"{}"},
            "another digest",
        ),
        ({"repositories": b"[]"}, "expected a JSON object"),
    ],
)
def test_docker_save(files: dict[str, bytes], message: str) -> None:
    given, target = docker_save([layer(entry("a", elf()))], legacy=True), io.BytesIO()
    with pytest.raises(FormatError, match=message):
        kinds.pass_through(archive(given | files), "image.tar", adding([]), target, force=False)
    assert target.getvalue() == b""


def test_docker_save_with_two_manifests() -> None:
    files = docker_save([layer(entry("a", elf()))])
    data = layer(*(entry(name, one) for name, one in files.items()), entry("manifest.json", b"[]"))
    with pytest.raises(FormatError, match=r"manifest\.json: a second file of this name"):
        kinds.pass_through(io.BytesIO(data), "image.tar", adding([]), io.BytesIO(), force=False)


def test_device_beside_the_layers() -> None:
    files = docker_save([layer(entry("a", elf()))])
    data = layer(*(entry(name, one) for name, one in files.items()), entry("x", type=tarfile.FIFOTYPE))
    with pytest.raises(FormatError, match=r"x: a device or FIFO"):
        kinds.pass_through(io.BytesIO(data), "image.tar", adding([]), io.BytesIO(), force=False)


def test_links_in_archives_lead_nowhere_else() -> None:
    base = layer(entry("a", elf()))
    files = docker_save([base])
    name = f"{digest(base)[7:]}.tar"
    for target in ("/etc/passwd", "../../etc/passwd", name, "manifest.json/x"):
        link = entry(name, type=tarfile.SYMTYPE, linkname=target)
        data = layer(*(entry(one, data) for one, data in files.items() if one != name), link)
        with pytest.raises(FormatError, match="no such file"):
            kinds.pass_through(io.BytesIO(data), "image.tar", adding([]), io.BytesIO(), force=False)


@pytest.mark.parametrize("name", ["index.json", "oci-layout", "blobs", "blobs/sha256", "manifest", "layer"])
@pytest.mark.parametrize("what", ["link", "fifo"])
def test_layouts_in_which_names_are_something_else(tmp_path: Path, name: str, what: str) -> None:
    layout = one_image(entry("a", elf()))
    path = layout.write(tmp_path / "layout")
    named = {"manifest": layout.manifests[0]["digest"], "layer": digest(layer(entry("a", elf())))}
    there = path / (f"blobs/sha256/{named[name][7:]}" if name in named else name)
    moved = tmp_path / "moved"
    there.rename(moved)
    if what == "link":
        there.symlink_to(moved)
    else:
        os.mkfifo(there)
    before = {str(one): one.read_bytes() for one in tmp_path.rglob("*") if one.is_file()}
    with pytest.raises((OSError, FormatError), match=r"symbolic link|not a regular file|Not a directory"):
        pass_layout(path, adding([]), None, dry_run=False, force=False)
    assert {str(one): one.read_bytes() for one in tmp_path.rglob("*") if one.is_file()} == before


def test_new_blobs_replace_nothing_that_others_put_there(tmp_path: Path) -> None:
    """The names of new blobs can be foreseen: a link there would lead our bytes elsewhere."""
    layout = one_image(entry("a", elf()))
    first, second = layout.write(tmp_path / "first"), layout.write(tmp_path / "second")
    pass_layout(first, adding([]), None, dry_run=False, force=False)
    [new] = {one.name for one in (first / "blobs/sha256").iterdir() if one.read_bytes()[257:262] == b"ustar"} - {
        one.name for one in (second / "blobs/sha256").iterdir()
    }
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (second / "blobs/sha256" / new).symlink_to(victim)
    with pytest.raises(OSError, match="a symbolic link has come in its way"):
        pass_layout(second, adding([]), None, dry_run=False, force=False)
    assert victim.read_bytes() == b"precious"
    assert json.loads((second / "index.json").read_bytes()) == json.loads(layout.complete()["index.json"])


def test_descriptor_with_a_copy_of_the_contents(tmp_path: Path) -> None:
    """`data` in a descriptor would be that of the old manifest."""
    layout = Layout()
    base = layout.image([layer(entry("a", elf()))])
    layout.add({**base, "data": "AAAA"})
    path = layout.write(tmp_path / "layout")
    pass_layout(path, adding([]), None, dry_run=False, force=False)
    [new] = json.loads((path / "index.json").read_bytes())["manifests"]
    assert new["digest"] != base["digest"]
    assert digest(base64.b64decode(new["data"])) == new["digest"]


def test_one_layer_many_thousand_times(tmp_path: Path) -> None:
    """Each would be unpacked again."""

    def repeat(manifest: dict[str, Any], layout: Layout) -> None:
        base = layer(entry("a", elf()))
        manifest["layers"] *= 1001
        manifest["config"] = layout.document(config_of([base] * 1001), CONFIG)

    refused(with_manifest(repeat), tmp_path, "1,001 layers; at most 1,000 are read")
