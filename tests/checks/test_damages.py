"""Every kind of damage is found under its name, where it was done, in sections of many producers, which are good undamaged."""

from __future__ import annotations

from pathlib import Path
from random import Random
from types import ModuleType

import pytest

from tests.checks.damages import PARTS, NowhereError, Subject, tried, with_section
from tests.support.cross import ARM64, S390X, Machine
from tests.support.peers import Compiler, Peers
from tests.support.programs import SHAPES

TIMES = 2  # each kind is done to each subject

# What compilers seldom make: code that cannot be said, a signal frame, the outermost frame.
FUNCTION = "\t.globl {0}\n\t.type {0}, %function\n{0}:\n\t.cfi_startproc\n{1}\t.cfi_endproc\n\t.size {0}, . - {0}\n"


MAIN = """
int puts(const char *); int rand(void); int atoi(const char *);
int main(void) { return puts("") + rand() + atoi("1") + (int) leaf(1); }
"""


def special(fp: str, sp: str, more: dict[str, str]) -> str:
    bodies = {
        "loses_fp": f".cfi_undefined {fp}; nop; .cfi_restore {fp}; nop",
        "sp_elsewhere": f"nop; .cfi_offset {sp}, -16; nop",
        "handler": ".cfi_signal_frame; nop; .cfi_adjust_cfa_offset 16; nop",
        "outermost": ".cfi_undefined {ra}; nop",
        **more,
    }
    return "".join(
        FUNCTION.format(name, "".join(f"\t{line.strip()}\n" for line in body.split(";"))) for name, body in bodies.items()
    )


def source(fp: str, sp: str, ra: str, **more: str) -> str:
    text = special(fp, sp, more).replace("{ra}", ra).replace("\n", "\\n").replace("\t", "\\t")
    return f'{SHAPES}\n__asm__(".text\\n{text}");\n{MAIN}'


# What a function that realigns the stack says with arguments on the stack.
REALIGNS = "nop; .cfi_def_cfa 10, 0; nop; .cfi_escape 0x0f, 3, 0x76, 0x78, 6; nop; .cfi_def_cfa 10, 0; nop; .cfi_def_cfa 7, 8; nop"
AMD64, AARCH64, S390 = source("6", "7", "16", realigns=REALIGNS), source("29", "31", "30"), source("11", "15", "14")
LAZY = ("-O2", "-Wl,-z,lazy")


@pytest.fixture(scope="session")
def subjects(compile_c: Compiler, peers: Peers, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Subject]:
    def cross(machine: Machine, text: str, *flags: str) -> Path:
        return machine.compiler(peers, tmp_path_factory.mktemp(machine.name))(text, *flags)

    program = compile_c(AMD64, *LAZY)
    arm64 = cross(ARM64, AARCH64, "-O2", "-mbranch-protection=pac-ret+b-key")
    s390x = cross(S390X, S390, "-O2")
    gnu = compile_c(AMD64, *LAZY, "-Wa,--gsframe", peer_binutils=True)
    files = {
        "level none": with_section(program, "none", 3),
        "level fast": with_section(program, "fast", 3),
        "version 2": with_section(program, "none", 2),
        "GNU as and ld": gnu.read_bytes(),
        "AArch64": with_section(arm64, "fast", 3),
        "s390x": with_section(s390x, "none", 3),
        "s390x version 2": with_section(s390x, "none", 2),
    }
    return {name: Subject(name, data) for name, data in files.items()}


def test_undamaged_sections_are_good(subjects: dict[str, Subject]) -> None:
    faults = {name: subject.faults for name, subject in subjects.items()}
    assert faults.pop("GNU as and ld") == {"segment-size", "cfi-rule", "cfi-inexpressible"}  # docs/checking.md
    assert set().union(*faults.values()) == set()


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__.rpartition(".")[2])
def test_damage_is_found_and_named(part: ModuleType, subjects: dict[str, Subject]) -> None:
    failures: list[object] = []
    for damage in part.KINDS.all:
        done = 0
        for subject in subjects.values():
            for number in range(TIMES):
                try:
                    outcome = tried(damage, subject, Random(f"{damage.name} {subject.name} {number}"))
                except NowhereError:
                    break
                done += 1
                if not (outcome.found and outcome.named):
                    failures.append((damage.name, subject.name, number, outcome))
        if not done:
            failures.append((damage.name, "nowhere"))
    assert failures == []
