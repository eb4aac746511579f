"""What a tar archive is: images and packages of other kinds are no plain archives, wherever their files stand in it."""

from __future__ import annotations

import gzip
import io
import lzma
import tarfile
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from sframegen.base.errors import FormatError
from sframegen.cli.commands import cli
from sframegen.packages.kinds import pass_through
from sframegen.packages.passing import ALLOWED_ANYHOW
from tests.packages.package_makers import adding, elf, tar
from tests.support.zstandard import zstd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from sframegen.packages.passing import Passed
    from tests.support.peers import Compiler

PACKERS: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress, ".zst": zstd.compress}
MANY = [(f"usr/share/{number}", b"text") for number in range(50)]
CONFIG = f"{'0' * 64}.json"
# What is not handled: the names that mark it, and what it is said to be.
OTHERS = {
    "OCI layout": (("oci-layout", "index.json", "blobs/sha256/x"), "a container image: run add-tree in its build"),
    "docker save": (("manifest.json", CONFIG, f"{'1' * 64}.tar"), "a container image: run add-tree in its build"),
    "docker save, old": (("manifest.json", f"{'1' * 64}/layer.tar"), "a container image: run add-tree in its build"),
    "Arch Linux": ((".MTREE", ".PKGINFO"), "an Arch Linux package: run add-tree in its build"),
    "conda": (("info/paths.json", "info/index.json"), "a conda package: run add-tree in its build"),
    "Alpine": ((".PKGINFO",), "an Alpine package: run add-tree in its build"),
    "FreeBSD": (("+MANIFEST",), "a FreeBSD package: run add-tree in its build"),
    "XBPS": (("files.plist",), "an XBPS package: run add-tree in its build"),
    "gem": (("metadata.gz", "data.tar.gz"), "a Ruby gem: its files are in data.tar.gz, which is not read"),
    "opkg": (
        ("debian-binary", "control.tar.gz", "data.tar.gz"),
        "an opkg package: its files are in data.tar.gz, which is not read",
    ),
}


def archive(names: Iterable[str], prefix: str = "") -> bytes:
    return tar([*((prefix + name, b"") for name in names)], tarfile.PAX_FORMAT)


def passed_of(data: bytes, name: str = "x.tar", *, written: bool = True, seen: list[str] | None = None) -> Passed:
    target = io.BytesIO() if written else None
    return pass_through(io.BytesIO(data), name, adding([] if seen is None else seen), target, force=False)


@pytest.mark.parametrize("suffix", PACKERS)
@pytest.mark.parametrize("kind", OTHERS)
def test_what_is_not_handled_is_known_wherever_its_files_stand(kind: str, suffix: str) -> None:
    names, what = OTHERS[kind]
    many = [name for name, _ in MANY]
    for order in ([*names, *many], [*many, *names], [names[-1], *many, *names[:-1]]):
        for prefix in ("", "./"):
            for written in (False, True):
                with pytest.raises(FormatError) as refused:
                    passed_of(PACKERS[suffix](archive(order, prefix)), f"x.tar{suffix}", written=written)
                assert refused.value.message.startswith(what)


@pytest.mark.parametrize(
    "names",
    [
        ("manifest.json",),
        ("manifest.json", "repositories"),
        ("index.json", "blobs/x"),
        ("oci-layout",),
        ("etc/oci-layout", "etc/index.json"),
        ("etc/.MTREE", "etc/.PKGINFO"),
        ("data.tar.gz", "debian-binary"),
    ],
)
def test_files_of_other_tools_make_no_image_and_no_package(names: tuple[str, ...]) -> None:
    seen: list[str] = []
    passed = passed_of(tar([*((name, b"{}") for name in names), ("usr/bin/a", elf())]), seen=seen)
    assert (passed.kind, passed.changed, seen) == ("tar", 1, ["usr/bin/a"])


def test_looking_at_the_names_has_the_limits_of_a_pass() -> None:
    """A bomb is refused before it is unpacked a second time, and names are as in any package."""
    info = tarfile.TarInfo("zeros")
    info.size = ALLOWED_ANYHOW + 1
    packer = zstd.ZstdCompressor()
    pieces = [packer.compress(info.tobuf())] + [packer.compress(bytes(1 << 20)) for _ in range(8)] + [packer.flush()]
    with pytest.raises(FormatError, match="unpacks to more than"):
        passed_of(b"".join(pieces), "x.tar.zst")
    with pytest.raises(FormatError, match="leads out"):
        passed_of(archive(["../index.json", "oci-layout"]))


@pytest.mark.parametrize("command", ["add-section", "remove", "check"])
def test_the_command_refuses_in_one_line_and_leaves_the_package(command: str, compile_c: Compiler, tmp_path: Path) -> None:
    path = tmp_path / "x-1.pkg.tar.zst"
    program = compile_c("int f(int n) { return n + 1; }", "-shared", "-O1")
    path.write_bytes(zstd.compress(tar([(".MTREE", b""), ("usr/lib/x.so", program.read_bytes())])))
    before = path.read_bytes()
    done = CliRunner().invoke(cli, [command, str(path)])
    assert (done.exit_code, path.read_bytes()) == (1, before)
    assert done.output == f"sframegen: {path}: an Arch Linux package: run add-tree in its build (docs/packaging.md)\n"
