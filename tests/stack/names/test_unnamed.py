"""Functions that have no name: by their object and where they begin."""

from __future__ import annotations

import json
import platform
import re
import subprocess
from typing import TYPE_CHECKING

import pytest

import sframegen
from sframegen.elf.file import open_elf
from sframegen.elf.function_names import resolve_address
from tests.support.loops import for_each
from tests.support.processes.live import Program, command, compiled

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.peers import Compiler

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="programs for x86-64")

CALLS = r"""
KEPT void inner(void) { hold(); after++; }
KEPT void outer(void) { volatile char frame[100]; frame[1] = 2; inner(); after += frame[1]; }
int main(void) { outer(); puts("done"); return 0; }
"""
FUNCTIONS = ("hold", "inner", "outer", "main")


def without_cfi(program: Path) -> None:
    """The file alone says where functions begin no more."""
    elf = open_elf(program)
    header = elf.section(".eh_frame").header  # type: ignore[union-attr] # it has one
    data = bytearray(elf.data)
    data[header.sh_offset : header.sh_offset + header.sh_size] = bytes(header.sh_size)
    copy = program.with_name("copy")
    copy.write_bytes(data)
    copy.chmod(0o755)
    copy.rename(program)


@for_each("by", ["CFI", "section", "--convert"])
def test_functions_of_a_program_without_symbols(by: str, compile_c: Compiler, tmp_path: Path) -> None:
    """By the CFI where there is some: sections join neighbours. `optimize="none"` does not."""
    program = compiled(compile_c, tmp_path, CALLS, "-O2", "-no-pie", section=False)
    starts = [resolve_address(open_elf(program), name) for name in FUNCTIONS]
    subprocess.run(["strip", program], check=True)
    if by != "--convert":
        sframegen.add_section(program, verify=False, optimize="none" if by == "section" else "fast")
    if by == "section":
        without_cfi(program)
    with Program(program) as running:
        text, documents = (command("--convert", *form, running.pid) for form in ((), ("--json",)))
    labels = [f"[{program.name}+{start:#x}]" for start in starts]
    found = re.findall(rf"^#\d+ +0x([0-9a-f]{{16}}) (\S+) \+ 0x([0-9a-f]+) - {program}$", text.stdout, re.MULTILINE)
    assert [name for _, name, _ in found][:4] == labels
    assert [int(pc, 16) - int(offset, 16) for pc, _, offset in found][:4] == starts
    frames = json.loads(documents.stdout)["threads"][0]["frames"]
    ours = [frame for frame in frames if frame["object"] == str(program)][:4]
    assert [(frame["function"], frame["start"], frame["address"] - frame["offset"]) for frame in ours] == [
        (None, start, start) for start in starts
    ]


SIZELESS = r"""
__asm__(".pushsection .text\n.type open,@function\nopen: .cfi_startproc\n sub $8,%rsp\n .cfi_adjust_cfa_offset 8\n call *%rdi\n"
        " add $8,%rsp\n ret\n.cfi_endproc\nnop\n"
        ".cfi_startproc\n sub $24,%rsp\n .cfi_adjust_cfa_offset 24\n call *%rdi\n add $24,%rsp\n ret\n.cfi_endproc\n.popsection");
void open_(void (*)(void)) __asm__("open");
KEPT void after_open(void) { ((void (*)(void (*)(void)))((uintptr_t) open_ + 12))(hold); after++; }
int main(void) { open_(after_open); puts("done"); return 0; }
"""


def test_a_function_without_a_size_ends_where_call_frame_information_of_another_begins(compile_c: Compiler, tmp_path: Path) -> None:
    program = compiled(compile_c, tmp_path, SIZELESS, "-O2", "-no-pie", section=False)
    nameless = f"[program+{resolve_address(open_elf(program), 'open') + 12:#x}]"
    with Program(program) as running:
        found = command("--convert", running.pid).stdout
    names = re.findall(r"^#\d+ +0x[0-9a-f]{16} (\S+) ", found, re.MULTILINE)
    at = names.index("hold")
    assert names[at : at + 5] == ["hold", nameless, "after_open", "open", "main"]


def test_code_of_which_not_even_the_start_is_known(compile_c: Compiler, tmp_path: Path) -> None:
    program = compiled(compile_c, tmp_path, CALLS, "-O2", "-no-pie", "-fno-omit-frame-pointer", section=False)
    subprocess.run(["strip", program], check=True)
    without_cfi(program)
    with Program(program) as running:
        text = command("--convert", running.pid)
    assert len(re.findall(rf" \?\? - {program}$", text.stdout, re.MULTILINE)) >= 4
