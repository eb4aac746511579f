"""`sframegen profile` shows source lines and inlined functions, where debug information is at hand."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from sframegen.cli import profile as profile_command
from sframegen.cli.commands import cli
from sframegen.profile.report import source_lines
from tests.profile.test_profile import sframegen
from tests.support.kernel_events import needs_bpf

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.peers import Compiler

PROGRAM = """
volatile unsigned long sum;
static inline __attribute__((always_inline)) void inlined(long n) {
    for (long i = 0; i < n; i++) for (int k = 0; k < 1000; k++) sum += k;
}
__attribute__((noinline)) int work(long n) {
    inlined(n);
    return sum & 1;
}
int main(void) { return work(300000) & 0; }
"""
INLINED, WORK = 4, 7  # lines


@pytest.fixture
def program(compile_c: Compiler) -> Path:
    return compile_c(PROGRAM, "-O2", "-g")


def hottest(*arguments: object) -> list[dict[str, Any]]:
    """Return the frames of the stack with most samples, from `main` on."""
    document = json.loads(sframegen("--json", "-F", 999, *arguments).stdout)
    stack = max(document["stacks"], key=lambda one: one["samples"])
    frames = [document["frames"][number] for number in stack["frames"]]
    names = [frame["function"] for frame in frames]
    return frames[names.index("main") + 1 :]


@pytest.mark.sampled
@needs_bpf
def test_a_command(program: Path) -> None:
    pytest.importorskip("symbolic")
    found = hottest("--", program)
    assert [(frame["function"], frame["line"], frame["inlined"]) for frame in found] == [
        ("work", WORK, False),
        ("inlined", INLINED, True),
    ]
    assert all(frame["source"].endswith("/source.c") for frame in found)
    found = hottest("--no-inlined", "--", program)
    assert [(frame["function"], frame["line"]) for frame in found] == [("work", WORK)]
    lines = sframegen("--lines", "-F", 999, "--", program).stdout
    assert f"inlined [inlined]:{INLINED} < work:{WORK} < main" in lines
    assert "HOTTEST LINES" in lines


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks for lines learns what to install; who does not, gets none."""
    monkeypatch.setattr(profile_command, "find_spec", lambda _: None)
    done = CliRunner().invoke(cli, ["profile", "--lines", "--", "true"])
    assert done.exit_code == 1
    assert "sframegen: source lines and inlined functions need symbolic; to install it: " in done.stderr


@pytest.mark.dear
@needs_bpf
def test_without_the_library_where_nobody_asks(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_lines, "has_library", lambda: False)
    done = CliRunner().invoke(cli, ["profile", "--", str(program)])
    assert done.exit_code == 0
    assert "work" in done.stdout
    assert "[inlined]" not in done.stdout
