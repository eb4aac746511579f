"""What is near to a package and is not handled is refused by its name, in every command, never left out without a word."""

from __future__ import annotations

from pathlib import Path

import pytest

from sframegen.fleet.sources.listing import list_source
from sframegen.packages.kinds import explain_unhandled
from tests.support.commands import run as invoke

GIVEN = {
    "a.gem": (b"metadata.gz", "a Ruby gem"),
    "a.jar": (b"PK\3\4", "a Java archive"),
    "a.egg": (b"PK\3\4", "a Python egg"),
    "a.ipk": (b"\x1f\x8b\x08", "an opkg package"),
    "a.apk": (b"PK\3\4", "an Android package"),
    "b.apk": (b"ADB.pckg", "an Alpine package"),
    "a.changes": (b"Format: 1.8\n", "a list of packages and their hashes"),
    "a.buildinfo": (b"-----BEGIN PGP SIGNED MESSAGE-----\n", "a list of packages and their hashes"),
    "a.dsc": (b"Format: 3.0 (quilt)\n", "a source package"),
    "a.rpm": (b"\xed\xab\xee\xdb", "an RPM package"),
    "a.src.rpm": (b"\xed\xab\xee\xdb", "an RPM package"),
    "an-rpm": (b"\xed\xab\xee\xdb", "an RPM package"),
    "a.squashfs": (b"hsqs", "a squashfs image"),
    "root.img": (b"hsqs", "a squashfs image"),
    "a.conda": (b"PK\3\4", "a conda package"),
    "c.apk": (b"\x1f\x8b\x08", "an Alpine package"),
    "a.xbps": (b"\x28\xb5\x2f\xfd", "an XBPS package"),
    "initrd.img-6.12.1-amd64": (b"\x28\xb5\x2f\xfd", "an initramfs"),
    "a.cpio": (b"070701", "an initramfs"),
    "a.cpio.xz": (b"\xfd7zXZ\0", "an initramfs"),
}
COMMANDS = (("add-section",), ("remove",), ("check",), ("convert", "--sframe-version", "2"), ("dump",))


@pytest.mark.parametrize("name", GIVEN)
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_every_command_refuses_by_name(name: str, command: tuple[str, ...], tmp_path: Path) -> None:
    data, what = GIVEN[name]
    path = tmp_path / name
    path.write_bytes(data)
    done = invoke(*command, path)
    assert (done.exit_code, path.read_bytes()) == (1, data)
    assert done.output.startswith(f"sframegen: {path}: {what}")
    assert done.output.count("\n") == 1


def test_packages_and_image_layouts_are_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.rpm").write_bytes(GIVEN["a.rpm"][0])
    Path("a.tar").write_bytes(bytes(257) + b"ustar")
    Path("layout").mkdir()
    Path("layout/oci-layout").touch()
    for said, lines in {
        "a.rpm: an RPM package: run": ("lookup a.rpm main",),
        "a.tar: a package: add-section, remove": ("dump a.tar", "lookup a.tar main", "convert --sframe-version 3 a.tar"),
        "layout: a container image: run": (
            *("dump layout", "lookup layout main", "convert --sframe-version 3 layout"),
            *(f"{command} layout" for command in ("add-section", "remove", "check", "add-tree", "remove-tree")),
        ),
    }.items():
        for line in lines:
            result = invoke(*line.split())
            assert (result.exit_code, result.stderr.startswith(f"sframegen: {said}")) == (1, True), (line, result.output)


def test_a_fleet_lists_them_as_refused(tmp_path: Path) -> None:
    for name, (data, _) in GIVEN.items():
        (tmp_path / name).write_bytes(data)
    refused = {item.name: item.refused for item in list_source(str(tmp_path))}
    assert refused.keys() == GIVEN.keys()
    assert all(refused[name].startswith(what) for name, (_, what) in GIVEN.items())


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("initramfs-tools_0.142_all.deb", b"!<arch>\ndebian-binary"),
        ("initramfs-tools-0.142.tar.gz", b"\x1f\x8b\x08"),
        ("a.changes", b"what has changed"),
        ("a.ipk", b"!<arch>\ndebian-binary"),  # the form that is a Debian package's
        ("a.jar", b"\x7fELF"),
        ("cpio", b"#!/bin/sh"),
    ],
)
def test_others_of_such_names_are_not_taken_for_them(name: str, data: bytes) -> None:
    assert explain_unhandled(name, data) == ""
