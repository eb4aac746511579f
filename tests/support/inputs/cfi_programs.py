"""Assembler sources full of CFI directives, and the peers' assembler and linker for each ABI."""

from __future__ import annotations

import re
import subprocess
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from tests.support.inputs.cfi_writer import sleb, uleb
from tests.support.peers import Peers


class AssemblerError(Exception):
    """What the assembler said when it made no object."""


class Target(NamedTuple):
    """An ABI's tools (`prefix` of their names, `flags` of as and ld alike), and what CFI of it is made from."""

    prefix: str
    sp: int
    fp: int
    ra: int
    others: tuple[int, ...]  # registers of every kind
    flags: tuple[str, ...] = ()
    directives: tuple[str, ...] = ()  # of its own
    cfa_offset: int = 8  # at a function's start
    cfa_step: int = 1
    nop_size: int = 4

    @property
    def plain(self) -> list[list[str]]:
        """Functions of every kind of CIE. Where they come first, the others share their CIEs, and not each other's."""
        marks = [mark for mark in (".cfi_signal_frame", ".cfi_b_key_frame") if mark in (".cfi_signal_frame", *self.directives)]
        return [[*some, "nop"] for count in range(len(marks) + 1) for some in combinations(marks, count)]

    def register_name(self, number: str) -> str:
        return {self.sp: "SP", self.fp: "FP", self.ra: "RA"}.get(int(number), "REG")

    def assemble(self, peers: Peers, source: str, directory: Path, *flags: str) -> tuple[Path, str]:
        """The object, and the warnings. Comments begin with `#`, for every assembler."""
        file = directory / f"program{''.join(flags)}.o"
        command = [peers.tool(self.prefix + "as"), *self.flags, *flags, "-o", str(file)]
        done = subprocess.run(command, input=re.sub("#.*", "", source), check=False, capture_output=True, text=True)
        if done.returncode:
            raise AssemblerError(done.stderr)
        return file, done.stderr

    def link(self, peers: Peers, source: str, directory: Path, *flags: str) -> Path:
        """A library of one source; `flags` are the assembler's."""
        return self.link_object(peers, self.assemble(peers, source, directory, *flags)[0])

    def link_object(self, peers: Peers, made: Path) -> Path:
        """A library, its code at CODE_ADDRESS."""
        file = made.with_suffix(".so")
        command = [peers.tool(self.prefix + "ld"), *self.flags, "-shared", f"-Ttext={CODE_ADDRESS:#x}", "-o", str(file), str(made)]
        subprocess.run(command, check=True)
        return file


CODE_ADDRESS = 0x400000
SIMPLE = ".cfi_startproc simple"
ARM64 = Target(
    "aarch64-linux-gnu-", 31, 29, 30, (*range(31), 33, 46, 64, 70, 96, 127),
    directives=(".cfi_negate_ra_state", ".cfi_negate_ra_state_with_pc", ".cfi_b_key_frame"), cfa_offset=0,
)  # fmt: skip
TARGETS = {
    "amd64": Target("", 7, 6, 16, (*range(18), 33, 67, 126), nop_size=1),
    "arm64": ARM64,
    "arm64-be": ARM64._replace(flags=("-EB",)),
    "s390x": Target("s390x-linux-gnu-", 15, 11, 14, (*range(33), 68), cfa_offset=160, cfa_step=8),
}


# -- programs: functions, each a list of lines

Operation = tuple[str, tuple[int, ...]]  # name of a directive or of an escaped instruction, its operands
EDGES = [-(1 << 31), -(1 << 15), -(1 << 7), 0, 1 << 7, 1 << 15, 1 << 31]  # between the sizes of data words


def near(edges: list[int], step: int) -> SearchStrategy[int]:
    return st.builds(lambda edge, by: edge + by * step, st.sampled_from(edges), st.integers(-3, 3))


def operations(target: Target) -> SearchStrategy[list[list[Operation]]]:
    register = st.sampled_from([*[target.fp, target.ra] * len(target.others), target.sp, *target.others])
    base = st.sampled_from([*[target.sp, target.fp] * 2 * len(target.others), *target.others])
    scaled = [target.cfa_offset + target.cfa_step * edge for edge in EDGES]
    plain = near(EDGES, 1) | st.integers(0, 40).map(lambda n: 8 * n)
    cfa_offset = plain | near(scaled, target.cfa_step) | st.integers(0, 40).map(lambda n: target.cfa_offset + 8 * n)
    slot = near(EDGES, 8) | st.integers(1, 40).map(lambda n: -8 * n)
    uleb = st.integers(0, 300)
    of_register, of_both = st.tuples(register), st.tuples(register, register)
    kinds: dict[str, SearchStrategy[tuple[int, ...]]] = {
        ".cfi_def_cfa": st.tuples(base, cfa_offset),
        ".cfi_def_cfa_register": st.tuples(base),
        ".cfi_def_cfa_offset": st.tuples(cfa_offset),
        ".cfi_adjust_cfa_offset": st.tuples(st.integers(-20, 20).map(lambda n: 8 * n) | near(EDGES, 1)),
        ".cfi_offset": st.tuples(register, slot),
        ".cfi_rel_offset": st.tuples(register, slot),
        ".cfi_val_offset": st.tuples(register, slot | st.sampled_from([0, target.cfa_offset, -target.cfa_offset])),
        ".cfi_register": of_both,
        ".cfi_restore": of_register,
        ".cfi_undefined": of_register,
        ".cfi_same_value": of_register,
        ".cfi_remember_state": st.just(()),
        ".cfi_restore_state": st.just(()),
        ".cfi_window_save": st.just(()),
        ".cfi_signal_frame": st.just(()),
        ".cfi_return_column": of_register,
        **{name: st.just(()) for name in target.directives},
        "nop": st.just(()),
        "GNU_args_size": st.tuples(uleb),
        "def_cfa": st.tuples(base, uleb),
        "def_cfa_sf": st.tuples(base, st.integers(-40, 40)),
        "def_cfa_offset_sf": st.tuples(st.integers(-40, 40)),
        "offset_extended": st.tuples(register, st.integers(0, 40)),
        "offset_extended_sf": st.tuples(register, st.integers(-40, 40)),
        "val_offset": st.tuples(register, st.integers(0, 40)),
        "same_value": of_register,
        "register": of_both,
        "GNU_negative_offset_extended": st.tuples(register, st.integers(0, 40)),
        "def_cfa_expression": st.tuples(st.integers(0, len(EXPRESSIONS) - 1), base, plain),
        "expression": st.tuples(st.integers(0, len(EXPRESSIONS) - 1), base, plain, register),
        "val_expression": st.tuples(st.integers(0, len(EXPRESSIONS) - 1), base, plain, register),
    }
    states = [".cfi_remember_state", ".cfi_restore_state"]
    usual = [name for name in kinds if name in USUAL]
    name = st.sampled_from([*usual * 12, *states * 12, *kinds])
    operation = name.flatmap(lambda name: st.tuples(st.just(name), kinds[name]))
    frame = [(".cfi_offset", (target.fp, -16)), (".cfi_offset", (target.ra, -8)), (".cfi_def_cfa_register", (target.fp,))]
    frame += [(".cfi_restore", (target.fp,)), (".cfi_restore", (target.ra,)), (".cfi_def_cfa", (target.sp, target.cfa_offset + 16))]
    return st.lists(st.lists(operation | st.sampled_from(frame), max_size=3), min_size=1, max_size=10)


# what GNU as has words for, mostly
USUAL = {
    ".cfi_def_cfa", ".cfi_def_cfa_register", ".cfi_def_cfa_offset", ".cfi_adjust_cfa_offset", ".cfi_offset", ".cfi_rel_offset",
    ".cfi_restore", ".cfi_same_value", ".cfi_negate_ra_state", ".cfi_b_key_frame", "nop",
}  # fmt: skip


def programs(target: Target) -> SearchStrategy[list[str]]:
    """The lines between .cfi_startproc and .cfi_endproc; every row is one `nop` long."""
    return operations(target).map(lambda rows: render(target, rows))


class State(NamedTuple):
    cfa_offset: int  # as the assembler counts
    by_expression: bool  # the CFA is; then it has no offset or register to change


def render(target: Target, rows: list[list[Operation]]) -> list[str]:
    """Leaves out what the assembler refuses, or what means nothing in DWARF."""
    state = State(target.cfa_offset, by_expression=False)
    remembered: list[State] = []
    lines: list[str] = []
    for row in rows:
        for name, operands in row:
            if (name in CHANGES_OF_CFA and state.by_expression) or (name == ".cfi_restore" and "nop" not in lines):
                continue  # before the first row .cfi_restore goes into the CIE, whose rules it is to restore
            if name == ".cfi_remember_state":
                remembered.append(state)
            elif name == ".cfi_restore_state":
                if not remembered:
                    continue
                state = remembered.pop()
            elif name == ".cfi_rel_offset" and (operands[1] - state.cfa_offset) % 8:
                continue
            elif name in OFFSETS_OF_CFA:
                state = state._replace(cfa_offset=operands[-1] + (state.cfa_offset if name == ".cfi_adjust_cfa_offset" else 0))
            if name in WHOLE_CFA:
                state = state._replace(by_expression=name == "def_cfa_expression")
            lines.append(spell(name, operands))
        lines.append("nop")
    return lines


OFFSETS_OF_CFA = {".cfi_def_cfa", ".cfi_def_cfa_offset", ".cfi_adjust_cfa_offset"}
CHANGES_OF_CFA = {".cfi_def_cfa_register", ".cfi_def_cfa_offset", ".cfi_adjust_cfa_offset", "def_cfa_offset_sf"}
WHOLE_CFA = {".cfi_def_cfa", "def_cfa", "def_cfa_sf", "def_cfa_expression"}


def spell(name: str, operands: tuple[int, ...]) -> str:
    if name.startswith("."):
        return f"{name} {', '.join(map(str, operands))}".rstrip()
    opcode, signed = ESCAPES[name]
    if name.endswith("expression"):
        number, base, offset, *register = operands
        expression = EXPRESSIONS[number](base, offset)
        code = [opcode, *register, *uleb(len(expression)), *expression]
    else:
        last = len(operands) - 1
        code = [opcode, *(byte for n, operand in enumerate(operands) for byte in (sleb if signed and n == last else uleb)(operand))]
    return f".cfi_escape {', '.join(map(hex, code))}"


# instruction: opcode, whether its last operand is signed
ESCAPES = {
    "nop": (0x00, False), "offset_extended": (0x05, False), "same_value": (0x08, False), "register": (0x09, False),
    "def_cfa": (0x0C, False), "def_cfa_expression": (0x0F, False), "expression": (0x10, False), "offset_extended_sf": (0x11, True),
    "def_cfa_sf": (0x12, True), "def_cfa_offset_sf": (0x13, True), "val_offset": (0x14, False), "val_expression": (0x16, False),
    "GNU_args_size": (0x2E, False), "GNU_negative_offset_extended": (0x2F, False),
}  # fmt: skip

DEREF, CONSTS, DROP, MINUS, PLUS, PLUS_UCONST, LIT3, BREG0, BREGX = 0x06, 0x11, 0x13, 0x1C, 0x22, 0x23, 0x33, 0x70, 0x92


def breg(base: int, offset: int) -> list[int]:
    return [*([BREG0 + base] if base < 32 else [BREGX, *uleb(base)]), *sleb(offset)]


EXPRESSIONS = (
    breg,
    breg,
    lambda base, offset: [*breg(base, offset), DEREF],
    lambda base, offset: [*breg(base, offset), DEREF],
    lambda base, offset: [*breg(base, offset), PLUS_UCONST, 8],
    lambda base, offset: [*breg(base, offset), CONSTS, 8, PLUS, DEREF],
    lambda base, offset: [LIT3, *breg(base, offset), PLUS],
    lambda base, offset: [*breg(base, 0), CONSTS, *sleb(offset), MINUS],
    lambda base, offset: [*breg(base, offset), DEREF, PLUS_UCONST, 8],
    lambda base, offset: [*breg(base, offset), DEREF, DEREF],
    lambda base, offset: [*breg(base, 0), *breg(base, offset), DROP],
    lambda base, offset: [BREGX, *uleb(base), *sleb(offset)],
    lambda _base, offset: [CONSTS, *sleb(offset)],
    # on the stack that a register's expression finds: the CFA
    lambda _base, offset: [PLUS_UCONST, *uleb(abs(offset))],
    lambda _base, offset: [CONSTS, *sleb(offset), PLUS],
    lambda _base, offset: [CONSTS, *sleb(offset), PLUS, DEREF],
)


def source_of(functions: list[list[str]]) -> str:
    """A function may begin with SIMPLE: it has no rules then."""
    begun = (body if body[0] == SIMPLE else [".cfi_startproc", *body] for body in functions)
    return "\n".join([".text", *[line for body in begun for line in (*body, ".cfi_endproc")], ""])


def is_sound(body: list[str]) -> bool:
    """Are there rows, to the end, and a state for every .cfi_restore_state? render()'s other rules are not looked at."""
    depth = 0
    for at, line in enumerate(body):
        depth += {".cfi_remember_state": 1, ".cfi_restore_state": -1}.get(line, 0)
        if depth < 0 or (line.startswith(".cfi_restore ") and "nop" not in body[:at]):
            return False
    return body[-1:] == ["nop"]
