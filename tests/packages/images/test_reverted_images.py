"""remove gives an image back its digests: layers that sframegen added go, and no others."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import pytest

from cfi.errors import FormatError
from sframegen.packages import kinds
from sframegen.packages.images.edited_document import NOTE, EditedDocument
from sframegen.packages.images.layout_directory import pass_layout
from sframegen.packages.images.oci_index import ONE_MORE_LAYER, REWRITTEN
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
    entry,
    hard_link,
    layer,
    read_archive,
)

if TYPE_CHECKING:
    import tarfile
    from collections.abc import Callable
    from pathlib import Path

    from sframegen.packages.passing import Passed, Visit

SPACED = {"indent": 3, "ensure_ascii": True}  # nothing that sframegen would write


def removing(_: str, given: Path, changed: Path) -> bool:
    data = given.read_bytes()
    if ADDED not in data:
        return False
    changed.write_bytes(data.partition(ADDED)[0])
    return True


def adding_again(_: str, given: Path, changed: Path) -> bool:
    """As add-section --replace, with another section."""
    changed.write_bytes(given.read_bytes().partition(ADDED)[0] + ADDED + b" of another kind")
    return True


def pass_archive(data: bytes, visit: Visit) -> tuple[Passed, bytes]:
    target = io.BytesIO()
    passed = kinds.pass_through(io.BytesIO(data), "image.tar", visit, target, force=False)
    return passed, target.getvalue()


def in_place(path: Path, visit: Visit) -> Passed:
    return pass_layout(path, visit, None, dry_run=False, force=False).passed


def base() -> bytes:
    return layer(
        directory("opt", mode=0o2750, uid=9),
        entry("opt/a", elf(), mode=0o4755, uid=5, gid=6, mtime=77.5, pax_headers={"SCHILY.xattr.user.x": "y"}),
        entry("text", b"no ELF file"),
        hard_link("same", "opt/a"),
    )


def of_layers(*layers: bytes, packed: str = "", **config: Any) -> Layout:
    """An image whose documents have white space and escapes, as those of other tools."""
    layout = Layout()
    about = json.dumps(config_of(list(layers), author="é", **config), **SPACED).encode()  # type: ignore[arg-type]
    manifest = {
        "schemaVersion": 2,
        "config": layout.blob(about, CONFIG),
        "layers": [layout.blob(PACKED[packed](one), LAYER + packed) for one in layers],
        "annotations": {"x": "<&é>"},
    }
    layout.add(layout.blob(json.dumps(manifest, **SPACED).encode(), MANIFEST))  # type: ignore[arg-type]
    return layout


def state(path: Path) -> dict[str, bytes]:
    return {str(one.relative_to(path)): one.read_bytes() for one in path.rglob("*") if one.is_file()}


def layers_of(path: Path) -> int:
    [image] = json.loads((path / "index.json").read_bytes())["manifests"]
    return len(json.loads((path / "blobs/sha256" / image["digest"][7:]).read_bytes())["layers"])


def edited(path: Path, change: Callable[[dict[str, Any], dict[str, Any], Layout], None]) -> None:
    """Another tool changes the image of a layout: its manifest and configuration, in new blobs."""
    index = json.loads((path / "index.json").read_bytes())
    blobs = path / "blobs/sha256"
    manifest = json.loads((blobs / index["manifests"][0]["digest"][7:]).read_bytes())
    config = json.loads((blobs / manifest["config"]["digest"][7:]).read_bytes())
    new = Layout()
    change(manifest, config, new)
    manifest["config"] = new.document(config, CONFIG)
    new.add(new.document(manifest, MANIFEST))
    new.write(path)


@pytest.mark.parametrize("packed", PACKED)
@pytest.mark.parametrize("config", [{}, {"history": []}, {"created": "2026-01-01T00:00:00Z"}])
def test_a_layout_is_what_it_was(tmp_path: Path, packed: str, config: dict[str, Any]) -> None:
    path = of_layers(base(), layer(entry("b", elf("b"))), packed=packed, **config).write(tmp_path / "layout")
    before = state(path)
    in_place(path, adding([]))
    assert state(path)["index.json"] != before["index.json"]
    passed = in_place(path, removing)
    assert (passed.changed, passed.differs) == (2, "")
    assert state(path) == before  # no blob of sframegen's is left


def test_into_a_new_directory_too(tmp_path: Path) -> None:
    path = of_layers(base()).write(tmp_path / "layout")
    before = state(path)
    pass_layout(path, adding([]), tmp_path / "added", dry_run=False, force=False)
    pass_layout(tmp_path / "added", removing, tmp_path / "removed", dry_run=False, force=False)
    assert state(tmp_path / "removed") == before


def test_images_for_several_platforms(tmp_path: Path) -> None:
    layout = Layout()
    platforms = [
        {**layout.image([layer(entry("a", elf(name)))], "+gzip"), "platform": {"os": "linux", "architecture": name}}
        for name in ("amd64", "arm64")
    ]
    nested = layout.blob(json.dumps({"schemaVersion": 2, "manifests": platforms}, indent=2).encode(), INDEX)
    layout.add(nested, "one")
    layout.add(nested, "two")
    layout.add(layout.image([layer(entry("text", b"no ELF file"))]), "three")
    path = layout.write(tmp_path / "layout")
    in_place(path, adding([]))
    assert in_place(path, removing).differs == ""
    assert [one["digest"] for one in json.loads((path / "index.json").read_bytes())["manifests"][:2]] == [nested["digest"]] * 2
    assert state(path).keys() == layout.complete().keys()


def test_sections_that_were_added_twice(tmp_path: Path) -> None:
    path = of_layers(base(), layer(entry("b", elf("b")))).write(tmp_path / "layout")
    before = state(path)
    for visit in (adding([]), adding_again, adding([])):
        in_place(path, visit)
    assert in_place(path, removing).differs == ""
    assert state(path) == before


def test_an_archive_of_a_layout_has_the_digests_that_it_had() -> None:
    given = of_layers(base()).complete()
    _, added = pass_archive(archive(given).getvalue(), adding([]))
    passed, data = pass_archive(added, removing)
    assert passed.differs == ""
    assert read_archive(data) == given


@pytest.mark.parametrize("legacy", [False, True])
def test_docker_save(*, legacy: bool) -> None:
    given = docker_save([base(), layer(entry("b", elf("b")))], legacy=legacy)
    data = archive(given).getvalue()
    for visit in (adding([]), adding_again, removing):
        passed, data = pass_archive(data, visit)
    files = read_archive(data)
    assert passed.differs == ""
    assert files.keys() == given.keys()
    assert json.loads(files.pop("manifest.json")) == json.loads(given.pop("manifest.json"))
    if legacy:
        assert json.loads(files.pop("repositories")) == json.loads(given.pop("repositories"))
    assert files == {name: given[name] for name in files}


def test_blobs_that_another_image_has_stay(tmp_path: Path) -> None:
    """A second name of the changed image, which its owner gave another configuration."""
    path = of_layers(base()).write(tmp_path / "layout")
    in_place(path, adding([]))
    index = json.loads((path / "index.json").read_bytes())
    manifest = json.loads((path / "blobs/sha256" / index["manifests"][0]["digest"][7:]).read_bytes())
    other = Layout()
    kept = {**manifest, "config": other.blob(b"{}", "application/vnd.other.config")}
    index["manifests"].append(other.document(kept, MANIFEST))
    other.write(path)
    (path / "index.json").write_text(json.dumps(index))
    in_place(path, removing)
    assert (path / "blobs/sha256" / manifest["layers"][-1]["digest"][7:]).exists()
    assert not (path / "blobs/sha256" / manifest["config"]["digest"][7:]).exists()


def another_layer(manifest: dict[str, Any], config: dict[str, Any], new: Layout) -> None:
    top = layer(entry("other", b"of another tool"))
    manifest["layers"].append(new.blob(top, LAYER))
    config["rootfs"]["diff_ids"].append(digest(top))
    config["history"].append({"created_by": "another tool"})


def another_setting(_: dict[str, Any], config: dict[str, Any], __: Layout) -> None:
    config["config"] = {"Cmd": ["x"]}


def written_again(manifest: dict[str, Any], config: dict[str, Any], _: Layout) -> None:
    """As skopeo converts an image."""
    del config[NOTE], manifest[NOTE]


@pytest.mark.parametrize(
    ("change", "layers", "differs"),
    [(another_layer, 4, ONE_MORE_LAYER), (another_setting, 1, REWRITTEN), (written_again, 1, REWRITTEN)],
)
def test_after_another_tool(tmp_path: Path, change: Any, layers: int, differs: str) -> None:
    """On its layer, one more layer restores the files; else ours goes, and what it wrote stays."""
    path = of_layers(base()).write(tmp_path / "layout")
    in_place(path, adding([]))
    edited(path, change)
    passed = in_place(path, removing)
    assert (passed.changed, passed.differs) == (1, differs)
    assert layers_of(path) == layers
    assert in_place(path, removing).changed == 0


SECTION = elf() + ADDED
FORGED = [
    [entry("opt/a", SECTION, mode=0o4755, uid=5, gid=6, mtime=77.5, pax_headers={"SCHILY.xattr.user.x": "y"}), entry("new", b"")],
    [entry("opt/a", SECTION, mode=0o755, uid=5, gid=6, mtime=77.5, pax_headers={"SCHILY.xattr.user.x": "y"})],  # another mode
    [entry("opt/a", SECTION, mode=0o4755, uid=5, gid=6, mtime=77.5)],  # without its attribute
    [entry("opt/a", SECTION, mode=0o4755, uid=5, gid=6, mtime=77.5, pax_headers={"SCHILY.xattr.user.x": "y"})],  # no longer `same`
    [entry("opt/a", elf("other") + ADDED, mode=0o4755, uid=5, gid=6, mtime=77.5, pax_headers={"SCHILY.xattr.user.x": "y"})],
    [directory("opt", mode=0o777), entry("opt/a", SECTION, mode=0o4755, uid=5, gid=6, mtime=77.5)],
    [entry("opt/.wh.a"), entry("b", SECTION)],
]


@pytest.mark.parametrize("entries", FORGED)
def test_a_layer_that_only_says_that_it_is_ours_stays(tmp_path: Path, entries: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    """Its image notes the digest of the one without it, as ours does, and the layer does more than to add sections."""
    first, forged = base(), layer(*entries)
    original = of_layers(first)
    config = json.dumps(config_of([first], author="é"), **SPACED).encode()  # type: ignore[arg-type]
    document = EditedDocument(config, "config")
    document.append(("rootfs", "diff_ids"), digest(forged))
    document.append(("history",), {"created_by": "sframegen"})
    document.note(digest(config))
    layout = Layout()
    layout.files |= original.files
    manifest = {
        "schemaVersion": 2,
        "config": layout.blob(document.data, CONFIG),
        "layers": [layout.blob(first, LAYER), layout.blob(forged, LAYER)],
    }
    layout.add(layout.document(manifest, MANIFEST))
    path = layout.write(tmp_path / "layout")
    passed = in_place(path, removing)
    assert (passed.changed, passed.differs) == (1, ONE_MORE_LAYER)
    assert (path / "blobs/sha256" / digest(forged)[7:]).exists()
    assert layers_of(path) == 3


@pytest.mark.parametrize("value", ["sha256:x", ["sha256:../../x"], [7], {}])
def test_what_is_no_note_is_one_line(tmp_path: Path, value: Any) -> None:
    path = of_layers(base(), **{NOTE: value}).write(tmp_path / "layout")
    with pytest.raises(FormatError, match=r"sframegen\.added-to is not a list of digests"):
        in_place(path, adding([]))


@pytest.mark.parametrize("text", ["{}", ' { "x" : 1 } ', '{"a":[1 , {"b":"]"}],"c":{"digest":"sha256:1","size":1}}', '{"a":[]}'])
def test_an_edited_document_can_be_undone(text: str) -> None:
    data = text.encode()
    document = EditedDocument(data, "x")
    if "a" in document.document:
        document.append(("a",), {"é": 1})
    document.note(digest(data))
    again = EditedDocument(document.data, "x")
    assert again.original() == (data if "a" not in document.document else None)
    if "a" in document.document:
        again.pop(("a",))
    assert again.original() == data
