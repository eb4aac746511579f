"""Debian packages: dpkg reads the result, md5sums and Installed-Size hold; signed and damaged ones are refused."""

from __future__ import annotations

import hashlib
import io
import os
import re
import subprocess
import tarfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from linker.objects.archive import read_members
from sframegen import Outcome, Refusal, RefusedError, api
from sframegen.base.errors import FormatError
from sframegen.packages.compression import detect_compression, open_decompressed
from sframegen.packages.package_api import add_to_package, remove_from_package
from tests.packages.package_makers import CONTROL, NAME, deb, deb_of, entry, needs, sums, tar, wheel
from tests.support.commands import run as invoke


def parts(path: Path) -> dict[str, bytes]:
    return {member.name: bytes(member.contents) for member in read_members(memoryview(path.read_bytes()), "")}


def archive(path: Path, which: str) -> dict[str, bytes]:
    [data] = [data for name, data in parts(path).items() if name.startswith(which)]
    unpacked_data = open_decompressed(io.BytesIO(data), detect_compression(data)).read()
    with tarfile.open(fileobj=io.BytesIO(unpacked_data)) as found:
        files = ((info.name.removeprefix("./"), found.extractfile(info)) for info in found if info.isreg() or info.islnk())
        return {name: file.read() for name, file in files if file}


def sums_hold(path: Path) -> None:
    files = archive(path, "data.tar")
    for line in archive(path, "control.tar")["md5sums"].decode().splitlines():
        digest, _, name = line.partition("  ")
        assert hashlib.md5(files[name]).hexdigest() == digest


def test_sums_and_installed_size_hold_and_all_else_is_kept(library: bytes, tmp_path: Path) -> None:
    files = {"usr/lib/a.so": library, "usr/share/doc/x": b"text", "usr/lib/b c.so": library}
    path = deb_of(tmp_path / "x.deb", files)
    given, control = path.read_bytes(), archive(path, "control.tar")
    assert ": deb, 2 of 2 ELF files would be given a section: " in add_to_package(path, dry_run=True).one_line()
    assert ": deb, 2 of 2 ELF files given a section, " in add_to_package(path, output=tmp_path / "again.deb").one_line()
    assert path.read_bytes() == given
    add_to_package(path)
    assert path.read_bytes() == (tmp_path / "again.deb").read_bytes()
    assert list(parts(path)) == ["debian-binary", "control.tar.xz", "data.tar.xz"]
    sums_hold(path)
    now = archive(path, "data.tar")
    assert [name for name in files if files[name] != now[name]] == ["usr/lib/a.so", "usr/lib/b c.so"]
    growth = sum(-(-len(now[name]) // 1024) - -(-len(files[name]) // 1024) for name in files)
    assert archive(path, "control.tar")["control"] == CONTROL.replace(b"Size: 100", b"Size: %d" % (100 + growth))
    written = path.read_bytes()
    assert add_to_package(path).outcome is Outcome.UNCHANGED
    assert path.read_bytes() == written
    remove_from_package(path)
    assert archive(path, "data.tar") == files
    assert archive(path, "control.tar") == control


def test_a_dry_run_of_detached_sections_says_what_would_be_given(library: bytes, tmp_path: Path) -> None:
    path, store = deb_of(tmp_path / "x.deb", {"usr/lib/a.so": library}), tmp_path / "store"
    before = path.read_bytes()
    for options, said in ((["--dry-run"], "1 of 1 ELF file would be given a section: "), ([], "1 of 1 ELF file given a section: ")):
        done = invoke("add-section", "--detached", store, *options, path)
        assert (done.exit_code, path.read_bytes(), store.exists()) == (0, before, not options)
        assert f": deb, {said}" in done.stdout


@pytest.mark.parametrize("compression", ["gzip", "xz", "zstd", "none"])
def test_dpkg_takes_the_result(library: bytes, tmp_path: Path, compression: str) -> None:
    needs("dpkg-deb")
    root = tmp_path / "root"
    (root / "DEBIAN").mkdir(parents=True)
    (root / "usr/lib").mkdir(parents=True)
    (root / "usr/lib/a.so").write_bytes(library)
    (root / "usr/lib/a.so").chmod(0o4755)
    os.link(root / "usr/lib/a.so", root / "usr/lib/b.so")
    (root / "usr/lib/c.so").symlink_to("a.so")
    (root / "DEBIAN/control").write_bytes(CONTROL)
    (root / "DEBIAN/md5sums").write_bytes(sums({"usr/lib/a.so": library, "usr/lib/b.so": library}))
    path = tmp_path / "x.deb"
    subprocess.run(["dpkg-deb", "--root-owner-group", f"-Z{compression}", "-b", root, path], check=True, capture_output=True)

    def says(option: str) -> str:
        shown = subprocess.run(["dpkg-deb", option, path], check=True, capture_output=True, text=True)
        assert shown.stderr == ""
        return re.sub(r"(?m)^( new Debian.*| size .*| *\d+ bytes.*| Installed-Size: \d+|\S+ \S+ +)\d*", "", shown.stdout)

    before, had = says("-c"), list(parts(path))
    about = says("-I")
    summary = add_to_package(path)
    assert summary.package is not None
    assert summary.package.changed == 1
    assert (says("-c"), list(parts(path))) == (before, had)
    assert says("-I") == about
    sums_hold(path)
    out = tmp_path / "out"
    subprocess.run(["dpkg-deb", "-x", path, out], check=True)
    assert (out / "usr/lib/a.so").stat().st_nlink == 2
    assert (out / "usr/lib/a.so").stat().st_mode & 0o7777 == 0o4755
    assert (out / "usr/lib/b.so").read_bytes() != library
    if os.geteuid() == 0:
        command = ["dpkg", "--root", str(tmp_path / "system"), "--force-architecture", "--log", str(tmp_path / "log")]
        (tmp_path / "system/var/lib/dpkg/updates").mkdir(parents=True)
        (tmp_path / "system/var/lib/dpkg/info").mkdir()
        for name in ("status", "available"):
            (tmp_path / "system/var/lib/dpkg" / name).touch()
        subprocess.run([*command, "-i", path], check=True, capture_output=True)
        assert subprocess.run([*command, "-V"], check=True, capture_output=True).stdout == b""


def test_packages_without_sums_or_size(library: bytes, tmp_path: Path) -> None:
    control = CONTROL.replace(b"Installed-Size: 100\n", b"")
    path = deb(tmp_path / "x.udeb", tar([("./a.so", library)]), tar([("./control", control)]))
    add_to_package(path)
    assert archive(path, "control.tar") == {"control": control}
    assert len(archive(path, "data.tar")["a.so"]) > len(library)


def test_signed_packages_are_refused_without_force(library: bytes, tmp_path: Path) -> None:
    data, control = tar([("./a.so", library)]), tar([("./control", CONTROL)])
    path = deb(tmp_path / "x.deb", data, control, before=[("_gpgorigin", b"signature")])
    with pytest.raises(RefusedError, match="signed: _gpgorigin") as raised:
        add_to_package(path)
    assert raised.value.reason is Refusal.SIGNED
    assert "must be signed again: _gpgorigin" in add_to_package(path, force=True).warnings
    assert parts(path)["_gpgorigin"] == b"signature"


def test_damaged_packages_are_refused(library: bytes, tmp_path: Path) -> None:
    control = tar([("./control", CONTROL)])
    good = tar([("./a.so", library)])
    zstd = b"\x28\xb5\x2f\xfd" + good
    sum_of_other = tar([("./control", CONTROL), ("./md5sums", sums({"a.so": b"other"}))])
    for data, about, suffix, why in (
        (good, control, ".xz", "compression differs from its name"),
        (zstd, zstd, ".zst", "compressed data is damaged"),
        (good, tar([("./x", b"")]), "", "no file `control`"),
        (good, sum_of_other, "", "a.so: its checksum differs"),
        (tar([("./a.so", library), ("./a.so", library)]), control, "", "a.so: a second file"),
        (tar([(entry("./dev/x", tarfile.BLKTYPE), b"")]), control, "", "dev/x: a device"),
        (tar([("./../x", b"")]), control, "", "a name that leads out"),
    ):
        path = deb(tmp_path / "x.deb", data, about, suffix=suffix)
        given = path.read_bytes()
        with pytest.raises(FormatError, match=why):
            add_to_package(path)
        assert path.read_bytes() == given


def test_a_hard_link_to_a_hard_link_gets_the_sum_of_the_file(library: bytes, tmp_path: Path) -> None:
    names = ("a.so", "b.so", "c.so")
    about = tar([("./control", CONTROL), ("./md5sums", sums(dict.fromkeys(names, library)))])
    links = [(entry(f"./{name}", tarfile.LNKTYPE, f"./{of}"), b"") for of, name in pairwise(names)]
    path = deb(tmp_path / "x.deb", tar([("./a.so", library), *links]), about)
    add_to_package(path, verify=False)
    given = {line.split()[0].decode() for line in archive(path, "control.tar")["md5sums"].splitlines()}
    assert given == {hashlib.md5(archive(path, "data.tar")["a.so"]).hexdigest()}


def test_the_functions_for_files_do_not_take_it_for_an_archive_without_objects(library: bytes, tmp_path: Path) -> None:
    package = deb_of(tmp_path / "x.deb", {"usr/lib/x.so": library})
    functions: tuple[Callable[[Path], object], ...] = (api.add_section, api.remove, api.check, api.read)
    for function in functions:
        with pytest.raises(FormatError):
            function(package)


# -- files with a checksum outside of them, as FIPS 140 asks for: they are left unchanged in packages, as on their own

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
