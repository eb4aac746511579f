"""Hostile packages, and hostile users of the machine: one line each, nothing outside the output, the input untouched."""

from __future__ import annotations

import bz2
import errno
import gzip
import io
import lzma
import os
import random
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from sframegen import FormatError
from sframegen.elf.compressed import MAX_WINDOW_LOG, import_zstd
from sframegen.packages import debs, package_pass, wheel_record
from sframegen.packages.compression import MAX_XZ_MEMORY
from sframegen.packages.package_api import add_to_package
from sframegen.packages.tar_archives import MAX_HEADER_BYTES
from tests import ROOT
from tests.packages.package_makers import CONTROL, NAME, deb, deb_of, entry, tar, wheel
from tests.support.commands import run as invoke


@pytest.fixture
def packages(library: bytes, tmp_path: Path) -> dict[str, Path]:
    files = {"x/a.so": library, "x/text": b"text" * 400, "x/b.so": library}
    made = {"whl": wheel(tmp_path / NAME, files), "deb": deb_of(tmp_path / "x.deb", files)}
    for suffix in ("", ".gz", ".xz", ".bz2"):
        made[f"tar{suffix}"] = tmp_path / f"x.tar{suffix}"
        made[f"tar{suffix}"].write_bytes(tar(list(files.items()), mode=f"w:{suffix[1:]}" if suffix else "w"))
    made["tar.zst"] = tmp_path / "x.tar.zst"
    made["tar.zst"].write_bytes(import_zstd().compress(tar(list(files.items()))))
    return made


KINDS = ("whl", "deb", "tar", "tar.gz", "tar.xz", "tar.bz2", "tar.zst")


def everything(directory: Path) -> set[str]:
    return {str(path) for path in directory.rglob("*")}


def refused(path: Path, *options: str) -> str:
    had, before = path.read_bytes(), everything(path.parent)
    result = invoke("add-section", "--no-verify", *options, path)
    assert result.exit_code == 1, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert (path.read_bytes(), everything(path.parent)) == (had, before)
    assert result.stdout == ""
    assert result.stderr.startswith("sframegen: ")
    assert result.stderr.count("\n") == 1, result.stderr
    return str(result.stderr)


@pytest.mark.parametrize("kind", KINDS)
def test_packages_that_are_cut_off(packages: dict[str, Path], kind: str, tmp_path: Path) -> None:
    path = packages[kind]
    data = path.read_bytes()
    (tmp_path / "only").mkdir()
    one = tmp_path / "only" / path.name
    for number in range(1, 50):
        cut = data[: len(data) * number // 50]
        one.write_bytes(cut)
        if kind != "tar" or is_damaged(data, len(cut)):
            assert path.name in refused(one)


def is_damaged(archive: bytes, size: int) -> bool:
    """True if these first bytes of a tar archive end within an entry, or within the first block of zeros after the last."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as file:
        ends = {member.offset_data + member.size + -member.size % 512 for member in file}
    return size not in ends and size < max(ends) + 512


@pytest.mark.parametrize("kind", KINDS)
def test_packages_full_of_garbage(packages: dict[str, Path], kind: str, tmp_path: Path) -> None:
    """Damage is refused, or is in what no reader reads."""
    path, out = packages[kind], tmp_path / "out"
    data = path.read_bytes()
    chosen = random.Random(kind)
    for number in range(80):
        start = chosen.randrange(len(data))
        garbage = bytes([data[start] ^ 1 << chosen.randrange(8)]) if number % 2 else chosen.randbytes(chosen.choice((4, 40, 400)))
        damaged = data[:start] + garbage + data[start + len(garbage) :]
        path.write_bytes(damaged)
        try:
            add_to_package(path, output=out, verify=False)
        except FormatError as error:
            assert "\n" not in str(error)  # noqa: PT017
            assert not out.exists()
        assert path.read_bytes() == damaged
        out.unlink(missing_ok=True)


def zeros(count: int, compress: Callable[[bytes], bytes]) -> bytes:
    """A tar archive of one file of zeros: its header, and many streams of the same."""
    info = tarfile.TarInfo("zeros")
    info.size = count << 20
    return compress(info.tobuf()) + compress(bytes(1 << 20)) * count


@pytest.mark.parametrize("suffix", ["gz", "xz", "bz2", "zst"])
def test_tar_bombs(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package_pass, "MIN_UNPACKED_LIMIT", 1 << 20)
    pack = {"gz": gzip.compress, "xz": lzma.compress, "bz2": bz2.compress, "zst": import_zstd().compress}
    path = tmp_path / f"bomb.tar.{suffix}"
    path.write_bytes(zeros(3000, pack[suffix]))
    assert "zeros: with this file, the package unpacks to more than" in refused(path)
    if suffix == "gz":
        path.write_bytes(gzip.compress(b"") * 100_000)  # each stream costs as much as a large one
        assert "streams" in refused(path)


@pytest.mark.dear
def test_memory_for_a_bomb_is_that_of_a_piece(tmp_path: Path) -> None:
    """One stream, all of it in the first bytes: it is unpacked piece for piece."""
    path = tmp_path / "bomb.tar.xz"
    with lzma.open(path, "wb", preset=0) as file:
        info = tarfile.TarInfo("zeros")
        info.size = 200 << 20
        file.write(info.tobuf())
        for _ in range(200):
            file.write(bytes(1 << 20))
        file.write(bytes(10240))
    tracemalloc.start()
    add_to_package(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 << 20


def test_zip_bombs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / NAME
    monkeypatch.setattr(package_pass, "MIN_UNPACKED_LIMIT", 1 << 20)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(20):
            archive.writestr(f"x/{number}", bytes(1 << 20))
    assert "unpacks to more than" in refused(path)


def test_too_many_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package_pass, "MAX_ENTRIES", 1000)
    path = tmp_path / "x.tar"
    path.write_bytes(tar([(f"x/{number}", b"") for number in range(1001)]))
    assert "more than 1,000 entries" in refused(path)
    whl = wheel(tmp_path / NAME, {f"x/{number}": b"" for number in range(1001)})
    assert "more than 1,000 entries" in refused(whl)


def test_a_full_disk_of_private_files_is_named() -> None:
    package = package_pass.Pass("wheel", 0, lambda *_: False)
    file = package.private_path("changed-1")
    with pytest.raises(OSError, match=f"temporary files in {file.parent}: full"), package:
        raise OSError(errno.ENOSPC, "full", str(file))
    with pytest.raises(OSError, match=r"^.Errno 28. full"), package:  # its directory is gone
        raise OSError(errno.ENOSPC, "full")


def test_names_with_control_characters_and_endless_ones(tmp_path: Path) -> None:
    for name in ("../x\n\x1b[2J", "/" + "x" * 5000):
        path = tmp_path / "x.tar"
        path.write_bytes(tar([(name, b"")], tarfile.PAX_FORMAT))
        assert "\x1b" not in refused(path)


def test_an_elf_file_that_is_damaged_is_a_warning(library: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    path.write_bytes(tar([("bad.so", library[:300]), ("good.so", library)]))
    result = invoke("add-section", "--no-verify", path)
    assert result.exit_code == 0
    assert f"{path}: warning: bad.so: " in result.stderr
    assert "1 of 2 ELF files given a section, 1 refused" in result.stdout
    result = invoke("add-section", "--min-coverage", "1", path)
    assert result.exit_code == 1
    assert "--min-coverage: 1 file in it refused" in result.stderr


def test_a_package_that_is_replaced_while_it_is_read(packages: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    path = packages["whl"]
    other = path.with_name("other")
    visit = package_pass.Pass.visit

    def replacing(self: package_pass.Pass, name: str, beginning: bytes, rest: io.BytesIO, size: int) -> package_pass.Content | None:
        other.write_bytes(b"of someone else")
        other.replace(path)
        return visit(self, name, beginning, rest, size)

    monkeypatch.setattr(package_pass.Pass, "visit", replacing)
    with pytest.raises(OSError, match="someone else has changed it in the meantime"):
        add_to_package(path, verify=False)
    assert path.read_bytes() == b"of someone else"
    assert not [name for name in everything(path.parent) if "sframegen" in name]


def test_a_fifo_with_the_name_of_a_package(tmp_path: Path) -> None:
    path = tmp_path / NAME
    os.mkfifo(path)
    result = invoke("add-section", path)
    assert (result.exit_code, result.stderr) == (1, f"sframegen: {path}: not a regular file\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_a_link_of_another_user_is_not_followed(packages: dict[str, Path], tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    link = theirs / NAME
    link.symlink_to(packages["whl"])
    os.chown(theirs, 65534, 65534)
    os.lchown(link, 65534, 65534)
    before = packages["whl"].read_bytes()
    with pytest.raises(OSError, match="another user controls"):
        add_to_package(link, verify=False)
    assert packages["whl"].read_bytes() == before


def test_extracting_is_never_done(library: bytes, tmp_path: Path) -> None:
    """A link, and a file below its name: tools that unpack it in order write through the link."""
    victim = tmp_path / "victim"
    victim.mkdir()
    path = tmp_path / "x.tar"
    path.write_bytes(tar([(entry("l", tarfile.SYMTYPE, str(victim)), b""), ("l/x.so", library)]))
    add_to_package(path, verify=False)
    assert everything(victim) == set()


def test_dangerous_debs(library: bytes, tmp_path: Path) -> None:
    for control in (CONTROL.replace(b"100", b"9" * 5000), CONTROL.replace(b"100", b"x"), b""):
        path = deb_of(tmp_path / "x.deb", {"a.so": library}, control=control)
        add_to_package(path, verify=False)
    path = deb_of(tmp_path / "x.deb", {"a.so": library}, md5sums=b"\xff\0 garbage\n" * 10_000)
    add_to_package(path, verify=False)


def test_the_page_has_the_limits() -> None:
    page = " ".join((ROOT / "docs/packaging.md").read_text().split())
    limits = (
        f"More than {package_pass.MAX_ENTRIES:,} entries",
        f"a file of more than {package_pass.MAX_ENTRY_BYTES >> 30} GiB",
        f"contents of more than {package_pass.MAX_UNPACKED_BYTES >> 30} GiB",
        f"of more than {package_pass.MIN_UNPACKED_LIMIT >> 30} GiB and {package_pass.MAX_RATIO} times the package",
        f"more than {MAX_XZ_MEMORY >> 20} MiB and {1 << MAX_WINDOW_LOG >> 20} MiB of memory",
        f"headers of one tar entry of more than {MAX_HEADER_BYTES >> 20} MiB",
    )
    assert [limit for limit in limits if limit not in page] == []


def test_records_of_empty_lines_and_of_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line costs hundreds of bytes of memory, and compresses to a few bits."""
    monkeypatch.setattr(wheel_record, "MAX_ENTRIES", 1000)
    for text in ("\n" * 1001, "," * (wheel_record.MAX_LINE + 1)):
        path = wheel(tmp_path / NAME, {}, record=lambda _, text=text: text)  # type: ignore[misc]
        assert "more than RECORD of a wheel has" in refused(path)


def test_headers_that_fill_the_memory(library: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Directories and links have no contents, and their names and attributes are kept."""
    monkeypatch.setattr(package_pass, "MAX_HEADER_BYTES", 1 << 20)
    path = tmp_path / "x.tar.gz"
    links = [(entry(f"{number}{'/x' * 1000}", tarfile.LNKTYPE, "y" * 2000), b"") for number in range(300)]
    path.write_bytes(tar(links, mode="w:gz"))
    assert "extended headers of more than 1,048,576 bytes" in refused(path)
    monkeypatch.setattr(debs, "MAX_CONTROL_BYTES", 1 << 16)
    about = tar([("./control", CONTROL), *((entry(str(number), tarfile.DIRTYPE), b"") for number in range(200))], mode="w:xz")
    path = deb(tmp_path / "x.deb", tar([("./a.so", library)], mode="w:xz"), about, suffix=".xz")
    assert "more than 65,536 bytes" in refused(path)
