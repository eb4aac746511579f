"""Files of gigabytes, all but a few kilobytes of them holes: neither memory nor disk space nor time is needed for those."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from sframegen import add_section, convert, read
from sframegen.elf.file import open_elf
from sframegen.elf.records import PT, RECORDS, SHT, Ehdr, Phdr, Shdr
from sframegen.format.locate import find_sframe
from tests.support.loops import for_each
from tests.support.peers import Compiler

GIB = 1 << 30
COMMANDS = {"add-section": True, "add-section --replace --optimize=none": True, "convert --sframe-version=2": True, "remove": False}
MARK = b"behind the hole"
MEMORY_KB = 200_000  # at most; measured: 25,000
# The command line, which prints at its end how much memory it had at most, files that it maps included.
MEASURED = """
import atexit, sys
from sframegen.cli.start import main
def tell():
    print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")), file=sys.stderr)
atexit.register(tell)
main()
"""


@pytest.fixture(scope="module")
def program(compile_c: Compiler) -> Path:
    return compile_c("int main(void) { return 7; }", "-O2", name="program")


def with_hole(program: Path, large: Path, size: int) -> Path:
    """The program with another section, not loaded, of `size` bytes, none of them written but the last."""
    elf = open_elf(program)
    start = len(elf.data) + -len(elf.data) % 4096
    header = elf.header._replace(e_shoff=start + size, e_shnum=elf.shnum + 1)
    added = Shdr(0, SHT.PROGBITS, 0, 0, start, size, 0, 0, 1, 0)
    with large.open("wb") as out:
        out.write(elf.data)
        out.seek(start + size - len(MARK))
        out.write(MARK)
        out.writelines(RECORDS[Shdr, elf.byte_order].pack(*section) for section in [*(s.header for s in elf.sections), added])
        out.seek(0)
        out.write(RECORDS[Ehdr, elf.byte_order].pack(*header))
    large.chmod(0o755)
    return large


def with_memory(program: Path, large: Path, size: int) -> Path:
    """The program with `size` bytes more of .bss."""
    elf = open_elf(program)
    number = max(n for n, segment in enumerate(elf.segments) if segment.p_type == PT.LOAD)
    segment = elf.segments[number]._replace(p_memsz=elf.segments[number].p_memsz + size)
    content = bytearray(elf.data)
    code = RECORDS[Phdr, elf.byte_order]
    code.pack_into(content, elf.header.e_phoff + number * code.size, *segment)
    large.write_bytes(content)
    return large


def check(large: Path, size: int, *, has_section: bool = True) -> None:
    assert bool(find_sframe(open_elf(large))) == has_section
    assert large.stat().st_size > size
    assert large.stat().st_blocks * 512 < 1 << 20
    elf = open_elf(large)
    end = next(s.header.sh_offset + s.header.sh_size for s in elf.sections if s.header.sh_size >= size)
    assert bytes(elf.data[end - len(MARK) : end]) == MARK


@pytest.mark.dear
@for_each("size", [2 * GIB + 4096, 5 * GIB])
def test_holes_cost_nothing(program: Path, tmp_path: Path, size: int) -> None:
    large = with_hole(program, tmp_path / "large", size)
    before = large.stat().st_size
    for command, has_section in COMMANDS.items():
        verify = ["--no-verify"] * (size > 4 * GIB or command != "add-section")  # it looks at the bytes of holes, too
        arguments = [sys.executable, "-c", MEASURED, *command.split(), *verify, str(large)]
        done = subprocess.run(arguments, check=True, capture_output=True, text=True)
        assert int(done.stderr) < MEMORY_KB
        check(large, size, has_section=has_section)
        assert subprocess.run([large], check=False).returncode == 7
    assert large.stat().st_size == before


def test_memory_that_is_not_in_the_file_costs_nothing(program: Path, tmp_path: Path) -> None:
    large = with_memory(program, tmp_path / "large", 5 * GIB)
    add_section(large)
    assert len(read(large).table) > 0
    assert max(segment.p_vaddr for segment in open_elf(large).segments) > 5 * GIB
    assert large.stat().st_size < 100_000


def test_holes_stay_where_the_kernel_does_not_copy(program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("linker.files.copying.os.copy_file_range", Mock(side_effect=OSError(errno.EXDEV, "another file system")))
    large = with_hole(program, tmp_path / "large", 2 * GIB)
    add_section(large, verify=False)
    check(large, 2 * GIB)
    convert(large, 2, verify=False, output=tmp_path / "other")
    check(tmp_path / "other", 2 * GIB)
