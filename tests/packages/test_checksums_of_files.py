"""Files with a checksum outside of them, as FIPS 140 asks for: they are left unchanged in packages, as on their own."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from sframegen.packages.package_api import add_to_package
from tests.packages.package_makers import NAME, deb_of, entry, tar, wheel

SUMS = ("x/.a.so.hmac", "x/fipscheck/a.so.hmac", "x/a.chk")


def changed(path: Path, *, force: bool = False) -> tuple[int, tuple[str, ...]]:
    before = path.read_bytes()
    summary = add_to_package(path, verify=False, force=force)
    assert summary.package is not None
    assert (path.read_bytes() == before) == (not summary.package.changed)
    return summary.package.changed, summary.warnings


@pytest.mark.parametrize("kind", ["whl", "deb", "deb without md5sums", "tar", "tar.xz"])
@pytest.mark.parametrize("checksum", SUMS)
@pytest.mark.parametrize("is_first", [False, True])
def test_a_checksum_in_another_file(library: bytes, tmp_path: Path, kind: str, checksum: str, *, is_first: bool) -> None:
    files = dict(sorted({"x/a.so": library, checksum: b"sum"}.items(), key=lambda item: (item[0] == checksum) != is_first))
    path = tmp_path / (NAME if kind == "whl" else f"x.{kind.partition(' ')[0]}")
    if kind == "whl":
        wheel(path, files)
    elif kind.startswith("deb"):
        deb_of(path, files, md5sums=None if kind == "deb" else b"")
    else:
        path.write_bytes(tar(list(files.items()), mode="w:xz" if kind == "tar.xz" else "w"))
    assert changed(path) == (0, (f"x/a.so: signed: a checksum in {checksum}",))
    assert changed(path, force=True) == (1, ())


def test_a_signature_in_an_attribute(library: bytes, tmp_path: Path) -> None:
    signed = entry("a.so", tarfile.REGTYPE)
    signed.pax_headers = {"SCHILY.xattr.security.ima": "signature"}
    path = tmp_path / "x.tar"
    path.write_bytes(tar([(signed, library), ("b.so", library)], tarfile.PAX_FORMAT))
    assert changed(path) == (1, ("a.so: signed: its attribute security.ima",))
