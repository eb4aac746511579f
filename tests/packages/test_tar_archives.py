"""Tar archives: what is not changed keeps its bytes, whichever tool wrote it; images and packages of other kinds are known."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import subprocess
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from sframegen import api
from sframegen.base.errors import FormatError
from sframegen.elf.compressed import import_zstd
from sframegen.fleet.sources.listing import list_source
from sframegen.packages.compression import MAGIC_SIZE, Compression, detect_compression, open_compressor, open_decompressed
from sframegen.packages.kinds import explain_unhandled, pass_through
from sframegen.packages.package_api import add_to_package, remove_from_package
from sframegen.packages.package_pass import MIN_UNPACKED_LIMIT, Pass, PassReport
from sframegen.packages.tar_archives import visit_tar, write_tar
from tests.packages.package_makers import adding, elf, entry, needs, tar
from tests.support.commands import run as invoke
from tests.support.zstandard import zstd

PACKERS: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress, ".zst": zstd.compress}
UNPACKERS: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.decompress, ".xz": lzma.decompress}
FORMATS = {"gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT, "ustar": tarfile.USTAR_FORMAT}
FIELDS = ("name", "mode", "uid", "gid", "mtime", "type", "linkname", "uname", "gname", "devmajor", "devminor")
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


def listed(path: Path) -> list[tuple[object, ...]]:
    with tarfile.open(path) as archive:
        return [tuple(getattr(info, field) for field in FIELDS) for info in archive]


def contents(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as archive:
        files = ((info.name, archive.extractfile(info)) for info in archive if info.isreg())
        return {name: file.read() for name, file in files if file}


def many_kinds(library: bytes) -> list[tuple[tarfile.TarInfo | str, bytes]]:
    named = tarfile.TarInfo("usr/lib/" + "n" * 88 + ".so")
    named.mode, named.uid, named.gid, named.mtime, named.uname, named.gname = 0o4755, 1000, 60000, 1700000000, "someone", "games"
    return [
        (entry("usr", tarfile.DIRTYPE), b""),
        ("usr/text", b"text\n" * 200),
        (named, library),
        (entry("usr/lib/again.so", tarfile.LNKTYPE, named.name), b""),
        (entry("usr/lib/l.so", tarfile.SYMTYPE, "../text"), b""),
        (entry("usr/lib/absolute.so", tarfile.SYMTYPE, "/usr/text"), b""),
        (entry("dev/null", tarfile.CHRTYPE), b""),
        ("usr/empty", b""),
        ("usr/other.so", library),
    ]


@pytest.mark.parametrize("suffix", ["", "gz", "xz", "bz2"])
@pytest.mark.parametrize("form", FORMATS)
def test_all_but_the_libraries_is_kept(library: bytes, tmp_path: Path, form: str, suffix: str) -> None:
    path = tmp_path / f"x.tar.{suffix}".rstrip(".")
    path.write_bytes(tar(many_kinds(library), FORMATS[form], f"w:{suffix}" if suffix else "w"))
    before, had = listed(path), contents(path)
    summary = add_to_package(path)
    assert summary.package is not None
    assert (summary.package.elf_files, summary.package.changed) == (2, 2)
    assert listed(path) == before
    now = contents(path)
    assert {name for name in had if had[name] != now[name]} == {name for name in had if name.endswith(".so")}
    (tmp_path / "one.so").write_bytes(library)
    api.add_section(tmp_path / "one.so")
    assert now["usr/other.so"] == (tmp_path / "one.so").read_bytes()
    again = path.read_bytes()
    summary = add_to_package(path)
    assert (summary.note, path.read_bytes()) == ("has it already", again)
    remove_from_package(path)
    assert contents(path) == had


def test_zstd_and_every_block_header_of_gnu_tar(library: bytes, tmp_path: Path) -> None:
    needs("tar", "zstd")
    root = tmp_path / "root"
    (root / ("d" * 120)).mkdir(parents=True)
    (root / ("d" * 120) / "x.so").write_bytes(library)
    with (root / "sparse").open("wb") as file:
        for at in range(0, 40 << 20, 2 << 20):
            os.pwrite(file.fileno(), b"data", at)
        file.truncate(64 << 20)
    for form in ("gnu", "pax"):
        path = tmp_path / f"{form}.tar.zst"
        subprocess.run(["tar", f"--format={form}", "--sparse", "--zstd", "-cf", path, "-C", root, "."], check=True)
        before = subprocess.run(["tar", "-tf", path], check=True, capture_output=True).stdout
        summary = add_to_package(path)
        assert summary.package is not None
        assert summary.package.changed == 1
        assert subprocess.run(["tar", "-tf", path], check=True, capture_output=True).stdout == before
        out = tmp_path / form
        out.mkdir()
        subprocess.run(["tar", "-xf", path, "-C", out], check=True)
        assert (out / "sparse").read_bytes() == (root / "sparse").read_bytes()
        assert (out / "sparse").stat().st_blocks < 10_000
        assert len((out / ("d" * 120) / "x.so").read_bytes()) > len(library)


class Stream(io.RawIOBase):
    """A pipe: it gives a few bytes at a time, and cannot seek."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self._file = io.BytesIO(data)

    def read(self, size: int = -1) -> bytes:
        return self._file.read(min(size, 700))


def test_streams_that_cannot_seek(library: bytes) -> None:
    out = io.BytesIO()

    def visit(path: str, given: Path, changed: Path) -> bool:
        changed.write_bytes(given.read_bytes() + b"more")
        return path.startswith("usr/other")

    data = tar(many_kinds(library)) + bytes(5000)
    with Pass("tar", len(data), visit) as one:
        write_tar(Stream(data), visit_tar(one, Stream(data)), out.write)
        passed = one.make_report()
    assert (passed.elf_files, passed.changed_files, passed.entries) == (2, 1, 9)
    expected = tar([*many_kinds(library)[:-1], ("usr/other.so", library + b"more")])
    size = len(expected.rstrip(b"\0"))
    assert out.getvalue()[:size] == expected[:size]
    assert not out.getvalue()[size:].strip(b"\0")


def refuse(data: bytes, why: str, *, devices: bool = True, stream: type[io.RawIOBase | io.BytesIO] = Stream) -> None:
    with Pass("tar", len(data), lambda *_: False) as one, pytest.raises(FormatError, match=why):
        visit_tar(one, stream(data), devices=devices)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("kind", "link", "devices", "why"),
    [
        (tarfile.CHRTYPE, "", False, "device or FIFO"),
        (tarfile.FIFOTYPE, "", False, "device or FIFO"),
        (tarfile.SYMTYPE, "../../etc/passwd", True, "a link that leads out"),
        (tarfile.LNKTYPE, "/etc/passwd", True, "a hard link that leads out"),
        (tarfile.LNKTYPE, "a/../../x", True, "a hard link that leads out"),
    ],
)
def test_what_packages_have_no_business_with(kind: bytes, link: str, devices: bool, why: str) -> None:
    refuse(tar([(entry("usr/x", kind, link), b"")]), f"^usr/x: .*{why}", devices=devices)


def record(text: bytes) -> bytes:
    return tar([(entry("pax", tarfile.XHDTYPE), text), ("x", b"")])


@pytest.mark.parametrize(
    "text", [b"2 " * 30_000 + b"=\n", b"99999 path=x\n", b"0 path=x\n", b"9999999999999999999 a=b\n", b"8 path=x", b"4 a\n"]
)
def test_extended_headers_are_read_once(text: bytes) -> None:
    """tarfile would make 30,000 records of 60 kB each of the first."""
    refuse(record(text), "no record of an extended header")
    refuse(record(b"10 path=x\n")[:1024], "cut off")  # after it


def test_chains_of_headers_and_endless_ones_end() -> None:
    chain = b"".join(tar([(entry("pax", tarfile.XHDTYPE), b"")])[:512] for _ in range(1500))
    endless = bytearray(tar([(entry("pax", tarfile.XHDTYPE), b"")])[:512])
    endless[124:136] = b"77777777777\0"
    endless[148:156] = b" " * 8
    endless[148:156] = b"%06o\0 " % sum(endless)
    after = tar([("x", b"")])
    for data in (chain, bytes(endless), after + bytes(100 << 20)):
        refuse(data, ".", stream=io.BytesIO)


def end_of(archive: bytes) -> int:
    """Where the blocks begin that end an archive."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as file:
        last = file.getmembers()[-1]
    return last.offset_data + last.size + -last.size % 512


@pytest.mark.parametrize("blocks", [0, 1, 2])
@pytest.mark.parametrize("suffix", UNPACKERS)
def test_an_archive_keeps_the_end_that_it_has(library: bytes, blocks: int, suffix: str, tmp_path: Path) -> None:
    """Some writers leave the blocks of zeros out: GNU tar and Python read such archives."""
    archive = tar(many_kinds(library))
    archive = archive[: end_of(archive) + blocks * 512]
    packer, unpacker = PACKERS[suffix], UNPACKERS[suffix]
    path = tmp_path / f"x.tar{suffix}"
    path.write_bytes(packer(archive))
    before = listed(path)
    summary = add_to_package(path)
    assert summary.package is not None
    assert summary.package.changed == 2
    assert listed(path) == before
    changed = unpacker(path.read_bytes())
    assert len(changed) == end_of(changed) + blocks * 512
    remove_from_package(path)
    assert unpacker(path.read_bytes()) == archive


@pytest.mark.parametrize("left", [0, -1, -511, 1, 100, 511])
def test_an_archive_that_ends_elsewhere_is_refused(library: bytes, left: int, tmp_path: Path) -> None:
    """`left`: bytes after the last entry's padding, or before its end. 0: no entry at all."""
    archive = tar([("x.so", library), ("text", b"t" * 600)])
    whole = archive[: end_of(archive)]
    path = tmp_path / "x.tar.gz"
    path.write_bytes(gzip.compress(whole[:left] if left <= 0 else whole + archive[:left]))
    before = path.read_bytes()
    with pytest.raises(FormatError, match="cut off"):
        add_to_package(path)
    assert path.read_bytes() == before


def archive(names: Iterable[str], prefix: str = "") -> bytes:
    return tar([*((prefix + name, b"") for name in names)], tarfile.PAX_FORMAT)


def passed_of(data: bytes, name: str = "x.tar", *, written: bool = True, seen: list[str] | None = None) -> PassReport:
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
        ("manifest.json", "repositories"),
        ("index.json", "blobs/x"),
        ("oci-layout",),
        ("etc/oci-layout", "etc/index.json"),
        ("data.tar.gz", "debian-binary"),
    ],
)
def test_files_of_other_tools_make_no_image_and_no_package(names: tuple[str, ...]) -> None:
    seen: list[str] = []
    passed = passed_of(tar([*((name, b"{}") for name in names), ("usr/bin/a", elf())]), seen=seen)
    assert (passed.kind, passed.changed_files, seen) == ("tar", 1, ["usr/bin/a"])


def test_looking_at_the_names_has_the_limits_of_a_pass() -> None:
    info = tarfile.TarInfo("zeros")
    info.size = MIN_UNPACKED_LIMIT + 1
    packer = zstd.ZstdCompressor()
    pieces = [packer.compress(info.tobuf())] + [packer.compress(bytes(1 << 20)) for _ in range(8)] + [packer.flush()]
    with pytest.raises(FormatError, match="unpacks to more than"):
        passed_of(b"".join(pieces), "x.tar.zst")
    with pytest.raises(FormatError, match="leads out"):
        passed_of(archive(["../index.json", "oci-layout"]))


@pytest.mark.parametrize("command", ["add-section", "remove", "check"])
def test_the_command_refuses_in_one_line_and_leaves_the_package(command: str, library: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x-1.pkg.tar.zst"
    path.write_bytes(zstd.compress(tar([(".MTREE", b""), ("usr/lib/x.so", library)])))
    before = path.read_bytes()
    done = invoke(command, path)
    assert (done.exit_code, path.read_bytes()) == (1, before)
    assert done.output == f"sframegen: {path}: an Arch Linux package: run add-tree in its build (docs/packaging.md)\n"


# -- what is near to a package and is not handled is refused by its name, in every command, never left out without a word

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


# -- compressed streams: the level is read from what a tool wrote, and unpacking takes all the forms that tools write

DATA = b"".join(b"%d\n" % number for number in range(60_000))


@pytest.mark.parametrize(
    ("name", "level", "known"),
    [("xz", level, known) for level, known in ((0, 0), (1, 1), (2, 2), (3, 4), (4, 4), (5, 6), (6, 6), (7, 7), (8, 8), (9, 9))]
    + [("gz", level, known) for level, known in ((1, 1), (6, 6), (9, 9))]
    + [("bz2", level, level) for level in (1, 9)]
    + [("zst", level, known) for level, known in ((1, 1), (3, 3), (19, 19))],
)
def test_levels_are_kept(name: str, level: int, known: int) -> None:
    out = io.BytesIO()
    with open_compressor(out, Compression(name, level, check=lzma.CHECK_CRC32, mtime=1700000000)) as file:
        file.write(DATA)
    found = detect_compression(out.getvalue()[:MAGIC_SIZE])
    assert found is not None
    assert (found.name, found.level) == (name, known)
    assert found.check == {"xz": lzma.CHECK_CRC32, "zst": 1}.get(name, -1)
    assert found.mtime == (1700000000 if name == "gz" else 0)
    assert open_decompressed(io.BytesIO(out.getvalue()), found).read() == DATA


def test_xz_of_several_threads() -> None:
    """dpkg-deb writes such: the header of a block has its sizes."""
    needs("xz")
    for level in (2, 6, 9):
        data = subprocess.run(["xz", f"-{level}", "-T2", "-c"], input=DATA, check=True, capture_output=True).stdout
        found = detect_compression(data[:MAGIC_SIZE])
        assert getattr(found, "level", -1) == level
        assert open_decompressed(io.BytesIO(data), found).read() == DATA


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, bz2.compress, import_zstd().compress])
def test_streams_that_follow_one_another_are_one(pack: type[bytes]) -> None:
    data = b"".join(pack(DATA[at : at + 100_000]) for at in range(0, len(DATA), 100_000))
    padding = b"" if data.startswith((b"BZh", b"\x28\xb5")) else bytes(64)
    assert open_decompressed(io.BytesIO(data + padding), detect_compression(data)).read() == DATA


def test_a_zstd_frame_without_a_window_has_the_usual_level() -> None:
    """Where a window would be is the low byte of the frame's size: 0x68 would be the window of level 19."""
    given = import_zstd().compress(bytes(0x68), 19)
    assert given[4] & 0x20
    assert given[5] == 0x68
    assert detect_compression(given[:MAGIC_SIZE]) == Compression("zst", 3, check=0)


@pytest.mark.parametrize(("size", "level"), [(2 << 20, 3), (3 << 20, 9), (8 << 20, 19), ((8 << 20) + 1, 20)])
def test_the_size_of_a_zstd_frame_says_which_window_it_needs(size: int, level: int) -> None:
    """Levels with a smaller window than the frame would not have written it in a single segment."""
    given = import_zstd().compress(bytes(size), 20)
    assert given[4] & 0x20
    assert getattr(detect_compression(given[:MAGIC_SIZE]), "level", -1) == level


@pytest.mark.parametrize("is_checked", [False, True])
def test_checksums_of_zstd_frames_are_kept(*, is_checked: bool) -> None:
    zstd = import_zstd()
    given = zstd.compress(b"text" * 1000, options={int(zstd.CompressionParameter.checksum_flag): int(is_checked)})
    out = io.BytesIO()
    with open_compressor(out, detect_compression(given)) as file:
        file.write(b"text" * 1000)
    assert bool(out.getvalue()[4] & 4) == is_checked
