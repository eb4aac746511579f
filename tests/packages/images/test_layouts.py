"""OCI layouts and `docker save` archives: what is rewritten, and what stays."""

from __future__ import annotations

import gzip
import io
import json
import re
import tarfile
from typing import TYPE_CHECKING, Any

import pytest

from cfi.errors import FormatError
from linker.files.refusals import RefusedError
from sframegen import add_section
from sframegen.packages import kinds
from sframegen.packages.images.layout_directory import pass_layout
from tests.packages.images.image_inputs import (
    ADDED,
    CONFIG,
    INDEX,
    LAYER,
    MANIFEST,
    PACKED,
    Layout,
    adding,
    archive,
    config_of,
    digest,
    directory,
    docker_save,
    elf,
    entries_of,
    entry,
    hard_link,
    layer,
    one_image,
    read_archive,
    symlink,
)

if TYPE_CHECKING:
    from pathlib import Path

    from sframegen.packages.passing import Passed

CAPABILITY = {"SCHILY.xattr.security.capability": "\1\0\0\2\0 \0\0"}


def blob(path: Path, descriptor: dict[str, Any]) -> bytes:
    """A blob, which is that of its digest."""
    data: bytes = (path / "blobs" / descriptor["digest"].replace(":", "/")).read_bytes()
    assert (digest(data), len(data)) == (descriptor["digest"], descriptor["size"])
    return data


def image(path: Path, number: int = 0) -> tuple[dict[str, Any], dict[str, Any], list[bytes]]:
    """The manifest, configuration and tar archives of an image in a layout."""
    manifest = json.loads(blob(path, json.loads((path / "index.json").read_bytes())["manifests"][number]))
    config = json.loads(blob(path, manifest["config"]))
    layers = []
    for one, diff_id in zip(manifest["layers"], config["rootfs"]["diff_ids"], strict=True):
        data = blob(path, one)
        layers.append(gzip.decompress(data) if one["mediaType"].endswith("gzip") else data)
        assert digest(layers[-1]) == diff_id
    return manifest, config, layers


def pass_archive(data: bytes, seen: list[str] | None = None, *, force: bool = False) -> tuple[Passed, bytes]:
    target = io.BytesIO()
    passed = kinds.pass_through(io.BytesIO(data), "image.tar", adding([] if seen is None else seen), target, force=force)
    return passed, target.getvalue()


def test_new_layer_has_the_changed_file_with_its_directories_and_metadata(tmp_path: Path) -> None:
    base = layer(
        directory("root", mode=0o700),
        directory("root/bin", mode=0o2755, gid=50),
        entry("root/bin/a", elf(), mode=0o4755, uid=5, gid=6, mtime=77, pax_headers=CAPABILITY),
        entry("root/bin/b", b"no ELF file"),
        hard_link("root/c", "root/bin/a"),
    )
    layout = Layout()
    layout.add(layout.image([base], "+gzip", config_of([base], created="2026-01-01T00:00:00Z")))
    path, seen = layout.write(tmp_path / "layout"), list[str]()
    passed, written, *_ = pass_layout(path, adding(seen), None, dry_run=False, force=False)
    assert (passed.kind, passed.elf_files, passed.changed, written.output) == ("OCI layout", 1, 1, str(path))
    assert seen == ["root/bin/a"]
    manifest, config, layers = image(path)
    assert [one["mediaType"] for one in manifest["layers"]] == [LAYER + "+gzip"] * 2
    assert layers[0] == base
    assert [(one.name, one.type, one.mode) for one in entries_of(layers[1])] == [
        ("root", b"5", 0o700),
        ("root/bin", b"5", 0o2755),
        ("root/bin/a", b"0", 0o4755),
        ("root/c", b"1", 0o4755),
    ]
    new = entries_of(layers[1])[2]
    assert (new.uid, new.gid, new.mtime, new.pax_headers) == (5, 6, 77, CAPABILITY)
    assert read_archive(layers[1])["root/bin/a"] == elf() + ADDED
    assert config["history"][1:] == [{"created": "2026-01-01T00:00:00Z", "created_by": "sframegen"}]


@pytest.mark.parametrize("packed", PACKED)
def test_compression_is_that_of_the_last_layer(tmp_path: Path, packed: str) -> None:
    path = one_image(entry("a", elf()), packed=packed).write(tmp_path / "layout")
    pass_layout(path, adding([]), None, dry_run=False, force=False)
    manifest = json.loads(blob(path, json.loads((path / "index.json").read_bytes())["manifests"][0]))
    last = blob(path, manifest["layers"][1])
    assert manifest["layers"][1]["mediaType"] == LAYER + packed
    assert last[:2] == PACKED[packed](layer(entry("a")))[:2]


def test_equal_images_give_equal_bytes_and_a_second_run_changes_nothing(tmp_path: Path) -> None:
    layout = one_image(entry("a", elf()), entry("b", elf("b")), packed="+gzip")
    one, other = (layout.write(tmp_path / name) for name in ("one", "other"))
    for path in (one, other):
        pass_layout(path, adding([]), None, dry_run=False, force=False)
    files = {path.relative_to(one): path.read_bytes() for path in one.rglob("*") if path.is_file()}
    assert files == {path.relative_to(other): path.read_bytes() for path in other.rglob("*") if path.is_file()}
    passed, written, *_ = pass_layout(one, adding([]), None, dry_run=False, force=False)
    assert (passed.elf_files, passed.changed, written.output) == (2, 0, "")
    assert files == {path.relative_to(one): path.read_bytes() for path in one.rglob("*") if path.is_file()}


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    layout = one_image(entry("a", elf()))
    path = layout.write(tmp_path / "layout")
    passed, written, *_ = pass_layout(path, adding([]), None, dry_run=True, force=False)
    assert (passed.changed, written.output) == (1, "")
    assert {str(one.relative_to(path)) for one in path.rglob("*") if one.is_file()} == layout.complete().keys()


def test_new_directory(tmp_path: Path) -> None:
    layout = one_image(entry("a", elf()))
    path, new = layout.write(tmp_path / "layout"), tmp_path / "new"
    pass_layout(path, adding([]), new, dry_run=False, force=False)
    assert len(image(new)[2]) == 2
    assert {str(one.relative_to(path)): one.read_bytes() for one in path.rglob("*") if one.is_file()} == layout.complete()
    with pytest.raises(OSError, match="needs a new directory"):
        pass_layout(path, adding([]), new, dry_run=False, force=False)


def test_images_for_several_platforms_and_tags(tmp_path: Path) -> None:
    layout = Layout()
    platforms = [
        {**layout.image([layer(entry("a", elf(name)))]), "platform": {"os": "linux", "architecture": name}}
        for name in ("amd64", "arm64")
    ]
    nested = layout.document({"schemaVersion": 2, "mediaType": INDEX, "manifests": platforms}, INDEX)
    layout.add(nested, "one")
    layout.add(nested, "two")
    layout.add(layout.image([layer(entry("text", b"no ELF file"))]), "three")
    path, seen = layout.write(tmp_path / "layout"), list[str]()
    pass_layout(path, adding(seen), None, dry_run=False, force=False)
    assert [one.partition("@")[0] for one in seen] == ["linux-amd64", "linux-arm64"]
    one, two, three = json.loads((path / "index.json").read_bytes())["manifests"]
    assert one["digest"] == two["digest"] != nested["digest"]
    assert three == layout.manifests[2]
    for descriptor in json.loads(blob(path, one))["manifests"]:
        assert len(json.loads(blob(path, descriptor))["layers"]) == 2
        assert descriptor["platform"]["os"] == "linux"


def test_what_is_no_image_stays(tmp_path: Path) -> None:
    layout = one_image(entry("a", elf()))
    chart = {"schemaVersion": 2, "config": layout.blob(b"{}", "application/vnd.cncf.helm.config"), "layers": []}
    layout.add(layout.document(chart, MANIFEST), "chart")
    path = layout.write(tmp_path / "layout")
    pass_layout(path, adding([]), None, dry_run=False, force=False)
    assert json.loads((path / "index.json").read_bytes())["manifests"][1] == layout.manifests[1]


def signed(kind: str) -> Layout:
    layout = Layout()
    base = layout.image([layer(entry("a", elf()))])
    layout.add(base)
    if kind == "attestation":
        about = {"vnd.docker.reference.digest": base["digest"], "vnd.docker.reference.type": "attestation-manifest"}
        statement = layout.blob(b"{}", "application/vnd.in-toto+json")
        manifest = {"schemaVersion": 2, "config": layout.document(config_of([]), CONFIG), "layers": [statement]}
        layout.add({**layout.document(manifest, MANIFEST), "annotations": about}, "statement")
    elif kind == "cosign":
        signature = {"schemaVersion": 2, "config": layout.document(config_of([]), CONFIG), "layers": []}
        layout.add(layout.document(signature, MANIFEST), f"sha256-{base['digest'][7:]}.sig")
    else:
        empty = layout.blob(b"{}", "application/vnd.oci.empty.v1+json")
        referrer = {"schemaVersion": 2, "artifactType": "application/x.sbom", "config": empty, "layers": [empty], "subject": base}
        layout.add(layout.document(referrer, MANIFEST), "sbom")
    return layout


@pytest.mark.parametrize(
    ("kind", "what"), [("attestation", "a build attestation"), ("cosign", r"tag sha256-.*\.sig"), ("subject", "x.sbom")]
)
def test_signed_images_need_force(tmp_path: Path, kind: str, what: str) -> None:
    layout = signed(kind)
    path = layout.write(tmp_path / "layout")
    with pytest.raises(RefusedError, match=f"signed: .*{what}"):
        pass_layout(path, adding([]), None, dry_run=False, force=False)
    assert {str(one.relative_to(path)): one.read_bytes() for one in path.rglob("*") if one.is_file()} == layout.complete()
    passed, *_ = pass_layout(path, adding([]), None, dry_run=False, force=True)
    assert passed.signed
    assert json.loads((path / "index.json").read_bytes())["manifests"][1] == layout.manifests[1]


@pytest.mark.parametrize("tag", ["latest", f"sha256-{'0' * 64}.sig"])
def test_signatures_of_other_images_do_not_matter(tmp_path: Path, tag: str) -> None:
    layout = one_image(entry("a", elf()))
    layout.add(layout.image([layer(entry("b", b"text"))]), tag)
    passed, *_ = pass_layout(layout.write(tmp_path / "layout"), adding([]), None, dry_run=False, force=False)
    assert (passed.changed, passed.signed) == (1, "")


def test_archive_of_a_layout_keeps_order_and_drops_what_nothing_names() -> None:
    given = archive(one_image(entry("a", elf())).complete()).getvalue()
    passed, data = pass_archive(given)
    assert (passed.kind, passed.changed) == ("image archive", 1)
    before, after = ([one.name for one in entries_of(data)] for data in (given, data))
    dropped = [name for name in before if name not in after]
    assert len(dropped) == 2  # the old manifest and configuration
    assert [name for name in after if name in before] == [name for name in before if name not in dropped]
    assert pass_archive(given)[1] == data
    assert len(data) % 10240 == 0


def test_compressed_archive_stays_compressed() -> None:
    _, data = pass_archive(gzip.compress(archive(docker_save([layer(entry("a", elf()))])).getvalue(), mtime=5))
    assert len(json.loads(read_archive(gzip.decompress(data))["manifest.json"])[0]["Layers"]) == 2


@pytest.mark.parametrize("legacy", [False, True])
def test_docker_save(*, legacy: bool) -> None:
    base = [layer(entry("a", elf()), entry("b", elf())), layer(entry(".wh.b"), symlink("c", "/a"))]
    seen: list[str] = []
    passed, data = pass_archive(archive(docker_save(base, legacy=legacy)).getvalue(), seen)
    assert (passed.kind, seen) == ("image archive", ["a"])
    files = read_archive(data)
    [about] = json.loads(files["manifest.json"])
    config = files[about["Config"]]
    assert about["Config"] == f"{digest(config)[7:]}.json"
    assert [digest(files[name]) for name in about["Layers"]] == json.loads(config)["rootfs"]["diff_ids"]
    assert [one.name for one in entries_of(files[about["Layers"][2]])] == ["a"]
    assert sum(name.endswith(".json") and len(name) == 69 for name in files) == 1
    if legacy:
        top = json.loads(files["repositories"])["repo"]["tag"]
        assert about["Layers"][2] == f"{top}/layer.tar"
        assert json.loads(files[f"{top}/json"]) == {"id": top, "os": "linux", "parent": f"{2:064x}"}
        assert files[f"{top}/VERSION"] == b"1.0"


def test_docker_save_that_is_a_layout_too() -> None:
    layout, base = Layout(), layer(entry("a", elf()))
    layout.add(layout.image([base]))
    names = {digest(data): name for name, data in layout.files.items()}
    manifest = json.loads(layout.files["blobs/sha256/" + layout.manifests[0]["digest"][7:]])
    about = [{"Config": names[manifest["config"]["digest"]], "RepoTags": ["repo:tag"], "Layers": [names[digest(base)]]}]
    seen: list[str] = []
    _, data = pass_archive(archive(layout.complete() | {"manifest.json": json.dumps(about).encode()}).getvalue(), seen)
    assert seen == ["a"]
    files = read_archive(data)
    [new] = json.loads(files["manifest.json"])
    [descriptor] = json.loads(files["index.json"])["manifests"]
    manifest = json.loads(files["blobs/sha256/" + descriptor["digest"][7:]])
    assert new["Config"] == "blobs/sha256/" + manifest["config"]["digest"][7:]
    assert new["Layers"] == ["blobs/sha256/" + one["digest"][7:] for one in manifest["layers"]]
    assert all(digest(files[name])[7:] == name[13:] for name in files if name.startswith("blobs/"))


def test_a_root_file_system_is_a_tar_archive_and_no_image() -> None:
    """Its first name is the root directory, as that of some images."""
    null = entry("./dev/null", type=tarfile.CHRTYPE, devmajor=1, devminor=3)
    data = layer(directory("./"), null, entry("./bin/a", elf()), entry("./text", b"text"))
    passed, new = pass_archive(data)
    assert (passed.kind, passed.changed) == ("tar", 1)
    assert [one.name for one in entries_of(new)] == [one.name for one in entries_of(data)]


def test_a_tar_archive_that_only_begins_as_an_image_is_a_tar_archive() -> None:
    seen: list[str] = []
    passed, data = pass_archive(archive({"blobs/a": elf(), "b": b"text"}).getvalue(), seen)
    assert (passed.kind, seen, read_archive(data)["blobs/a"]) == ("tar", ["blobs/a"], elf() + ADDED)


IMA = {"SCHILY.xattr.security.ima": "x", "SCHILY.xattr.user.kept": "y"}


@pytest.mark.parametrize(
    ("entries", "what"),
    [
        ([entry("lib/a.so", elf()), entry("lib/.a.so.hmac", b"x")], r"a checksum in lib/\.a\.so\.hmac"),
        ([entry("lib/a.so", elf()), entry("lib/a.chk", b"x")], r"a checksum in lib/a\.chk"),
        ([entry("lib/a.so", elf(), pax_headers=IMA)], r"its attribute security\.ima"),
    ],
)
def test_files_whose_checksums_would_no_longer_hold_need_force(
    tmp_path: Path, entries: list[tuple[tarfile.TarInfo, bytes]], what: str
) -> None:
    path, seen = one_image(entry("b", elf()), *entries).write(tmp_path / "layout"), list[str]()
    passed, *_ = pass_layout(path, adding(seen), None, dry_run=False, force=False)
    assert seen == ["b"]
    [warning] = passed.warnings
    assert re.fullmatch(rf"lib/a\.so: signed: {what}", warning)
    pass_layout(path, adding(seen), None, dry_run=False, force=True)
    assert "lib/a.so" in seen
    [new] = [one for one in entries_of(image(path)[2][-1]) if one.name == "lib/a.so"]
    assert new.pax_headers in ({}, {"SCHILY.xattr.user.kept": "y"})


def test_the_last_entry_of_a_layer_may_lack_its_padding(tmp_path: Path) -> None:
    """As `umoci insert` writes layers; contents that are cut off are refused."""
    data = layer(entry("a", elf()), entry("b", b"text"))
    end = data.index(b"text" + bytes(508)) + 4
    layouts = [Layout() for _ in range(2)]
    for number, layout in enumerate(layouts):
        layout.add(layout.image([data[: end - number]]))
    assert add_section(layouts[0].write(tmp_path / "0"), dry_run=True).package is not None
    with pytest.raises(FormatError, match="b: cut off: 1 bytes are missing"):
        add_section(layouts[1].write(tmp_path / "1"), dry_run=True)
