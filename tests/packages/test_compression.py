"""Compressed streams: the level is read from what a tool wrote, and unpacking takes all the forms that tools write."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from sframegen.elf.compressed import zstd_library
from sframegen.packages.compression import MAGIC_SIZE, Compression, compressed, compression_at, compression_of, decompressed

if TYPE_CHECKING:
    from pathlib import Path

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
    with compressed(out, Compression(name, level, check=lzma.CHECK_CRC32, mtime=1700000000)) as file:
        file.write(DATA)
    found = compression_of(out.getvalue()[:MAGIC_SIZE])
    assert found is not None
    assert (found.name, found.level) == (name, known)
    assert found.check == {"xz": lzma.CHECK_CRC32, "zst": 1}.get(name, -1)
    assert found.mtime == (1700000000 if name == "gz" else 0)
    assert decompressed(io.BytesIO(out.getvalue()), found).read() == DATA


def xz(*options: str) -> bytes:
    if shutil.which("xz") is None:
        pytest.skip("no xz on this machine")
    return subprocess.run(["xz", "-c", "-T2", *options], input=DATA, check=True, capture_output=True).stdout


@pytest.mark.parametrize(
    "options", [("-1", "--block-size=64KiB"), ("-2", "--block-size=100000", "-Csha256"), ("-0",), ("-6", "-Cnone")]
)
def test_xz_blocks_and_their_sizes_are_kept(options: tuple[str, ...], tmp_path: Path) -> None:
    """From these, dpkg decompresses in parallel. Where the encoder is the same, so are all bytes."""
    given = tmp_path / "given.xz"
    given.write_bytes(xz(*options))
    with given.open("rb") as file:
        found = compression_at(file)
        assert file.tell() == 0
    written = tmp_path / "written.xz"
    with written.open("wb") as target, compressed(target, found) as out:
        for at in range(0, len(DATA), 10_007):
            out.write(DATA[at : at + 10_007])
    assert lzma.decompress(written.read_bytes()) == DATA
    of_given, of_written = (
        [line.split("\t")[4:] for line in listed.splitlines() if line.startswith("block")]
        for listed in (
            subprocess.run(["xz", "--robot", "-lvv", file], check=True, capture_output=True, text=True).stdout
            for file in (given, written)
        )
    )
    # uncompressed sizes, the size of the header, and that it has both sizes
    assert [[one[3], *one[7:9]] for one in of_given] == [[one[3], *one[7:9]] for one in of_written]
    assert {one[8] for one in of_written} == {"cu"}


def test_xz_with_an_only_block_gets_the_blocks_that_xz_would_choose() -> None:
    found = compression_at(io.BytesIO(xz("-6")))
    assert found is not None
    assert found.block == 24 << 20
    given = io.BytesIO(xz("-1", "--block-size=64KiB"))
    assert getattr(compression_at(given), "block", 0) == 64 << 10


def test_xz_without_sizes_in_headers_gets_none() -> None:
    assert getattr(compression_at(io.BytesIO(lzma.compress(DATA))), "block", -1) == 0


def test_a_block_of_no_real_size_is_not_looked_behind() -> None:
    """The largest sizes that a header can have are no offsets in a file."""
    given = xz("-1", "--block-size=64KiB")
    for sizes in (b"\xff" * 8 + b"\x7f" + b"\x01", b"\x01" + b"\xff" * 8 + b"\x7f"):
        hostile = given[:12] + bytes((5, 0xC0)) + sizes + b"\x21\x01\x10" + bytes(100)
        assert getattr(compression_at(io.BytesIO(hostile)), "block", -1) == 0


def test_an_empty_xz_stream_has_no_blocks() -> None:
    out = io.BytesIO()
    with compressed(out, Compression("xz", 6, check=lzma.CHECK_CRC64, block=1 << 20)):
        pass
    assert lzma.decompress(out.getvalue()) == b""
    assert compression_at(io.BytesIO(out.getvalue())) == Compression("xz", 6, check=lzma.CHECK_CRC64)


def test_xz_of_several_threads() -> None:
    """dpkg-deb writes such: the header of a block has its sizes."""
    if shutil.which("xz") is None:
        pytest.skip("no xz on this machine")
    for level in (2, 6, 9):
        data = subprocess.run(["xz", f"-{level}", "-T2", "-c"], input=DATA, check=True, capture_output=True).stdout
        found = compression_of(data[:MAGIC_SIZE])
        assert found is not None
        assert found.level == level
        assert decompressed(io.BytesIO(data), found).read() == DATA


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, bz2.compress, zstd_library().compress])
def test_streams_that_follow_one_another_are_one(pack: type[bytes]) -> None:
    data = b"".join(pack(DATA[at : at + 100_000]) for at in range(0, len(DATA), 100_000))
    padding = b"" if data.startswith((b"BZh", b"\x28\xb5")) else bytes(64)
    assert decompressed(io.BytesIO(data + padding), compression_of(data)).read() == DATA


def test_a_zstd_frame_without_a_window_has_the_usual_level() -> None:
    """Where a window would be is the low byte of the frame's size: 0x68 would be the window of level 19."""
    given = zstd_library().compress(bytes(0x68), 19)
    assert given[4] & 0x20
    assert given[5] == 0x68
    assert compression_of(given[:MAGIC_SIZE]) == Compression("zst", 3, check=0)


@pytest.mark.parametrize(("size", "level"), [(2 << 20, 3), (3 << 20, 9), (8 << 20, 19), ((8 << 20) + 1, 20)])
def test_the_size_of_a_zstd_frame_says_which_window_it_needs(size: int, level: int) -> None:
    """Levels with a smaller window than the frame would not have written it in a single segment."""
    given = zstd_library().compress(bytes(size), 20)
    assert given[4] & 0x20
    assert getattr(compression_of(given[:MAGIC_SIZE]), "level", -1) == level


@pytest.mark.parametrize("is_checked", [False, True])
def test_checksums_of_zstd_frames_are_kept(*, is_checked: bool) -> None:
    zstd = zstd_library()
    given = zstd.compress(b"text" * 1000, options={int(zstd.CompressionParameter.checksum_flag): int(is_checked)})
    out = io.BytesIO()
    with compressed(out, compression_of(given)) as file:
        file.write(b"text" * 1000)
    assert bool(out.getvalue()[4] & 4) == is_checked
