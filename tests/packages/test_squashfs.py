"""squashfs images: settings, metadata and all other files are kept; damage is one line."""

from __future__ import annotations

import io
import os
import shutil
import stat
import subprocess
from typing import TYPE_CHECKING

import pytest

from cfi.errors import FormatError
from linker.files.refusals import RefusedError
from sframegen.packages import kinds
from tests.packages.images.image_inputs import ADDED, adding, elf
from tests.packages.needed_tools import needs

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.full
SETTINGS = {
    "gzip": ["-comp", "gzip", "-Xcompression-level", "5", "-Xwindow-size", "12", "-Xstrategy", "default,filtered"],
    "xz": ["-comp", "xz", "-Xbcj", "x86", "-Xdict-size", "50%", "-b", "65536"],
    "zstd": ["-comp", "zstd", "-Xcompression-level", "3", "-b", "1M"],
    "lzo": ["-comp", "lzo", "-Xalgorithm", "lzo1x_1", "-no-exports"],
    "lzma": ["-comp", "lzma", "-nopad"],
}


def tree(path: Path) -> Path:
    """What a root image has; devices and owners where this user may make them."""
    (path / "bin").mkdir(parents=True)
    (path / "bin/a").write_bytes(elf())
    (path / "bin/b").hardlink_to(path / "bin/a")
    (path / "bin/c").symlink_to("/bin/a")
    (path / "text").write_text("no ELF file")
    with (path / "sparse").open("wb") as file:
        file.truncate(3 << 20)
        file.write(b"x")
    os.mkfifo(path / "fifo")
    if os.geteuid() == 0:
        os.mknod(path / "null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        os.chown(path / "bin/a", 5, 7)
        os.setxattr(path / "bin/a", "security.capability", bytes.fromhex("0100000200200000" + 24 * "0"))
    (path / "bin/a").chmod(0o4755)
    path.chmod(0o1777)
    return path


def made(path: Path, *options: str) -> Path:
    needs("mksquashfs", "unsquashfs", "sqfs2tar", "tar2sqfs")
    command = ["mksquashfs", str(tree(path / "root")), str(path / "given.squashfs"), "-quiet", "-no-progress", *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return path / "given.squashfs"


def output(*command: str | Path) -> list[str]:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def settings(image: Path) -> list[str]:
    """What unsquashfs says of it, except sizes and counts."""
    varies = ("Found", "Filesystem size", "Number of", "Always-use-fragments", "Fragments")
    return [line for line in output("unsquashfs", "-s", image) if not line.startswith(varies)]


@pytest.mark.parametrize("compressor", SETTINGS)
def test_everything_else_is_kept(tmp_path: Path, compressor: str) -> None:
    image, new, seen = made(tmp_path, *SETTINGS[compressor]), tmp_path / "new.squashfs", list[str]()
    with image.open("rb") as source, new.open("wb") as target:
        passed = kinds.pass_through(source, "image", adding(seen), target, force=False)
    assert (passed.kind, passed.changed, seen) == ("squashfs", 1, ["bin/a"])
    assert settings(new) == settings(image)
    before, after = (output("unsquashfs", "-lln", one) for one in (image, new))
    grown = str(len(elf() + ADDED))
    assert after == [
        line.replace(f" {len(elf())} ", f" {grown} ".rjust(len(grown) + 2)) if "/bin/" in line else line for line in before
    ]
    subprocess.run(["unsquashfs", "-q", "-n", "-d", tmp_path / "new", new], check=True, stdout=subprocess.DEVNULL)
    assert (tmp_path / "new/bin/a").read_bytes() == elf() + ADDED
    assert (tmp_path / "new/bin/b").samefile(tmp_path / "new/bin/a")
    for name in ("text", "sparse"):
        assert (tmp_path / "new" / name).read_bytes() == (tmp_path / "root" / name).read_bytes()
    if os.geteuid() == 0:
        given = os.getxattr(tmp_path / "root/bin/a", "security.capability")
        assert os.getxattr(tmp_path / "new/bin/a", "security.capability") == given
    if compressor == "lzma":
        assert new.stat().st_size % 4096


def test_equal_images_give_equal_bytes_and_unchanged_ones_are_not_written(tmp_path: Path) -> None:
    data = made(tmp_path).read_bytes()
    results = []
    for name in ("one", "other", "again"):
        with (tmp_path / name).open("w+b") as source, (tmp_path / "new").open("w+b") as target:
            source.write(data)
            source.flush()
            passed = kinds.pass_through(source, "image", adding([]), target, force=False)
            target.seek(0)
            results.append(target.read())
        data = results[-1] if name == "other" else data
    assert results[0] == results[1]
    assert (passed.elf_files, passed.changed, results[2]) == (1, 0, b"")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:50], "ends in its superblock"),
        (lambda data: data[:400], "cut off"),
        (lambda data: data[:28] + b"\x09" + data[29:], "squashfs 9.0 is not read"),
        (lambda data: data[:20] + b"\x09" + data[21:], "unknown compressor 9"),
        (lambda data: data[:200] + b"x" * 300 + data[500:], "sqfs2tar: "),
    ],
)
def test_damaged_images(tmp_path: Path, damage: object, message: str) -> None:
    image = made(tmp_path)
    image.write_bytes(damage(image.read_bytes()))  # type: ignore[operator]
    with image.open("rb") as source, pytest.raises(FormatError, match=message) as raised:
        kinds.pass_through(source, "image", adding([]), io.BytesIO(), force=False)
    assert "\n" not in str(raised.value)


def test_what_follows_an_image_would_no_longer_hold(tmp_path: Path) -> None:
    image = made(tmp_path)
    with image.open("ab") as file:
        file.write(b"hashes")
    with image.open("rb") as source, pytest.raises(RefusedError, match="data follows the squashfs image"):
        kinds.pass_through(source, "image", adding([]), io.BytesIO(), force=False)


def test_lz4_is_read_and_not_written(tmp_path: Path) -> None:
    """unsquashfs cannot read what tar2sqfs packs with it."""
    image = made(tmp_path, "-comp", "lz4")
    with image.open("rb") as source:
        assert kinds.pass_through(source, "image", lambda *_: False, None, force=False).elf_files == 1
        with pytest.raises(FormatError, match="compressed with lz4"):
            kinds.pass_through(source, "image", adding([]), io.BytesIO(), force=False)


def test_without_the_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = made(tmp_path)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with image.open("rb") as source, pytest.raises(FormatError, match=r"sqfs2tar is not on PATH: .* install squashfs-tools-ng"):
        kinds.pass_through(source, "image", adding([]), io.BytesIO(), force=False)
