"""Compressed streams: the level is read from what a tool wrote, and unpacking takes all the forms that tools write."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import subprocess

import pytest

from sframegen.elf.compressed import import_zstd
from sframegen.packages.compression import MAGIC_SIZE, Compression, detect_compression, open_compressor, open_decompressed
from tests.packages.package_makers import needs

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
