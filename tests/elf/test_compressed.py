"""Compressed sections, and limits on what is hostile."""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from sframegen import FormatError, Verdict, add_section, check
from sframegen.elf.compressed import ELFCOMPRESS_ZLIB, ELFCOMPRESS_ZSTD, MAX_DECOMPRESSED, MAX_RATIO, decompress
from sframegen.elf.file import ElfFile, open_elf
from tests.support.loops import for_each
from tests.support.peers import Compiler, Peers
from tests.support.zstandard import zstd

SOURCE = "int main(int n, char **v) { return n - 1; }" + "".join(
    f"int f{number}(int n) {{ volatile int room[{number + 20}] = {{n}}; return room[n]; }}" for number in range(60)
)
TEXT = bytes(range(256)) * 40


@pytest.fixture
def debug(compile_c: Compiler, peers: Peers, tmp_path: Path) -> tuple[Path, Path, Path]:
    """A program without CFI of its own, its debug file, and that compressed with zstd."""
    made = compile_c(SOURCE, "-O1", "-g", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables", "-Wl,--build-id")
    program, plain, packed = (tmp_path / name for name in ("program", "program.debug", "packed.debug"))
    subprocess.run([peers.tool("objcopy"), "--strip-debug", made, program], check=True)
    subprocess.run([peers.tool("objcopy"), "--only-keep-debug", made, plain], check=True)
    subprocess.run([peers.tool("objcopy"), "--compress-debug-sections=zstd", plain, packed], check=True)
    return program, plain, packed


def test_a_debug_file_compressed_with_zstd_serves_as_one_that_is_not(debug: tuple[Path, Path, Path], tmp_path: Path) -> None:
    program, plain, packed = debug
    section = open_elf(packed).section(".debug_frame")
    assert section is not None
    assert int.from_bytes(packed.read_bytes()[section.header.sh_offset :][:4], "little") == ELFCOMPRESS_ZSTD
    results = []
    for file in (plain, packed):
        shutil.copy(program, tmp_path / "result")
        summary = add_section(tmp_path / "result", debug_file=file)
        assert summary.functions > 60
        assert summary.one_line().endswith(f" of {' + '.join(summary.cfi_sections)}")
        assert ".debug_frame" in summary.cfi_sections
        results.append((tmp_path / "result").read_bytes())
        report = check(tmp_path / "result", debug_file=file)
        assert (report.code[Verdict.WRONG], report.code[Verdict.ABSENT]) == (0, 0)
    assert results[0] == results[1]


def test_frames_one_after_the_other() -> None:
    """As mold writes them, with one that holds nothing for the reader."""
    skippable = struct.pack("<II", 0x184D2A50, 5) + b"notes"
    raw = zstd.compress(TEXT[:5000]) + skippable + zstd.compress(TEXT[5000:])
    assert decompress(ELFCOMPRESS_ZSTD, memoryview(raw), len(TEXT)) == TEXT


@for_each(
    ("kind", "raw", "size", "why"),
    [
        (ELFCOMPRESS_ZSTD, zstd.compress(bytes(1_000_000)), 1_000_000, "compressed bytes cannot hold 1000000"),
        (ELFCOMPRESS_ZSTD, bytes(MAX_DECOMPRESSED // MAX_RATIO + 1), MAX_DECOMPRESSED + 1, "compressed bytes cannot hold"),
        (ELFCOMPRESS_ZSTD, zstd.compress(TEXT)[:-3], len(TEXT), "cannot be decompressed: "),
        (ELFCOMPRESS_ZSTD, zstd.compress(TEXT) + b"rest", len(TEXT) + 1, "cannot be decompressed: "),
        (ELFCOMPRESS_ZSTD, zstd.compress(TEXT), len(TEXT) + 1, f"decompressed to {len(TEXT)} bytes, expected {len(TEXT) + 1}"),
        (ELFCOMPRESS_ZSTD, b"", 0, ""),
        (ELFCOMPRESS_ZSTD, zstd.compress(b"") * 1000, 100, "17 frames of zstd are too many for 100 bytes"),
        (ELFCOMPRESS_ZLIB, zlib.compress(TEXT), 1 << 50, f"{len(zlib.compress(TEXT))} compressed bytes cannot hold {1 << 50}"),
        (ELFCOMPRESS_ZLIB, zlib.compress(TEXT), len(TEXT) + 1, f"decompressed to {len(TEXT)} bytes, expected {len(TEXT) + 1}"),
        (ELFCOMPRESS_ZLIB, TEXT, len(TEXT), "cannot be decompressed: "),
    ],
)
def test_what_does_not_hold_is_refused(kind: int, raw: bytes, size: int, why: str) -> None:
    if not why:
        assert len(decompress(kind, memoryview(raw), size)) == size
        return
    with pytest.raises(ValueError, match=why):
        decompress(kind, memoryview(raw), size)


def test_a_frame_that_wants_a_huge_window_is_refused() -> None:
    """One byte of its header says how much memory the reader needs; here 2 GiB."""
    raw = b"\x28\xb5\x2f\xfd" + b"\x00" + bytes([21 << 3]) + b"\x09\0\0x"
    with pytest.raises(ValueError, match=r"cannot be decompressed: .*(memory|Unable)"):
        decompress(ELFCOMPRESS_ZSTD, memoryview(raw), 1)


def test_without_the_library_one_line_says_what_to_do(debug: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    program, _, packed = debug
    before = program.read_bytes()
    for name in ("backports", "backports.zstd", "compression", "compression.zstd"):
        monkeypatch.setitem(sys.modules, name, None)
    why = r"compressed with zstd, for which a library is missing: install backports\.zstd \(see sframegen doctor\); objcopy"
    with pytest.raises(FormatError, match=why):
        add_section(program, debug_file=packed)
    assert program.read_bytes() == before


def test_other_kinds_are_named(debug: tuple[Path, Path, Path]) -> None:
    data = bytearray(debug[2].read_bytes())
    section = open_elf(debug[2]).section(".debug_frame")
    assert section is not None
    data[section.header.sh_offset] = 3
    with pytest.raises(FormatError, match=r"\.debug_frame: compression type 3 is not read; use objcopy"):
        ElfFile(memoryview(data)).contents(section)
