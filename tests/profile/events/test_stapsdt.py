"""Where arguments of USDT probes are, as assemblers write them, and what damaged notes are."""

from __future__ import annotations

import struct
import time
from typing import TYPE_CHECKING

import pytest

from cfi.errors import FormatError
from sframegen.elf.file import open_elf
from sframegen.profile.events.operands import ARGUMENTS, PARSERS, ProbeOperand
from sframegen.profile.events.stapsdt import Argument, UserProbe, arguments_of, user_probes
from sframegen.profile.events.tracefs import Field, fields_in

if TYPE_CHECKING:
    from tests.support.peers import Compiler

FORMAT = """name: sched_example
ID: 366
format:
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;

\tfield:char comm[16];\toffset:8;\tsize:16;\tsigned:0;
\tfield:__data_loc char[] parent;\toffset:24;\tsize:4;\tsigned:0;
\tfield:pid_t pid;\toffset:28;\tsize:4;\tsigned:1;
\tfield:u64 bytes;\toffset:32;\tsize:8;\tsigned:0;
"""


def test_fields_are_numbers_of_the_event_itself() -> None:
    assert fields_in(FORMAT) == {"pid": Field(28, 4, True), "bytes": Field(32, 8, False)}


@pytest.mark.parametrize(
    ("text", "operand"),
    [
        ("%rdi", ProbeOperand(112)),
        ("%edi", ProbeOperand(112)),
        ("%dil", ProbeOperand(112)),
        ("%al", ProbeOperand(80)),
        ("%eax", ProbeOperand(80)),
        ("%r8d", ProbeOperand(72)),
        ("%r15b", ProbeOperand(0)),
        ("$-5", ProbeOperand(None, -5)),
        ("$0x10", ProbeOperand(None, 16)),
        ("-24(%rbp)", ProbeOperand(32, -24, memory=True)),
        ("(%rsp)", ProbeOperand(152, 0, memory=True)),
        ("%ah", None),
        ("%xmm0", None),
        ("8(%rax,%rcx,8)", None),
        ("name(%rip)", None),
        ("nothing", None),
    ],
)
def test_operands_of_x86_64(text: str, operand: ProbeOperand | None) -> None:
    assert PARSERS["x86_64"](text) == operand


@pytest.mark.parametrize(
    ("text", "operand"),
    [
        ("x0", ProbeOperand(0)),
        ("w30", ProbeOperand(240)),
        ("sp", ProbeOperand(248)),
        ("5", ProbeOperand(None, 5)),
        ("[sp, 16]", ProbeOperand(248, 16, memory=True)),
        ("[x29]", ProbeOperand(232, 0, memory=True)),
        ("x31", None),
        ("[x1, x2]", None),
    ],
)
def test_operands_of_aarch64(text: str, operand: ProbeOperand | None) -> None:
    assert PARSERS["aarch64"](text) == operand


def test_first_arguments() -> None:
    assert ARGUMENTS["x86_64"][:2] == (112, 104)
    assert ARGUMENTS["aarch64"] == tuple(range(0, 64, 8))


def test_arguments_of_a_probe() -> None:
    probe = UserProbe("a", "b", 1, 0, "-4@%edi 8@[sp, 16] 8f@%xmm0 3@%rax x")
    assert arguments_of(probe) == [
        Argument(4, True, "%edi"),
        Argument(8, False, "[sp, 16]"),
        Argument(8, False, "%xmm0"),
        None,
        None,
    ]


def test_a_probe_without_its_texts_is_damaged(compile_c: Compiler) -> None:
    note = struct.pack("=III8s24s", 8, 24, 3, b"stapsdt\0", bytes(24))
    words = ", ".join(map(str, note))
    source = (
        f'__asm__(".pushsection .note.stapsdt, \\"\\", \\"note\\"\\n.balign 4\\n.byte {words}\\n.popsection"); int main(void) {{}}'
    )
    with pytest.raises(FormatError, match="a probe without its texts"):
        list(user_probes(open_elf(compile_c(source))))


def test_a_very_long_text_of_arguments_costs_no_time() -> None:
    probe = UserProbe("provider", "name", 0, 0, "8@%rdi " + "[" * 400_000)  # minutes, if all of it were divided
    began = time.process_time()
    assert arguments_of(probe)[0] == Argument(8, False, "%rdi")
    assert time.process_time() - began < 5
