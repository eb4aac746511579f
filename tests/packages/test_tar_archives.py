"""What a tar archive is: images are known wherever their files stand in it, and other packages are no plain archives."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import tarfile
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from cfi.errors import FormatError
from sframegen.cli.commands import cli
from sframegen.packages.kinds import pass_through
from sframegen.packages.passing import ALLOWED_ANYHOW
from tests.packages.images.image_inputs import adding, docker_save, elf, entry, layer, one_image
from tests.support.zstandard import zstd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from sframegen.packages.passing import Passed
    from tests.support.peers import Compiler

PACKERS: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress, ".zst": zstd.compress}
MANY = [(f"usr/share/{number}", b"text") for number in range(50)]


def archive(files: Iterable[tuple[str, bytes]]) -> bytes:
    return layer(*(entry(name, data) for name, data in files))


def passed_of(data: bytes, name: str = "x.tar", *, written: bool = True, seen: list[str] | None = None) -> Passed:
    target = io.BytesIO() if written else None
    return pass_through(io.BytesIO(data), name, adding([] if seen is None else seen), target, force=False)


def oci() -> dict[str, bytes]:
    return one_image(entry("a", elf())).complete()


def docker() -> dict[str, bytes]:
    return docker_save([layer(entry("a", elf()))])


@pytest.mark.parametrize("suffix", PACKERS)
@pytest.mark.parametrize("made", [oci, docker])
def test_an_image_is_known_wherever_its_files_stand(made: Callable[[], dict[str, bytes]], suffix: str) -> None:
    files = list(made().items())
    for first in range(len(files)):
        for before in ([], MANY):
            order = [*before, *files[first:], *files[:first]]
            passed = passed_of(PACKERS[suffix](archive(order)), f"x.tar{suffix}")
            assert (passed.kind, passed.changed) == ("image archive", 1)
    for order in (sorted(files), sorted(files, reverse=True)):
        for prefix in ("", "./"):
            data = archive((prefix + name, data) for name, data in order)
            assert passed_of(PACKERS[suffix](data), f"x.tar{suffix}").kind == "image archive"


@pytest.mark.parametrize("config", ["config.json", f"sha256:{'0' * 64}"])
def test_an_image_is_known_from_its_manifest_alone(config: str) -> None:
    """Other tools than docker have other names for the configuration and for layers."""
    base = layer(entry("a", elf()))
    files = docker_save([base])
    [about] = json.loads(files.pop("manifest.json"))
    about["Layers"] = ["layer.tar.gz"]
    names = {about["Config"]: config}
    renamed = {names.get(name, "layer.tar.gz"): data for name, data in files.items()}
    about["Config"] = config
    passed = passed_of(archive([*renamed.items(), ("manifest.json", json.dumps([about], indent=1).encode())]))
    assert (passed.kind, passed.changed) == ("image archive", 1)


@pytest.mark.parametrize(
    "files",
    [
        {"manifest.json": b'{"name": "an extension"}'},
        {"manifest.json": b'[{"name": "others"}]', "repositories": b""},
        {"index.json": b"{}", "blobs/x": b""},
        {"oci-layout": b"{}"},
        {"etc/oci-layout": b"{}", "etc/index.json": b"{}"},
    ],
)
def test_files_of_other_tools_make_no_image(files: dict[str, bytes]) -> None:
    seen: list[str] = []
    passed = passed_of(archive([*files.items(), ("usr/bin/a", elf())]), seen=seen)
    assert (passed.kind, passed.changed, seen) == ("tar", 1, ["usr/bin/a"])


def test_an_image_archive_without_end_blocks_stays_so() -> None:
    whole = archive(docker().items())
    with tarfile.open(fileobj=io.BytesIO(whole)) as file:
        last = file.getmembers()[-1]
    target = io.BytesIO()
    given = whole[: last.offset_data + last.size + -last.size % 512]
    assert pass_through(io.BytesIO(given), "x.tar", adding([]), target, force=False).changed == 1
    target.seek(0)
    with tarfile.open(fileobj=target) as file:
        last = file.getmembers()[-1]
    assert target.seek(0, 2) == last.offset_data + last.size + -last.size % 512


def test_looking_for_an_image_has_the_limits_of_a_pass() -> None:
    """A bomb is refused before it is unpacked a second time, and names are as in any package."""
    info = tarfile.TarInfo("zeros")
    info.size = ALLOWED_ANYHOW + 1
    packer = zstd.ZstdCompressor()
    pieces = [packer.compress(info.tobuf())] + [packer.compress(bytes(1 << 20)) for _ in range(8)] + [packer.flush()]
    with pytest.raises(FormatError, match="unpacks to more than"):
        passed_of(b"".join(pieces), "x.tar.zst")
    with pytest.raises(FormatError, match="leads out"):
        passed_of(archive([("../index.json", b""), ("oci-layout", b"")]))


READ_ONLY = [".PKGINFO", "+MANIFEST", "files.plist"]


@pytest.mark.parametrize("name", READ_ONLY)
@pytest.mark.parametrize("prefix", ["", "./"])
def test_a_package_with_checksums_is_read_and_not_written(name: str, prefix: str) -> None:
    data = archive([("usr/bin/a", elf()), (prefix + name, b"sums")])
    with pytest.raises(FormatError, match=f"package: {name.replace('+', '.')} has checksums"):
        passed_of(data)
    passed = pass_through(io.BytesIO(data), "x.tar", lambda *_: False, None, force=False)
    assert (passed.kind, passed.elf_files) == ("tar", 1)  # it is read, as RPM packages are
    [warning] = passed.warnings
    assert warning.startswith("only read: ")
    assert passed_of(archive([("usr/bin/a", b"#!/bin/sh"), (name, b"sums")])).changed == 0  # none is wrong afterwards


@pytest.mark.parametrize(
    ("names", "what"),
    [
        (("metadata.gz", "data.tar.gz", "checksums.yaml.gz"), "a Ruby gem"),
        (("./debian-binary", "./control.tar.gz", "./data.tar.gz"), "an opkg package"),
    ],
)
def test_a_package_whose_files_are_in_an_archive_within_is_refused(names: tuple[str, ...], what: str) -> None:
    for written in (False, True):
        with pytest.raises(FormatError, match=f"{what}: its files are in data.tar.gz, which is not read"):
            passed_of(archive((name, b"") for name in names), written=written)


@pytest.mark.parametrize("command", [("add-section",), ("remove",)])
def test_the_command_refuses_in_one_line_and_leaves_the_package(
    command: tuple[str, ...], compile_c: Compiler, tmp_path: Path
) -> None:
    path = tmp_path / "x-1.pkg.tar.zst"
    program = compile_c("int f(int n) { return n + 1; }", "-shared", "-O1")
    if command == ("remove",):
        given = tmp_path / "x.so"
        assert CliRunner().invoke(cli, ["add-section", str(program), "-o", str(given)]).exit_code == 0
        program = given
    path.write_bytes(zstd.compress(archive([("+MANIFEST", b"{}"), ("usr/lib/x.so", program.read_bytes())])))
    before = path.read_bytes()
    done = CliRunner().invoke(cli, [*command, str(path)])
    assert (done.exit_code, path.read_bytes()) == (1, before)
    assert done.output == (
        f"sframegen: {path}: a FreeBSD package: +MANIFEST has checksums of its files; add the sections where it is built\n"
    )
