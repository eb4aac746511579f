"""The runner in C, with sframegen's C library as the reader, on three machines; and with readers that crash."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from conformance.c_cases import c_source
from conformance.suite import all_cases
from tests import ROOT
from tests.support.loops import for_each
from tests.support.peers import needs_compiler

RUNNERS = ROOT / "conformance/runners"
FLAGS = ("-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-O1", f"-I{RUNNERS}")
MACHINES = {"": ("x86_64", ""), "aarch64-linux-gnu-": ("aarch64", "qemu-aarch64"), "s390x-linux-gnu-": ("s390x", "qemu-s390x")}
HOSTILE = """
#include "sframe_conformance.h"
#include <stdlib.h>
static bool open_case(const struct sframe_case *one, const uint8_t *section, size_t size, void **state)
{
	(void)one; (void)size; *state = (void *)section;
	return BODY;
}
static void find(void *state, uint64_t pc, struct sframe_rule *rule) { (void)state; (void)pc; (void)rule; }
const struct sframe_reader sframe_reader = { .name = "hostile", .versions = 15, .abis = 31, .open = open_case, .find = find };
"""


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("cases") / "sframe_cases.c"
    source.write_text(c_source(all_cases()))
    return source


def compiled(cases: Path, reader: Path, output: Path, prefix: str = "", *flags: str) -> Path:
    gcc = f"{prefix}gcc"
    needs_compiler(gcc)
    subprocess.run([gcc, *FLAGS, *flags, RUNNERS / "sframe_conformance.c", cases, reader, "-o", output], check=True)
    return output


@pytest.mark.dear
@pytest.mark.parametrize("prefix", MACHINES)
def test_our_library_passes(prefix: str, cases: Path, tmp_path: Path) -> None:
    machine, emulator = MACHINES[prefix]
    if not prefix and platform.machine() != machine:
        pytest.skip(f"no {machine} machine")
    if emulator and shutil.which(emulator) is None:
        pytest.skip(f"no {emulator} on this machine")
    reader = ROOT / "tests/conformance/backtrace_reader.c"
    program = compiled(cases, reader, tmp_path / "try", prefix, "-Wno-unused-function", "-static")
    done = subprocess.run([*filter(None, [emulator]), program], capture_output=True, text=True, check=False)
    assert [line for line in done.stdout.splitlines() if line.startswith("not ok")] == []
    assert done.returncode == 0
    own = [line for line in done.stdout.splitlines() if line.startswith("ok") and "# SKIP" not in line]
    assert len(own) > 100


@for_each(
    ("body", "said"),
    [
        ("false", "refuses the section"),
        ("section[size] == 0", "it crashes or reads outside"),
        ("true", "none; expected"),
        ("(exit(0), true)", "exit status 0: it ends the process"),
    ],
)
def test_bad_readers_are_noticed(body: str, said: str, tmp_path: Path) -> None:
    cases = tmp_path / "sframe_cases.c"
    cases.write_text(c_source(case for case in all_cases() if case.name == "v3-amd64-usual"))
    reader = tmp_path / "reader.c"
    reader.write_text(HOSTILE.replace("BODY", body))
    program = compiled(cases, reader, tmp_path / "try")
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert said in done.stdout.partition("not ok 1 - v3-amd64-usual\n# valid: ")[2]
    assert done.stdout.endswith("\n# 0 ok, 1 not ok, 0 skipped: hostile\n")
    mistyped = subprocess.run([program, "v3-amd64-unusual"], capture_output=True, text=True, check=False)
    assert (mistyped.returncode, mistyped.stderr) == (2, "no such case: v3-amd64-unusual\n")
