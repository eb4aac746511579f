"""`sframegen profile` shows source lines and inlined functions, where debug information is at hand."""

from __future__ import annotations

import json
import subprocess
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


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lines")
    (folder / "program.c").write_text(PROGRAM)
    subprocess.run(["gcc", "-O2", "-g", "-Wl,--build-id", folder / "program.c", "-o", folder / "program"], check=True)
    return folder / "program"


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
    assert all(frame["source"].endswith("/program.c") for frame in found)
    found = hottest("--no-inlined", "--", program)
    assert [(frame["function"], frame["line"]) for frame in found] == [("work", WORK)]
    lines = sframegen("--lines", "-F", 999, "--", program).stdout
    assert f"inlined [inlined]:{INLINED} < work:{WORK} < main" in lines
    assert "HOTTEST LINES" in lines


@pytest.mark.sampled
@needs_bpf
def test_a_stripped_command_with_its_debug_file(program: Path, tmp_path: Path) -> None:
    pytest.importorskip("symbolic")
    stripped, debug = tmp_path / "program", tmp_path / "program.debug"
    subprocess.run(["objcopy", "--only-keep-debug", program, debug], check=True)
    subprocess.run(["strip", "-o", stripped, program], check=True)
    subprocess.run(["objcopy", f"--add-gnu-debuglink={debug}", stripped], check=True)
    assert [frame["function"] for frame in hottest("--", stripped)] == ["work", "inlined"]


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
