"""tools/get-peers without a network: what it does with a folder that is complete, lacks packages, or is not its own."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Get = Callable[..., subprocess.CompletedProcess[str]]

SCRIPT = ROOT / "tools" / "get-peers"
# Stands for tools/apt-suite: a package is a folder with a program of its name; one has the dynamic linker.
APT_SUITE = """\
#!/bin/bash
set -e
echo "$*" >>"$(dirname "$0")/calls"
case "$*" in
*" pkgnames") printf '%s\\n' llvm-8 llvm-9 lld-9 ;;
*" depends "*) printf '%s\\n' mold '  Depends: libc6' libc6 ;;
*" download "*)
    for package in "${@:5}"; do
        mkdir -p "$package/DEBIAN" "$package/usr/bin" "$package/usr/lib/machine-linux-gnu"
        printf '\\177ELF of %s\\n' "$package" >"$package/usr/bin/$package"
        [[ $package != libc6 ]] || touch "$package/usr/lib/machine-linux-gnu/ld-linux-machine.so.1"
        printf '%s\\n' "Package: $package" "Version: 1" "Architecture: all" "Maintainer: nobody" "Description: none" \\
            >"$package/DEBIAN/control"
        dpkg-deb --build --root-owner-group "$package" "$package.deb" >/dev/null
        rm -r "$package"
    done ;;
esac
"""
ALL = ("binutils", "binutils-s390x-linux-gnu", "libsframe3", "elfutils", "patchelf", "chrpath", "mold", "llvm-9", "lld-9", "libc6")


@pytest.fixture
def get(tmp_path: Path) -> Get:
    if shutil.which("dpkg-deb") is None:
        pytest.skip("no dpkg-deb on this machine")
    tools = tmp_path / "tools"
    tools.mkdir()
    shutil.copy(SCRIPT, tools)
    (tools / "apt-suite").write_text(APT_SUITE)
    (tools / "apt-suite").chmod(0o755)

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([tools / "get-peers", *options, tmp_path / "peers"], check=False, capture_output=True, text=True)

    return run


def packages(directory: Path) -> set[str]:
    return {line.split()[0] for line in (directory / "versions").read_text().splitlines()}


def test_what_is_complete_is_left_alone(get: Get, tmp_path: Path) -> None:
    assert get().returncode == 0
    peers = tmp_path / "peers"
    assert packages(peers) >= set(ALL)
    assert str(peers / "root/usr/bin/mold") in (peers / "bin/mold").read_text()
    (tmp_path / "tools" / "calls").unlink()
    inode = peers.stat().st_ino
    assert get().returncode == 0
    assert peers.stat().st_ino == inode
    assert not (tmp_path / "tools" / "calls").exists()


def test_binutils_alone_is_enough_until_all_are_asked_for(get: Get, tmp_path: Path) -> None:
    peers = tmp_path / "peers"
    assert get("--binutils").returncode == 0
    few = packages(peers)
    assert {"binutils", "libsframe3", "libc6"} < few
    assert not few & {"llvm-9", "lld-9", "elfutils", "patchelf"}
    assert get().returncode == 0
    assert packages(peers) > few
    inode = peers.stat().st_ino
    assert get("--binutils").returncode == 0
    assert peers.stat().st_ino == inode


@pytest.mark.parametrize("lacking", ["mold", "lld-9"])
def test_what_lacks_a_package_is_made_again_and_exchanged(get: Get, tmp_path: Path, lacking: str) -> None:
    get()
    peers = tmp_path / "peers"
    versions = peers / "versions"
    versions.write_text("".join(f"{line}\n" for line in versions.read_text().splitlines() if line.split()[0] != lacking))
    (peers / "bin" / lacking).unlink()
    with (peers / "bin" / "as-it-was").open("w") as used:  # by somebody meanwhile
        assert get().returncode == 0
        used.write("still there")
    assert packages(peers) >= set(ALL)
    assert (peers / "bin" / lacking).exists()
    assert {path.name for path in tmp_path.iterdir()} == {"tools", "peers", "peers.lock"}


def test_what_lacks_a_package_stays_where_the_new_one_cannot_be_had(get: Get, tmp_path: Path) -> None:
    get()
    peers = tmp_path / "peers"
    versions = (peers / "versions").read_text().replace("mold 1\n", "")
    (peers / "versions").write_text(versions)
    (tmp_path / "tools" / "apt-suite").write_text("#!/bin/sh\necho no network >&2\nexit 1\n")
    failed = get()
    assert failed.returncode
    assert "no network" in failed.stderr
    assert (peers / "versions").read_text() == versions
    assert (peers / "bin" / "mold").exists()
    assert not (tmp_path / "peers.new").exists()


def test_what_is_not_its_own_is_refused(get: Get, tmp_path: Path) -> None:
    (tmp_path / "peers").mkdir()
    (tmp_path / "peers" / "mine").touch()
    failed = get()
    assert failed.returncode == 1
    assert "is not what get-peers made: name another folder" in failed.stderr
    assert (tmp_path / "peers" / "mine").exists()
