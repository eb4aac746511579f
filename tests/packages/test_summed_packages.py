"""Packages that have checksums of their files: Arch Linux, conda and Alpine. They are renewed, and all else is kept."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import subprocess
import tarfile
import zipfile
import zlib
from typing import TYPE_CHECKING, Any

import pytest

from cfi.errors import FormatError
from linker.files.refusals import RefusedError
from sframegen import add_section, remove
from sframegen.packages.kinds import pass_through
from tests.packages.images.image_inputs import ADDED, adding, elf
from tests.packages.needed_tools import needs
from tests.packages.package_makers import entry, tar
from tests.support.zstandard import zstd

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from sframegen.packages.passing import Passed
    from tests.support.peers import Compiler

LIBRARY, SPACED, LINK = "usr/lib/a.so", "usr/lib/a b.so", "usr/lib/b.so"
FILES = {LIBRARY: elf("a"), SPACED: elf("b"), "usr/share/text": b"text"}
PKGINFO = b"pkgname = x\nsize = 1000\narch = x86_64\n"


def passed(data: bytes, name: str, *, force: bool = False) -> tuple[Passed, bytes]:
    target = io.BytesIO()
    done = pass_through(io.BytesIO(data), name, adding([]), target, force=force)
    return done, target.getvalue()


def files_of(data: bytes) -> dict[str, bytes]:
    """Regular files of a tar archive, compressed or not."""
    plain = zstd.decompress(data) if data.startswith(b"\x28\xb5") else data
    with tarfile.open(fileobj=io.BytesIO(plain)) as archive:
        return {
            info.name.removeprefix("./"): (archive.extractfile(info) or io.BytesIO()).read() for info in archive if info.isreg()
        }


def mtree_line(name: str, data: bytes) -> bytes:
    sums = " ".join(f"{one}digest={hashlib.new(one, data).hexdigest()}" for one in ("md5", "sha256"))
    return f"./{name} time=1700000000.0 size={len(data)} {sums}\n".encode()


def mtree(files: Mapping[str, bytes]) -> bytes:
    escaped = {name.replace(" ", r"\040"): data for name, data in files.items()}
    head = b"#mtree\n/set type=file uid=0 gid=0 mode=644\n./usr time=1700000000.0 type=dir\n"
    return head + b"".join(mtree_line(*one) for one in escaped.items())


def arch(text: bytes | None = None) -> bytes:
    lists = {".PKGINFO": PKGINFO}
    listed = mtree({**lists, **FILES, LINK: FILES[LIBRARY]}) if text is None else text
    lists[".MTREE"] = gzip.compress(listed, mtime=0)
    return zstd.compress(tar([*{**lists, **FILES}.items(), (entry(LINK, tarfile.LNKTYPE, LIBRARY), b"")]))


def test_arch_mtree_and_size_are_renewed() -> None:
    done, new = passed(arch(), "x-1-1-x86_64.pkg.tar.zst")
    assert (done.kind, done.changed) == ("arch", 2)
    now = files_of(new)
    assert now.pop(".PKGINFO") == PKGINFO.replace(b"1000", b"%d" % (1000 + 2 * len(ADDED)))
    expected = {".PKGINFO": files_of(new)[".PKGINFO"], **FILES, LINK: FILES[LIBRARY] + ADDED}
    expected |= {name: data + ADDED for name, data in FILES.items() if name.endswith(".so")}
    assert gzip.decompress(now.pop(".MTREE")) == mtree(expected)
    assert now == {name: expected[name] for name in FILES}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda text: text.replace(b"./usr/lib/a.so", b"./usr/lib/c.so"), "usr/lib/a.so: not listed"),
        (lambda text: text.replace(hashlib.md5(FILES[LIBRARY]).hexdigest().encode(), b"0" * 32, 1), "its md5digest is another"),
        (lambda text: text.replace(b"size=%d " % len(FILES[LIBRARY]), b"size=1 "), "its size is another"),
        (lambda text: text.replace(b" size=", b" cksum=5 size="), "cksum in .MTREE, which is not renewed"),
        (lambda text: text.replace(b" size=", b" \\\n size="), "a line that continues"),
    ],
)
def test_an_arch_package_with_wrong_checksums_is_refused(change: Callable[[bytes], bytes], why: str) -> None:
    text = mtree({".PKGINFO": PKGINFO, **FILES, LINK: FILES[LIBRARY]})
    with pytest.raises(FormatError, match=why):
        passed(arch(change(text)), "x.pkg.tar.zst")


def test_pacman_finds_no_altered_file(compile_c: Compiler, tmp_path: Path) -> None:
    """bsdtar makes .MTREE, as makepkg has it do; pacman installs and verifies."""
    needs("pacman", "bsdtar", "zstd")
    build = tmp_path / "build"
    (build / "usr/lib").mkdir(parents=True)
    program = compile_c("int f(int n) { return n + 1; }", "-shared", "-O1").read_bytes()
    (build / "usr/lib/a b.so").write_bytes(program)
    size = len(program)
    (build / ".PKGINFO").write_text(f"pkgname = x\npkgver = 1-1\nsize = {size}\narch = any\n")
    options = "!all,use-set,type,uid,gid,mode,time,size,md5,sha256,link"
    made = ["bsdtar", "-czf", ".MTREE", "--format=mtree", f"--options={options}", ".PKGINFO", "usr"]
    subprocess.run(made, cwd=build, check=True)
    package = tmp_path / "x-1-1-any.pkg.tar.zst"
    subprocess.run(["bsdtar", "--zstd", "-cf", package, ".MTREE", ".PKGINFO", "usr"], cwd=build, check=True)
    assert b".sframe" not in program
    summary = add_section(package).package
    assert summary is not None
    assert summary.changed == 1
    root = tmp_path / "root"
    database = root / "var/lib/pacman"
    database.mkdir(parents=True)
    config = tmp_path / "pacman.conf"
    config.write_text("[options]\nArchitecture = auto\nSigLevel = Never\nLocalFileSigLevel = Never\n")
    pacman: list[str | Path] = ["pacman", "--config", config, "--root", root, "--dbpath", database, "--noconfirm"]
    installed = subprocess.run([*pacman, "-U", package], check=False, capture_output=True, text=True)
    if "you cannot perform this operation unless you are root" in installed.stderr:
        pytest.skip("pacman installs only as root")
    assert installed.returncode == 0, installed.stderr
    verified = subprocess.run([*pacman, "-Qkk"], check=True, capture_output=True, text=True).stdout
    assert "0 altered files" in verified
    assert b".sframe" in (root / "usr/lib/a b.so").read_bytes()
    remove(package)
    assert files_of(package.read_bytes())["usr/lib/a b.so"] == program


def paths_json(files: Mapping[str, bytes], **more: object) -> bytes:
    paths = [
        {
            "_path": name,
            "path_type": "hardlink",
            "sha256": hashlib.sha256(data).hexdigest(),
            "size_in_bytes": len(data),
            "prefix_placeholder": '/opt/{a\\"}',
            **more,
        }
        for name, data in files.items()
    ]
    return json.dumps({"paths": paths, "paths_version": 1}, indent=2, sort_keys=True).encode()


def conda(version: int, about: bytes | None = None) -> bytes:
    known = {"info/paths.json": paths_json(FILES) if about is None else about, "info/index.json": b"{}"}
    if version == 1:
        return tar([*FILES.items(), *known.items()], mode="w:bz2")
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("metadata.json", b'{"conda_pkg_format_version": 2}')
        archive.writestr("pkg-x-1.0-0.tar.zst", zstd.compress(tar(FILES.items())))
        archive.writestr("info-x-1.0-0.tar.zst", zstd.compress(tar(known.items())))
    return out.getvalue()


def conda_files(data: bytes) -> dict[str, bytes]:
    if data.startswith(b"BZh"):
        return files_of(data)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.testzip() is None
        assert {info.compress_type for info in archive.infolist()} == {zipfile.ZIP_STORED}
        return files_of(archive.read("pkg-x-1.0-0.tar.zst")) | files_of(archive.read("info-x-1.0-0.tar.zst"))


CONDA = {1: "x-1.0-0.tar.bz2", 2: "x-1.0-0.conda"}


@pytest.mark.parametrize("version", CONDA)
def test_conda_paths_are_renewed_and_nothing_else_in_their_text(version: int) -> None:
    done, new = passed(conda(version), CONDA[version])
    assert (done.kind, done.changed) == ("conda", 2)
    now = conda_files(new)
    files = {name: data + ADDED * name.endswith(".so") for name, data in FILES.items()}
    assert now == {**files, "info/paths.json": paths_json(files), "info/index.json": b"{}"}


WRONG_PATHS: list[tuple[Callable[[dict[str, Any]], object], str]] = [
    (lambda document: document["paths"][0].update(sha256="0" * 64), "its sha256 is another one"),
    (lambda document: document["paths"][0].update(size_in_bytes=1), "its size_in_bytes is another one"),
    (lambda document: document["paths"].pop(0), "not listed"),
    (lambda document: document.pop("paths"), "no list of paths"),
    (lambda document: document["paths"].append([]), "no list of paths"),
]


@pytest.mark.parametrize("version", CONDA)
@pytest.mark.parametrize(("change", "why"), WRONG_PATHS)
def test_a_conda_package_with_wrong_checksums_is_refused(
    version: int, change: Callable[[dict[str, Any]], object], why: str
) -> None:
    document = json.loads(paths_json(FILES))
    change(document)
    with pytest.raises(FormatError, match=why):
        passed(conda(version, json.dumps(document).encode()), CONDA[version])


@pytest.mark.parametrize("text", [b"{", b"[]", b"\xff", b'{"paths": 5}', b"[" * 100_000])
def test_a_conda_package_with_a_broken_list_is_refused(text: bytes) -> None:
    with pytest.raises(FormatError, match=r"info/paths\.json: no"):
        passed(conda(2, text), CONDA[2])


def sealed(part: bytes) -> bytes:
    return gzip.compress(part, mtime=0)


def apk(*, signed: bool = False, datahash: str = "", checksum: str = "") -> bytes:
    files = []
    for name, data in FILES.items():
        info = tarfile.TarInfo(name)
        info.pax_headers = {"APK-TOOLS.checksum.SHA1": checksum or hashlib.sha1(data).hexdigest()}
        files.append((info, data))
    data = sealed(tar(files, tarfile.PAX_FORMAT))
    about = PKGINFO + f"datahash = {datahash or hashlib.sha256(data).hexdigest()}\n".encode()
    parts = [
        sealed(tar([(name, text)]).rstrip(b"\0").ljust(1024, b"\0"))
        for name, text in ((".SIGN.RSA.x.pub", b"a signature"),) * signed
    ]
    return b"".join((*parts, sealed(tar([(".PKGINFO", about)])[:1024]), data))


def parts_of(data: bytes) -> list[bytes]:
    parts = []
    while data:
        stream = zlib.decompressobj(wbits=31)
        stream.decompress(data)
        parts.append(data[: len(data) - len(stream.unused_data)])
        data = stream.unused_data
    return parts


@pytest.mark.parametrize("signed", [False, True])
def test_alpine_checksums_are_renewed_and_a_signature_is_left_out(*, signed: bool) -> None:
    given = apk(signed=signed)
    assert len(parts_of(given)) == 2 + signed
    if signed:
        with pytest.raises(RefusedError, match=r"signed: \.SIGN\.RSA\.x\.pub"):
            passed(given, "x-1-r0.apk")
    done, new = passed(given, "x-1-r0.apk", force=signed)
    assert (done.kind, done.changed) == ("apk", 2)
    assert [warning[:28] for warning in done.warnings] == ["its signature is left out, b"] * signed
    control, data = parts_of(new)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for info in archive:
            contents = (archive.extractfile(info) or io.BytesIO()).read()
            assert contents == FILES[info.name] + ADDED * info.name.endswith(".so")
            assert info.pax_headers["APK-TOOLS.checksum.SHA1"] == hashlib.sha1(contents).hexdigest()
    about = gzip.decompress(control)
    assert b"size = %d\n" % (1000 + 2 * len(ADDED)) in about
    assert f"datahash = {hashlib.sha256(data).hexdigest()}\n".encode() in about
    assert passed(new, "x-1-r0.apk")[0].changed == 0


def test_alpine_packages_with_wrong_checksums_are_refused() -> None:
    with pytest.raises(FormatError, match="another than datahash"):
        passed(apk(datahash="0" * 64), "x.apk")
    with pytest.raises(FormatError, match=r"usr/lib/a\.so: its checksum is another than in its header"):
        passed(apk(checksum="0" * 40), "x.apk")


@pytest.mark.parametrize(
    "data", [sealed(b""), sealed(tar([("a", b"")])), apk()[:200], parts_of(apk())[0], b"\x1f\x8b\x08" + bytes(100)]
)
def test_what_is_no_alpine_package_is_refused(data: bytes) -> None:
    with pytest.raises(FormatError):
        passed(data, "x.apk")
