"""RPM packages of every compression are read; none is written."""

from __future__ import annotations

import io
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from cfi.errors import FormatError
from sframegen.packages import kinds
from tests.packages.images.image_inputs import adding, elf
from tests.packages.needed_tools import needs

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.full
SPEC = """
Name: small
Version: 1
Release: 1
Summary: small
License: none
BuildArch: noarch
%description
small
%install
mkdir -p %{buildroot}/usr/bin
cp %{given} %{buildroot}/usr/bin/a
ln %{buildroot}/usr/bin/a %{buildroot}/usr/bin/b
ln -s /usr/bin/a %{buildroot}/usr/bin/c
echo text > %{buildroot}/usr/bin/d
%files
/usr/bin/*
"""


def built(path: Path, payload: str = "w9.gzdio") -> Path:
    needs("rpmbuild", "rpm2archive")
    (path / "given").write_bytes(elf())
    (path / "small.spec").write_text(SPEC)
    defined = {
        "_topdir": path,
        "given": path / "given",
        "_binary_payload": payload,
        "__os_install_post": "%{nil}",
        "_build_id_links": "none",
    }
    options = [text for key, value in defined.items() for text in ("--define", f"{key} {value}")]
    subprocess.run(["rpmbuild", "-bb", "--quiet", *options, "--noclean", path / "small.spec"], check=True, capture_output=True)
    return next(path.glob("RPMS/*/*.rpm"))


@pytest.mark.parametrize("payload", ["w9.gzdio", "w9.bzdio", "w6.xzdio", "w5.lzdio", "w3.zstdio", "w.ufdio"])
def test_every_compression(tmp_path: Path, payload: str) -> None:
    seen: list[str] = []
    with built(tmp_path, payload).open("rb") as source:
        passed = kinds.pass_through(source, "small.rpm", adding(seen), None, force=False)
    assert (passed.kind, passed.elf_files, passed.signed, seen) == ("rpm", 1, "", ["usr/bin/a"])
    assert passed.entries == 4


def test_it_is_not_written(tmp_path: Path) -> None:
    target = io.BytesIO()
    with built(tmp_path).open("rb") as source, pytest.raises(FormatError, match=r"only read: .* macros for rpmbuild") as raised:
        kinds.pass_through(source, "small.rpm", adding([]), target, force=False)
    assert "signed" not in str(raised.value)
    assert target.getvalue() == b""


def test_signatures_are_named(tmp_path: Path) -> None:
    needs("rpmsign", "gpg")
    package, home = built(tmp_path), tmp_path / "gnupg"
    home.mkdir(mode=0o700)
    gpg = ["gpg", "--homedir", str(home), "--batch", "--quiet", "--passphrase", ""]
    subprocess.run([*gpg, "--quick-generate-key", "tester", "rsa2048", "sign"], check=True, capture_output=True)
    sign = [
        "rpmsign",
        "--define",
        f"__gpg {shutil.which('gpg')}",
        "--define",
        f"_gpg_path {home}",
        "--define",
        "_gpg_name tester",
        "--addsign",
        str(package),
    ]
    subprocess.run(sign, check=True, capture_output=True)
    subprocess.run(["gpgconf", "--homedir", home, "--kill", "all"], check=False)
    with package.open("rb") as source:
        passed = kinds.pass_through(source, "small.rpm", lambda *_: False, None, force=False)
        assert passed.signed.startswith("RSA")
        with pytest.raises(FormatError, match="it is signed, too"):
            kinds.pass_through(source, "small.rpm", adding([]), io.BytesIO(), force=True)


def test_truncated_and_damaged_packages(tmp_path: Path) -> None:
    data = built(tmp_path).read_bytes()
    payload = data.rindex(b"\x1f\x8b\x08")
    for cut in (10, 100, 500, payload - 10, payload + 20, len(data) - 40):
        (tmp_path / "cut").write_bytes(data[:cut])
        with (tmp_path / "cut").open("rb") as source, pytest.raises(FormatError) as raised:
            kinds.pass_through(source, "small.rpm", adding([]), None, force=False)
        assert "\n" not in str(raised.value)


def test_without_the_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = built(tmp_path)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with package.open("rb") as source, pytest.raises(FormatError, match=r"rpm2archive is not on PATH: .* install rpm2cpio"):
        kinds.pass_through(source, "small.rpm", adding([]), None, force=False)
