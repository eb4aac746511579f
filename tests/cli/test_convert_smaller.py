"""`sframegen convert --optimize`: the sections of linkers become smaller where they are."""

from __future__ import annotations

import shutil
import struct
import subprocess
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import sframegen
from linker.existing.in_place import find_slot
from sframegen import api
from sframegen.elf.file import open_elf
from sframegen.elf.symbols import sorted_functions
from sframegen.format.locate import read_sframe
from sframegen.tables.compare import claim_spans, find_difference, have_same_rules
from sframegen.tables.optimize import MAX_GAP
from tests.support.commands import run as command

if TYPE_CHECKING:
    from tests.support.peers import Compiler, Peers

run = partial(command, "convert", "-j1")
P_FILESZ = 32  # where it is in a program header; p_memsz follows
# Functions of one frame, side by side; `pause` keeps its CFA in a register for two no-ops, which Version 2 cannot say.
PROGRAM = "\n".join(
    [
        "#include <stdio.h>",
        *(
            f'int __attribute__((noinline)) work{number}(int n) {{ char text[{100 + number}]; return sprintf(text, "%d", n); }}'
            for number in range(40)
        ),
        f"int main(int n, char **a) {{ (void)a; return {' + '.join(f'work{number}(n)' for number in range(40))} - 40; }}",
        r"""__asm__(
  ".globl pause_\n .type pause_,@function\n pause_:\n .cfi_startproc\n nop\n .cfi_def_cfa r10, 0\n nop\n nop\n"
  " .cfi_def_cfa rsp, 8\n ret\n .cfi_endproc\n .size pause_, .-pause_\n");""",
    ]
)


@pytest.fixture(scope="module")
def linked(compile_c: Compiler) -> Path:
    """Its section by GNU as and ld."""
    return compile_c(PROGRAM, "-O2", "-Wa,--gsframe", peer_binutils=True)


@pytest.fixture
def file(linked: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy2(linked, tmp_path / "program"))


def faults_of(file: Path) -> list[tuple[str, int | None]]:
    return [(found.rule, found.address) for found in api.check(file).findings if found.severity is sframegen.Severity.ERROR]


@pytest.mark.parametrize("level", ["fast", "size"])
def test_a_linkers_section_becomes_smaller_in_its_place(level: str, linked: Path, file: Path) -> None:
    before, place = read_sframe(open_elf(linked)), find_slot(open_elf(linked))
    result = run("--optimize", level, file)
    assert result.exit_code == 0, result.output
    after = read_sframe(open_elf(file))
    size = len(after.data)
    assert result.stdout.startswith(f"{file}: SFrame version 3, ")
    assert f"; .sframe {place.size:,} -> {size:,} bytes\n" in result.stdout
    assert size < len(before.data) * {"fast": 0.6, "size": 0.5}[level]
    assert have_same_rules(before.table, after.table, MAX_GAP, {})
    assert find_difference(after.table, before.table)[0] is None  # nothing is lost
    data, old = file.read_bytes(), linked.read_bytes()
    assert len(data) == len(old)
    assert data[place.offset + size : place.offset + place.size] == bytes(place.size - size)
    changed = {at for at, (one, other) in enumerate(zip(data, old, strict=True)) if one != other}
    assert len({at for at in changed if not place.offset <= at < place.offset + place.size}) <= 3 * 8  # sizes in headers
    assert subprocess.run([file], check=False).returncode == 0
    assert faults_of(file) == faults_of(linked)
    # What the section is read for: neighbours are in one FDE, and in order.
    assert len(after.table) < len(before.table) / 2
    assert all(one < other for one, other in pairwise(after.table.start))


def test_a_segment_that_is_longer_than_its_section(linked: Path, file: Path) -> None:
    """As GNU ld's may be. It changes nothing of what follows the section."""
    elf = open_elf(linked)
    place = find_slot(elf)
    [note] = [one for one in elf.sections if one.name == ".note.gnu.property"]
    end = note.header.sh_offset + note.header.sh_size
    assert place.offset + place.size <= note.header.sh_offset
    data = bytearray(linked.read_bytes())
    at = elf.header.e_phoff + place.segments[0] * elf.header.e_phentsize + P_FILESZ
    struct.pack_into("<QQ", data, at, end - place.offset, end - place.offset)
    file.write_bytes(data)
    result = run("--optimize", "fast", file)
    assert result.exit_code == 0, result.output
    after = file.read_bytes()
    assert after[place.offset + place.size :][: end - place.offset - place.size] == data[place.offset + place.size : end]
    assert len(read_sframe(open_elf(file)).data) < place.size


def test_once_is_enough(file: Path) -> None:
    assert run("--optimize", "fast", file).exit_code == 0
    data, size = file.read_bytes(), len(read_sframe(open_elf(file)).data)
    result = run("--optimize", "fast", file)
    assert (result.exit_code, result.stdout) == (0, f"{file}: SFrame version 3 already, and no smaller than {size:,} bytes\n")
    assert run("--optimize", "none", file).exit_code == 0  # would be larger
    assert file.read_bytes() == data


def test_code_that_was_left_out_is_no_padding(linked: Path, file: Path) -> None:
    """No-ops between two functions of a section can be code for which it has no rule."""
    pause = next(symbol.address for symbol in sorted_functions(open_elf(linked)) if symbol.name == "pause_")
    assert run("--sframe-version", 2, "--optimize", "size", file).exit_code == 0
    section = sframegen.read(file)
    assert (section.rule_at(pause + 1), section.rule_at(pause + 2)) == (None, None)
    assert section.rule_at(pause) == section.rule_at(pause + 3) != None  # noqa: E711


def test_without_cfi_only_what_touches_is_joined(file: Path, peers: Peers) -> None:
    subprocess.run([peers.tool("objcopy"), "-R", ".eh_frame", "-R", ".eh_frame_hdr", file], check=True)
    before = read_sframe(open_elf(file)).table
    assert run("--optimize", "size", file).exit_code == 0
    assert list(claim_spans(read_sframe(open_elf(file)).table)) == list(claim_spans(before))


def test_cfi_that_cannot_be_read_is_refused(file: Path) -> None:
    section = open_elf(file).section(".eh_frame")
    assert section is not None
    data = bytearray(file.read_bytes())
    data[section.header.sh_offset + 8] = 0xEE  # the version of the first CIE
    file.write_bytes(data)
    result = run("--optimize", "fast", file)
    assert (result.exit_code, file.read_bytes()) == (1, bytes(data))
    assert ".eh_frame" in result.stderr
    assert result.stderr.count("\n") == 1
