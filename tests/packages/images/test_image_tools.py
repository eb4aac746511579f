"""Images as other tools see them: skopeo verifies and copies what we write, umoci unpacks it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import sframegen
from tests.packages.images.image_inputs import directory, docker_save, entry, hard_link, layer, write
from tests.packages.needed_tools import needs

pytestmark = [
    pytest.mark.full,
    pytest.mark.once,
    pytest.mark.skipif(os.geteuid() != 0, reason="not root: umoci cannot unpack owners"),
]
TRANSPORTS = ("oci", "oci-archive", "docker-archive")


def run(*command: str | Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An OCI layout, converted from what `docker save` wrote: gzip layers, a file with capabilities, a whiteout."""
    needs("skopeo", "umoci")
    folder = tmp_path_factory.mktemp("image")
    program = Path(shutil.which("true") or "").read_bytes()
    capability = {"SCHILY.xattr.security.capability": bytes.fromhex("0100000200200000" + 24 * "0").decode()}
    base = layer(
        directory("opt", mode=0o750, uid=9, gid=8),
        entry("opt/true", program, mode=0o4755, uid=5, gid=6, mtime=77, pax_headers=capability),
        hard_link("opt/same", "opt/true"),
        entry("gone", program, mode=0o755),
    )
    write({"image.tar": layer(*(entry(*file) for file in docker_save([base, layer(entry(".wh.gone"))]).items()))}, folder)
    run("skopeo", "copy", "--quiet", f"docker-archive:{folder}/image.tar", f"oci:{folder}/layout:tried")
    return folder / "layout"


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_skopeo_and_umoci(tmp_path: Path, given: Path, transport: str) -> None:
    image = tmp_path / "image"
    tag = "example.org/tried:1" if transport == "docker-archive" else "tried"
    run("skopeo", "copy", "--quiet", f"oci:{given}:tried", f"{transport}:{image}:{tag}")
    before = json.loads(run("skopeo", "inspect", f"{transport}:{image}"))
    summary = sframegen.add_section(image)
    assert summary.package is not None
    assert (summary.package.elf_files, summary.package.changed, summary.warnings) == (1, 1, ())
    after = json.loads(run("skopeo", "inspect", f"{transport}:{image}"))
    assert after["Layers"][:-1] == before["Layers"]
    assert after["Digest"] != before["Digest"]

    run("skopeo", "copy", "--quiet", f"{transport}:{image}", f"oci:{tmp_path}/copy:tried")
    run("umoci", "unpack", "--image", f"{tmp_path}/copy:tried", tmp_path / "bundle")
    root = tmp_path / "bundle/rootfs"
    program, status = root / "opt/true", (root / "opt/true").stat()
    assert [path.name for path in sorted(root.rglob("*"))] == ["opt", "same", "true"]
    assert (status.st_mode & 0o7777, status.st_uid, status.st_gid, status.st_mtime) == (0o4755, 5, 6, 77)
    assert os.getxattr(program, "security.capability").hex().startswith("0100000200200000")
    assert ((root / "opt").stat().st_mode & 0o7777, (root / "opt").stat().st_uid) == (0o750, 9)
    assert program.samefile(root / "opt/same")
    assert len(sframegen.read(program).table)
    assert subprocess.run([program], check=False).returncode == 0
    assert sframegen.add_section(image).package.changed == 0  # type: ignore[union-attr]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_remove_gives_the_digests_that_were(tmp_path: Path, given: Path, transport: str) -> None:
    """Also of an image that skopeo has copied meanwhile."""
    image, copy, back = tmp_path / "image", tmp_path / "copy", tmp_path / "back"
    tag = "example.org/tried:1" if transport == "docker-archive" else "tried"
    run("skopeo", "copy", "--quiet", f"oci:{given}:tried", f"{transport}:{image}:{tag}")
    before = about(f"{transport}:{image}")
    assert sframegen.add_section(image).package.changed == 1  # type: ignore[union-attr]
    assert about(f"{transport}:{image}") != before
    run("skopeo", "copy", "--quiet", f"{transport}:{image}", f"{transport}:{copy}:{tag}")
    run("skopeo", "copy", "--quiet", f"{transport}:{image}", f"oci:{back}:tried")
    for place, kind in ((image, transport), (copy, transport), (back, "oci")):
        removal = sframegen.remove(place)
        has_manifest = transport == "oci-archive" or kind == transport  # else skopeo has made one
        assert (removal.restored, removal.identical, removal.warnings) == (True, has_manifest, ())
        assert has_manifest or "in the layers that it had: another tool" in removal.one_line()
        found = about(f"{kind}:{place}")
        assert found["config"] == before["config"]
        assert kind != transport or found == before
    run("umoci", "unpack", "--image", f"{back}:tried", tmp_path / "bundle")
    assert (tmp_path / "bundle/rootfs/opt/true").read_bytes() == Path(shutil.which("true") or "").read_bytes()


def test_umoci_adds_a_layer_before_remove(tmp_path: Path, given: Path) -> None:
    """The files are restored in one more layer, since those of sframegen are not the last ones."""
    image, more = tmp_path / "layout", tmp_path / "more"
    shutil.copytree(given, image)
    more.mkdir()
    sframegen.add_section(image)
    run("umoci", "insert", "--image", f"{image}:tried", more, "/more")
    layers = len(about(f"oci:{image}:tried")["config"]["rootfs"]["diff_ids"])
    removal = sframegen.remove(image)
    assert (removal.restored, removal.identical) == (True, False)
    assert "one more layer" in removal.one_line()
    assert len(about(f"oci:{image}:tried")["config"]["rootfs"]["diff_ids"]) == layers + 1
    run("umoci", "unpack", "--image", f"{image}:tried", tmp_path / "bundle")
    assert (tmp_path / "bundle/rootfs/opt/true").read_bytes() == Path(shutil.which("true") or "").read_bytes()
    assert (tmp_path / "bundle/rootfs/more").is_dir()


def about(reference: str) -> dict[str, Any]:
    """The digest and the whole configuration of an image."""
    raw = subprocess.run(["skopeo", "inspect", "--config", "--raw", reference], check=True, capture_output=True).stdout
    return {"digest": json.loads(run("skopeo", "inspect", reference))["Digest"], "raw": raw, "config": json.loads(raw)}
