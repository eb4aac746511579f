"""The command on directories: those with an OCI layout are packages, all others are not."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packages.images.image_inputs import entry, one_image, write


def sframegen(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-P", "-m", "sframegen", *arguments], check=False, capture_output=True, text=True)


def real_layout(path: Path) -> Path:
    program = Path(shutil.which("true") or "").read_bytes()
    return one_image(entry("bin/true", program, mode=0o755), packed="+gzip").write(path)


@pytest.mark.dear
def test_layout(tmp_path: Path) -> None:
    layout = real_layout(tmp_path / "layout")
    before = (layout / "index.json").read_bytes()
    [planned] = json.loads(sframegen("add-section", "--dry-run", "--json", layout).stdout)
    assert planned["package"]["changed"] == 1
    assert sframegen("add-section", "--output-dir", tmp_path / "out", layout).returncode == 0
    assert (layout / "index.json").read_bytes() == before
    done = sframegen("add-section", layout)
    assert (done.returncode, done.stderr) == (0, "")
    assert "OCI layout, 1 of 1 ELF file given a section" in done.stdout
    assert (layout / "index.json").read_bytes() == (tmp_path / "out/layout/index.json").read_bytes() != before
    assert "has it already" in sframegen("add-section", layout).stdout
    removed = sframegen("remove", layout)
    assert (removed.returncode, removed.stderr) == (0, "")
    assert "as it was before add-section" in removed.stdout


def test_other_directories_are_no_packages(tmp_path: Path) -> None:
    write({"plain/file": b""}, tmp_path)
    done = sframegen("add-section", tmp_path / "plain")
    assert done.returncode == 1
    assert "add-tree" in done.stderr


def test_damaged_layout_is_one_line(tmp_path: Path) -> None:
    layout = real_layout(tmp_path / "layout")
    (layout / "index.json").write_bytes(b'{"manifests": [{"digest": "sha256:../../x", "size": 1}]}')
    done = sframegen("add-section", layout)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines() == [f"sframegen: {layout}: index.json: sha256:../../x is not a digest of sha256 or sha512"]


def test_signed_image_in_a_dry_run(tmp_path: Path) -> None:
    layout = real_layout(tmp_path / "layout")
    index = json.loads((layout / "index.json").read_bytes())
    [image] = index["manifests"]
    index["manifests"].append({**image, "annotations": {"org.opencontainers.image.ref.name": f"sha256-{image['digest'][7:]}.sig"}})
    (layout / "index.json").write_text(json.dumps(index))
    for options in ([], ["--dry-run"]):
        done = sframegen("add-section", *options, layout)
        assert done.returncode == 1
        assert "signed: what the tag sha256-" in done.stderr
        assert "Traceback" not in done.stderr
    assert sframegen("add-section", "--force", layout).returncode == 0
